"""Reads image sets into tensors of bytes. A batch is converted to floating point when it is
used."""

import gzip
import math
import struct
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from polyrhythm.errors import DataError
from polyrhythm.learn.data.catalogue import CIFAR_PART, CIFAR_TEST, CIFAR_TRAIN

Bytes = npt.NDArray[np.uint8]
_IDX_BYTES = 0x08
_CIFAR_SHAPE = (3, 32, 32)


@dataclass(frozen=True, slots=True)
class Images:
    """Images are uint8 (points, channels, height, width), labels int64."""

    train_x: torch.Tensor
    train_y: torch.Tensor
    test_x: torch.Tensor
    test_y: torch.Tensor

    def to(self, device: torch.device) -> "Images":
        """The same images and labels on this device."""
        return Images(
            self.train_x.to(device),
            self.train_y.to(device),
            self.test_x.to(device),
            self.test_y.to(device),
        )


def read_mnist(folder: Path) -> Images:
    """Read the four idx files of MNIST, or of a set with the same format."""
    return _images(
        _read_idx(folder / "train-images-idx3-ubyte.gz")[:, None],
        _read_idx(folder / "train-labels-idx1-ubyte.gz"),
        _read_idx(folder / "t10k-images-idx3-ubyte.gz")[:, None],
        _read_idx(folder / "t10k-labels-idx1-ubyte.gz"),
    )


def read_cifar10(folder: Path) -> Images:
    """Read CIFAR-10 in its binary version, either all of its files or a smaller copy in one file.
    The Python version is not supported: it is a pickle, and unpickling can run any code."""
    if (folder / CIFAR_TEST).is_file():
        train_x, train_y = _read_batches([folder / name for name in CIFAR_TRAIN])
        return _images(train_x, train_y, *_read_batches([folder / CIFAR_TEST]))
    path = folder / CIFAR_PART
    try:
        with np.load(path, allow_pickle=False) as arrays:
            names = ("train_x", "train_y", "test_x", "test_y")
            return _images(*(arrays[name] for name in names))
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise _damaged(path, str(error)) from None


def _read_idx(path: Path) -> Bytes:
    """Read an idx file: two zero bytes, the type, the number of dimensions, each dimension as a
    32-bit integer, and then the data."""
    try:
        data = bytearray(gzip.decompress(path.read_bytes()))
    except (OSError, EOFError, zlib.error) as error:
        raise _damaged(path, str(error)) from None
    if len(data) < 4 or data[:3] != bytes((0, 0, _IDX_BYTES)):
        raise _damaged(path, "it is not an idx file of bytes")
    begin = 4 + 4 * data[3]
    if len(data) < begin:
        raise _damaged(path, "the file ends before its header is complete")
    shape = struct.unpack_from(f">{data[3]}I", data, 4)
    if len(data) - begin != math.prod(shape):
        raise _damaged(
            path, f"its {len(data) - begin} bytes of data do not fit its shape {list(shape)}"
        )
    return np.frombuffer(data, np.uint8, offset=begin).reshape(shape)


def _read_batches(paths: list[Path]) -> tuple[Bytes, Bytes]:
    """Read records of one label and the three colour planes of an image."""
    record = 1 + math.prod(_CIFAR_SHAPE)
    parts = []
    for path in paths:
        try:
            data = np.fromfile(path, np.uint8)
        except OSError as error:
            raise _damaged(path, error.strerror or str(error)) from None
        if not len(data) or len(data) % record:
            raise _damaged(
                path, f"its {len(data)} bytes cannot be divided into records of {record} bytes"
            )
        parts.append(data.reshape(-1, record))
    records = np.concatenate(parts)
    return records[:, 1:].reshape(-1, *_CIFAR_SHAPE), records[:, 0]


def _images(train_x: Bytes, train_y: Bytes, test_x: Bytes, test_y: Bytes) -> Images:
    if len(train_x) != len(train_y) or len(test_x) != len(test_y):
        raise DataError(
            f"{len(train_x)} + {len(test_x)} images have {len(train_y)} + {len(test_y)} labels:"
            " the files do not belong together"
        )
    return Images(
        torch.from_numpy(np.ascontiguousarray(train_x)),
        torch.from_numpy(train_y.astype(np.int64)),
        torch.from_numpy(np.ascontiguousarray(test_x)),
        torch.from_numpy(test_y.astype(np.int64)),
    )


def _damaged(path: Path, why: str) -> DataError:
    return DataError(
        f"{path} cannot be read: {why}; see 'polyrhythm data check {path.parent.name}'"
    )
