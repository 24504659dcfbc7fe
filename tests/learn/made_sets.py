"""Make tiny data sets in the formats of the real ones. A linear model can separate their
classes."""

import gzip
import struct
from pathlib import Path

import numpy as np


def write_idx(path: Path, array: np.ndarray) -> None:
    header = bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape)
    path.write_bytes(gzip.compress(header + array.astype(np.uint8).tobytes()))


def bright_rows(count: int, seed: int, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Make images of ten classes: in an image of class c the rows 2c and 2c+1 are bright."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(count) % 10).astype(np.uint8)
    images = rng.integers(0, 60, (count, *shape), dtype=np.uint8)
    for image, label in zip(images, labels, strict=True):
        image[..., 2 * label : 2 * label + 2, :] = 255
    return images, labels


def make_mnist(folder: Path, train: int = 200, test: int = 50) -> Path:
    folder.mkdir(parents=True)
    for name, count, seed in (("train", train, 0), ("t10k", test, 1)):
        images, labels = bright_rows(count, seed, (28, 28))
        write_idx(folder / f"{name}-images-idx3-ubyte.gz", images)
        write_idx(folder / f"{name}-labels-idx1-ubyte.gz", labels)
    return folder


def make_cifar10(folder: Path, each: int = 4) -> Path:
    """Write CIFAR-10 in its binary format: five training batches and a test batch, with `each`
    records per batch."""
    folder.mkdir(parents=True)
    images, labels = bright_rows(6 * each, 2, (3, 32, 32))
    records = np.concatenate([labels[:, None], images.reshape(len(images), -1)], axis=1)
    names = [*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]
    for number, name in enumerate(names):
        batch = records[number * each : (number + 1) * each]
        (folder / f"{name}.bin").write_bytes(batch.tobytes())
    return folder


def make_cifar10_part(folder: Path, train: int = 8, test: int = 4) -> Path:
    folder.mkdir(parents=True)
    train_x, train_y = bright_rows(train, 3, (3, 32, 32))
    test_x, test_y = bright_rows(test, 4, (3, 32, 32))
    path = folder / "cifar10_lossless_8000_1000.npz"
    np.savez(path, train_x=train_x, train_y=train_y, test_x=test_x, test_y=test_y)
    return folder
