"""The catalogue of data sets: their files, sizes, checksums and download addresses.

A data set is in a folder that has its name. The catalogue lists one or more forms of each set. The
first form is complete and can be downloaded. The others are smaller copies, which are used if the
user has put them into the folder.
"""

import gzip
import hashlib
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from polyrhythm.errors import UsageError


@dataclass(frozen=True, slots=True)
class File:
    name: str
    nbytes: int
    sha256: str
    unpacked_sha256: str = ""
    """The checksum of the uncompressed content of a .gz file. Distributions compress the same
    content again, which changes the checksum of the file."""


@dataclass(frozen=True, slots=True)
class Form:
    """One form of a data set. It is found if all its files are in the folder."""

    what: str
    files: tuple[File, ...]


@dataclass(frozen=True, slots=True)
class Archive:
    """The archive to download, for sets whose files cannot be downloaded one by one."""

    file: File
    inside: str
    """The folder in the archive that holds the files."""


@dataclass(frozen=True, slots=True)
class DataSet:
    name: str
    what: str
    addresses: tuple[str, ...]
    """Folders on the web that hold the same files. They are tried one after the other."""
    forms: tuple[Form, ...]
    archive: Archive | None = None

    @property
    def downloads(self) -> tuple[File, ...]:
        return self.forms[0].files if self.archive is None else (self.archive.file,)

    @property
    def download_nbytes(self) -> int:
        return sum(file.nbytes for file in self.downloads)


def known(name: str) -> DataSet:
    """Return the set of this name, or raise an error that lists the known names."""
    try:
        return SETS[name]
    except KeyError:
        raise UsageError(
            f"there is no data set {name!r}: choose one of {', '.join(SETS)}"
        ) from None


def _idx(*rows: tuple[str, int, str, str]) -> tuple[Form, ...]:
    return (Form("complete", tuple(File(*row) for row in rows)),)


_MNIST = DataSet(
    "mnist",
    "handwritten digits, 28x28: 60,000 for training, 10,000 for tests",
    (
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
    ),
    _idx(
        (
            "train-images-idx3-ubyte.gz",
            9_912_422,
            "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        ),
        (
            "train-labels-idx1-ubyte.gz",
            28_881,
            "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        ),
        (
            "t10k-images-idx3-ubyte.gz",
            1_648_877,
            "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        ),
        (
            "t10k-labels-idx1-ubyte.gz",
            4_542,
            "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        ),
    ),
)

_FASHION = DataSet(
    "fashion-mnist",
    "clothes, 28x28: 60,000 for training, 10,000 for tests",
    ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
    _idx(
        (
            "train-images-idx3-ubyte.gz",
            26_421_880,
            "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        ),
        (
            "train-labels-idx1-ubyte.gz",
            29_515,
            "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        ),
        (
            "t10k-images-idx3-ubyte.gz",
            4_422_102,
            "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        ),
        (
            "t10k-labels-idx1-ubyte.gz",
            5_148,
            "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
            "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        ),
    ),
)

CIFAR_TRAIN = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
CIFAR_TEST = "test_batch.bin"
CIFAR_PART = "cifar10_lossless_8000_1000.npz"
_CIFAR_BATCH_NBYTES = 10_000 * 3_073

_CIFAR10 = DataSet(
    "cifar10",
    "photographs of ten classes, 32x32: 50,000 for training, 10,000 for tests",
    ("https://www.cs.toronto.edu/~kriz/",),
    (
        Form(
            "complete",
            tuple(
                File(name, _CIFAR_BATCH_NBYTES, sha256)
                for name, sha256 in zip(
                    (*CIFAR_TRAIN, CIFAR_TEST),
                    (
                        "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
                        "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
                        "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
                        "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
                        "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
                        "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
                    ),
                    strict=True,
                )
            ),
        ),
        Form(
            "a part of the data set: 8,000 training and 1,000 test images",
            (
                File(
                    CIFAR_PART,
                    25_464_711,
                    "b6d80b2a6b8db344177585a94140dbff37ce47d871ea3237a6e55116618b1420",
                ),
            ),
        ),
    ),
    Archive(
        File(
            "cifar-10-binary.tar.gz",
            170_052_171,
            "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        ),
        "cifar-10-batches-bin",
    ),
)

_HIGGS = DataSet(
    "higgs",
    "11,000,000 collisions with 28 features: signal or background",
    ("https://archive.ics.uci.edu/ml/machine-learning-databases/00280/",),
    (
        Form(
            "complete",
            (
                File(
                    "HIGGS.csv.gz",
                    2_816_407_858,
                    "ea302c18164d4e3d916a1e2e83a9a8d07069fa6ebc7771e4c0540d54e593b698",
                ),
            ),
        ),
        Form(
            "a part of the data set: 10,984 rows",
            (
                File(
                    "higgs_10984.csv.gz",
                    1_488_381,
                    "d4d25e1d08f2e8065f858d4e1a18103bdf5bfb96cf5257eaeffdff10f51cac86",
                    "21f8b95e4aaed9e631a76d69c724bb0ca94456bc1ac01e18fd81b968dd3c9724",
                ),
            ),
        ),
    ),
)

_MOVIELENS = DataSet(
    "movielens-latest-small",
    "100,836 ratings of movies by 610 people",
    ("https://files.grouplens.org/datasets/movielens/",),
    (
        Form(
            "complete",
            (
                File(
                    "ratings.csv",
                    2_483_723,
                    "aa289ca83157595d0df6aea1be6a4ded676ddc4385472e8313a8ed9805352646",
                ),
                File(
                    "movies.csv",
                    494_431,
                    "5a5f32dd9bb3797b8e728a1b98958789d2b13f294a69fdfbc5727f8a9611aa07",
                ),
                File(
                    "README.txt",
                    8_342,
                    "63d22ac138e80fae37021797ed8e1b9424b5239dc576a137422adf783ae3f404",
                ),
            ),
        ),
    ),
    Archive(
        File(
            "ml-latest-small.zip",
            978_202,
            "696d65a3dfceac7c45750ad32df2c259311949efec81f0f144fdfb91ebc9e436",
        ),
        "ml-latest-small",
    ),
)

SETS = {each.name: each for each in (_MNIST, _FASHION, _CIFAR10, _HIGGS, _MOVIELENS)}


CHUNK_NBYTES = 1 << 20


def is_right(path: Path, file: File) -> bool:
    """Whether the file has the right checksum. A .gz file is also right if its uncompressed content
    has the right checksum, because some distributions compress files again."""
    with path.open("rb") as stream:
        if _digest(stream) == file.sha256:
            return True
    if not file.unpacked_sha256:
        return False
    try:
        with gzip.open(path) as stream:
            return _digest(stream) == file.unpacked_sha256
    except (OSError, EOFError, zlib.error):
        return False


def _digest(stream: IO[bytes] | gzip.GzipFile) -> str:
    digest = hashlib.sha256()
    while chunk := stream.read(CHUNK_NBYTES):
        digest.update(chunk)
    return digest.hexdigest()
