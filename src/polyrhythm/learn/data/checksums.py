"""Compares a file with its checksum in the catalogue."""

import gzip
import hashlib
import zlib
from pathlib import Path
from typing import IO

from polyrhythm.learn.data.catalogue import File

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
