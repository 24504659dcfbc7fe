"""Reads CIFAR-10 for the benchmarks, from whichever copy is in a folder, and writes it as arrays that
workers read at once.

The *JPEG copy* has all 50,000 + 10,000 images, but their pixels differ from the original ones, so a
table of results must say that it was used. The *exact part* has 8,000 + 1,000 original images.
"""

import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from polyrhythm.learn.data.images import Images

JPEG = ("cifar10_jpeg_train.npz", "cifar10_jpeg_test.npz")
EXACT = "cifar10_lossless_8000_1000.npz"
_NAMES = ("train_x", "train_y", "test_x", "test_y")
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Prepared:
    """`folder`: holds the arrays. `name`: how a table names the data."""

    folder: Path
    name: str


def prepare(source: Path, folder: Path, most: int | None = None) -> Prepared:
    """Write the arrays of the data set in the folder `source` to `folder`. `most`: use only this many
    training images, and this many test images."""
    if all((source / name).is_file() for name in JPEG):
        name = "CIFAR-10, JPEG copy"
        parts = [part for file in JPEG for part in read_jpeg(source / file, most)]
    elif (source / EXACT).is_file():
        name = "CIFAR-10, exact part of 8,000 + 1,000 images"
        with np.load(source / EXACT, allow_pickle=False) as found:
            parts = [found[each][:most] for each in _NAMES]
    else:
        raise SystemExit(f"{source} holds neither {' and '.join(JPEG)} nor {EXACT}: give --data")
    folder.mkdir(parents=True, exist_ok=True)
    for each, part in zip(_NAMES, parts, strict=True):
        np.save(folder / f"{each}.npy", part)
    counts = "" if most is None else f", the first {len(parts[0]):,} + {len(parts[2]):,} images"
    return Prepared(folder, name + counts)


def read_jpeg(file: Path, most: int | None) -> tuple[Bytes, Bytes]:
    """The images and labels of a file of the JPEG copy."""
    decode = _decoder()
    with np.load(file, allow_pickle=False) as found:
        jpeg, offsets, labels = found["jpeg"], found["offset"], found["label"][:most]
    images = np.empty((len(labels), 3, 32, 32), np.uint8)
    for index in range(len(labels)):
        images[index] = decode(jpeg[offsets[index] : offsets[index + 1]])
    return images, labels


def _decoder() -> Callable[[Bytes], Bytes]:
    """A function from the bytes of a JPEG file to an array of channels, rows and columns."""
    try:
        from PIL import Image
    except ImportError:
        return _torchvision_decoder()

    def decode(jpeg: Bytes) -> Bytes:
        pixels: Any = np.asarray(Image.open(io.BytesIO(jpeg.tobytes())).convert("RGB"))
        return pixels.transpose(2, 0, 1)  # type: ignore[no-any-return]

    return decode


def _torchvision_decoder() -> Callable[[Bytes], Bytes]:
    try:
        from torchvision.io import ImageReadMode, decode_jpeg
    except ImportError:
        raise SystemExit("the JPEG copy needs Pillow to read it: pip install pillow") from None
    return lambda jpeg: decode_jpeg(torch.from_numpy(jpeg.copy()), ImageReadMode.RGB).numpy()


def load(folder: Path) -> Images:
    """The data set that `prepare` has written."""
    train_x, train_y, test_x, test_y = (
        torch.from_numpy(np.load(folder / f"{each}.npy")) for each in _NAMES
    )
    return Images(train_x, train_y.long(), test_x, test_y.long())
