"""Downloads data sets into a hidden folder, verifies them there, and only then moves them to their
place.

A failed or interrupted download leaves nothing that could be mistaken for a data set. If several
processes need the same set at once, one of them downloads it and the others wait for it.
"""

import contextlib
import fcntl
import hashlib
import http.client
import os
import shutil
import tarfile
import urllib.error
import urllib.parse
import urllib.request
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from polyrhythm.errors import DataError
from polyrhythm.learn.data.catalogue import CHUNK_NBYTES, Archive, DataSet, File, is_right
from polyrhythm.learn.data.places import find, home, nowhere, places

Progress = Callable[[File, int], None]
"""A function that is called with a file and the number of its bytes that have arrived."""

UNASKED_NBYTES = 256 * 10**6
"""The largest data set that a job downloads by itself. Larger sets must be downloaded with
`polyrhythm data fetch`."""

_TIMEOUT_S = 30.0


def silent(file: File, done_nbytes: int) -> None:
    """A `Progress` function that shows nothing."""


def obtain(
    dataset: DataSet,
    data_dir: str | Path | None,
    environ: Mapping[str, str],
    progress: Progress = silent,
    addresses: Sequence[str] | None = None,
) -> Path:
    """Return the folder of the set, in the first place that holds it. If no place does, download
    the set unless it is too large."""
    where = places(data_dir, environ)
    found = find(dataset, where)
    if found is not None:
        return found.folder
    if dataset.download_nbytes > UNASKED_NBYTES:
        size = f"{dataset.download_nbytes / 1e9:.1f} GB are downloaded only on request"
        raise DataError(nowhere(dataset, where, size))
    try:
        return fetch(dataset, home(where), progress, addresses)
    except DataError as error:
        raise DataError(nowhere(dataset, where, str(error))) from None


def fetch(
    dataset: DataSet,
    into: Path,
    progress: Progress = silent,
    addresses: Sequence[str] | None = None,
) -> Path:
    """Make `into`/NAME hold the complete form of the set. Files that are already there and right
    are kept."""
    folder = into / dataset.name
    try:
        with _alone(into):
            wrong = [f for f in dataset.forms[0].files if not _is_there(folder / f.name, f)]
            if wrong:
                _download(dataset, wrong, folder, progress, addresses or dataset.addresses)
    except OSError as error:
        raise DataError(f"cannot write to {into}: {error.strerror or error}") from None
    return folder


def _is_there(path: Path, file: File) -> bool:
    return path.is_file() and is_right(path, file)


@contextlib.contextmanager
def _alone(into: Path) -> Iterator[None]:
    """Hold a lock, so that only one process downloads into this folder at a time."""
    into.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(into, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _download(
    dataset: DataSet,
    wanted: Sequence[File],
    folder: Path,
    progress: Progress,
    addresses: Sequence[str],
) -> None:
    """Download the set into the hidden folder. First remove files that a killed process may have
    left in that folder."""
    part = folder.with_name(f".{dataset.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    try:
        for file in wanted if dataset.archive is None else dataset.downloads:
            _get_from_any(file, part, progress, addresses)
        if dataset.archive is not None:
            _unpack(dataset.archive, wanted, part)
        folder.mkdir(exist_ok=True)
        for file in wanted:
            os.replace(part / file.name, folder / file.name)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _get_from_any(file: File, part: Path, progress: Progress, addresses: Sequence[str]) -> None:
    reasons = []
    for address in addresses:
        try:
            _get(urllib.parse.urljoin(address, file.name), file, part / file.name, progress)
        except DataError as error:
            reasons.append(str(error))
        else:
            return
    raise DataError("; ".join(reasons))


def _get(address: str, file: File, target: Path, progress: Progress) -> None:
    request = urllib.request.Request(address, headers={"User-Agent": "polyrhythm"})
    try:
        with (
            urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer,
            target.open("wb") as out,
        ):
            sha256 = _receive(answer, out, file, progress)
    except urllib.error.HTTPError as error:
        raise DataError(f"{address} answers {error.code} {error.reason}") from None
    except urllib.error.URLError as error:
        reason = getattr(error.reason, "strerror", None) or error.reason
        raise DataError(f"{address} cannot be reached ({reason})") from None
    except (http.client.HTTPException, ConnectionError, TimeoutError) as error:
        raise DataError(f"the download of {address} was interrupted ({error})") from None
    if sha256 != file.sha256:
        raise DataError(
            f"{address} is not the expected file (sha256 {sha256[:12]}...,"
            f" expected {file.sha256[:12]}...)"
        )


def _receive(answer: IO[bytes], out: IO[bytes], file: File, progress: Progress) -> str:
    """Copy the answer to `out`, and return its checksum. At most one byte more than expected is
    copied, because that is enough to make the checksum wrong."""
    digest, done = hashlib.sha256(), 0
    progress(file, 0)
    while done <= file.nbytes:
        chunk = answer.read(min(CHUNK_NBYTES, file.nbytes + 1 - done))
        if not chunk:
            break
        digest.update(chunk)
        out.write(chunk)
        done += len(chunk)
        progress(file, done)
    return digest.hexdigest()


def _unpack(archive: Archive, wanted: Sequence[File], part: Path) -> None:
    """Unpack only the files of the set, by their names in the archive, and verify each of them."""
    path = part / archive.file.name
    with _open(path) as extract:
        for file in wanted:
            target = part / file.name
            with extract(f"{archive.inside}/{file.name}") as source, target.open("wb") as out:
                shutil.copyfileobj(source, out, CHUNK_NBYTES)
            if not is_right(target, file):
                raise DataError(f"{file.name} in {path.name} is not the expected file")


@contextlib.contextmanager
def _open(path: Path) -> Iterator[Callable[[str], IO[bytes]]]:
    """Open a .zip or .tar.gz file. Yields a function that opens a member of the archive by its
    name."""
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as packed:
            yield packed.open
        return
    with tarfile.open(path) as tar:

        def extract(name: str) -> IO[bytes]:
            source = tar.extractfile(name)
            if source is None:
                raise DataError(f"{name} in {path.name} is not a file")
            return source

        yield extract
