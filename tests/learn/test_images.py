"""Image sets are read exactly as they were written. If a file is damaged, the error names it."""

import gzip
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from polyrhythm.errors import DataError
from polyrhythm.learn.data.images import read_cifar10, read_mnist
from tests.learn.made_sets import (
    bright_rows,
    make_cifar10,
    make_cifar10_part,
    make_mnist,
    write_idx,
)


def test_idx_files_are_read(tmp_path: Path) -> None:
    images = read_mnist(make_mnist(tmp_path / "mnist", train=30, test=20))
    pixels, labels = bright_rows(30, 0, (28, 28))
    assert torch.equal(images.train_x, torch.from_numpy(pixels)[:, None])
    assert images.train_y.tolist() == labels.tolist()
    assert (images.test_x.shape, images.test_x.dtype) == ((20, 1, 28, 28), torch.uint8)
    assert (images.test_y.shape, images.test_y.dtype) == ((20,), torch.int64)


def test_cifar_batches_are_read_in_order(tmp_path: Path) -> None:
    images = read_cifar10(make_cifar10(tmp_path / "cifar10", each=4))
    pixels, labels = bright_rows(24, 2, (3, 32, 32))
    assert torch.equal(images.train_x, torch.from_numpy(pixels[:20]))
    assert torch.equal(images.test_x, torch.from_numpy(pixels[20:]))
    assert [*images.train_y.tolist(), *images.test_y.tolist()] == labels.tolist()


def test_a_part_of_cifar_in_one_file_is_read(tmp_path: Path) -> None:
    images = read_cifar10(make_cifar10_part(tmp_path / "cifar10"))
    pixels, labels = bright_rows(8, 3, (3, 32, 32))
    assert torch.equal(images.train_x, torch.from_numpy(pixels))
    assert images.train_y.tolist() == labels.tolist()
    assert len(images.test_x) == len(images.test_y) == 4


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    """An .npz file may contain a pickle. The pickle in this file would create a file if it were
    loaded."""

    class Trap:
        def __reduce__(self) -> tuple[object, tuple[Path]]:
            return Path.touch, (tmp_path / "sprung",)

    folder = tmp_path / "cifar10"
    folder.mkdir()
    trap = np.array([Trap()], dtype=object)
    with (folder / "cifar10_lossless_8000_1000.npz").open("wb") as out:
        np.savez(out, train_x=trap, train_y=trap, test_x=trap, test_y=trap)
    with pytest.raises(DataError, match="cannot be read"):
        read_cifar10(folder)
    assert not (tmp_path / "sprung").exists()
    pickle.loads(pickle.dumps(Trap()))
    assert (tmp_path / "sprung").exists(), "the trap would have worked"


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "not an idx file"),
        (b"not gzip", "cannot be read"),
        (gzip.compress(b"\0\0\x08\x03" + bytes(100))[:-20], "cannot be read"),
        (gzip.compress(b"\0\0\x0d\x01\0\0\0\0"), "not an idx file of bytes"),
        (gzip.compress(b"\0\0\x08\x03\0\0"), "ends before its header is complete"),
        (
            gzip.compress(b"\0\0\x08\x01\0\0\0\x09abc"),
            r"its 3 bytes of data do not fit its shape \[9\]",
        ),
    ],
    ids=["empty", "not-gzip", "torn", "floats", "no-shape", "too-short"],
)
def test_a_damaged_idx_file_is_named(tmp_path: Path, content: bytes, why: str) -> None:
    folder = make_mnist(tmp_path / "mnist")
    (folder / "t10k-labels-idx1-ubyte.gz").write_bytes(content)
    with pytest.raises(DataError, match=f"t10k-labels-idx1-ubyte.gz.*{why}.*data check mnist"):
        read_mnist(folder)


def test_a_number_of_labels_that_does_not_fit_the_images_is_reported(tmp_path: Path) -> None:
    folder = make_mnist(tmp_path / "mnist", train=30)
    write_idx(folder / "train-labels-idx1-ubyte.gz", np.zeros(29))
    with pytest.raises(DataError, match=r"30 \+ 50 images have 29 \+ 50 labels"):
        read_mnist(folder)


def test_an_incomplete_record_is_reported(tmp_path: Path) -> None:
    folder = make_cifar10(tmp_path / "cifar10", each=1)
    with (folder / "data_batch_3.bin").open("ab") as out:
        out.write(b"more")
    with pytest.raises(
        DataError, match=r"data_batch_3.bin.*3077 bytes cannot be divided into records"
    ):
        read_cifar10(folder)


def test_the_real_data_sets_are_read(real_data: Path) -> None:
    for name in ("mnist", "fashion-mnist"):
        images = read_mnist(real_data / name)
        assert images.train_x.shape == (60_000, 1, 28, 28)
        assert images.test_x.shape == (10_000, 1, 28, 28)
        assert images.test_y.bincount().sum() == 10_000
    assert read_mnist(real_data / "mnist").train_y.bincount().tolist() == [
        *(5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949)
    ]
    photographs = read_cifar10(real_data / "cifar10")
    assert photographs.train_x.shape[1:] == (3, 32, 32)
    assert set(photographs.train_y.tolist()) == set(range(10))
