"""The nearest centres of points: matrix products over blocks of rows.

Distances have one row per centre and one column per point. To find the nearest centre of every point,
whole rows are compared with each other, which is fast because rows are long.
"""

import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from polyrhythm.learn.pointwise.blocks import block_rows, over_blocks
from polyrhythm.learn.pointwise.layout import Array

Labels = npt.NDArray[np.int32]
Values = npt.NDArray[np.floating[Any]]
Rows = npt.NDArray[np.intp]
_MANY = 0.1
"""If more than this fraction of the rows has a new nearest centre, all rows are searched, because
selecting rows would cost more."""

DISTANCE_BYTES = 8 * 1024 * 1024
"""The distances of a block with more than 64 rows have at most this many bytes. A thread keeps
arrays of at most this size for the next visit."""


def distance_rows(features: int, k: int, dtype: npt.DTypeLike) -> int:
    """The number of rows in a block. The points of a block fit into the cache of a core. The
    distances need not fit, because larger blocks cost fewer calls. With many centres a block has
    fewer rows, so that its distances do not fill the memory."""
    size = np.dtype(dtype).itemsize
    return min(block_rows(features * size), max(64, DISTANCE_BYTES // (k * size)))


def rank_of(k: int) -> npt.NDArray[Any]:
    """A column of numbers that decrease from the first centre to the last, in a type of few
    bytes."""
    return np.arange(k, 0, -1, dtype=np.min_scalar_type(-k - 1))[:, None]


def lowest(distance: Values, best: Values, rank: npt.NDArray[Any]) -> Labels:
    """For each column the first row with the lowest distance, `best`; the last row if numbers were
    too large and `best` is NaN. This takes a fifth of the time of numpy's argmin, which does not
    use vector instructions over rows."""
    found: Labels = len(rank) - np.multiply(distance == best, rank).max(0).astype(np.int32)
    return np.minimum(found, len(rank) - 1, out=found)


class Scratch:
    """Reused arrays for the rows of one block."""

    def __init__(self, k: int, rows: int, dtype: npt.DTypeLike) -> None:
        self.distance = np.empty(k * rows, dtype)
        self.best = np.empty(rows, dtype)
        self.second = np.empty(rows, dtype)
        self.rank = rank_of(k)
        self.row = np.arange(rows)
        self.at = np.empty(rows, np.intp)


_kept = threading.local()


def scratch_of(k: int, rows: int, dtype: npt.DTypeLike) -> Scratch:
    """The scratch of this thread. It reuses the arrays of the last call if they fit. Very large
    arrays are not kept."""
    shape = (k, rows, np.dtype(dtype))
    if k * rows * shape[2].itemsize > DISTANCE_BYTES:
        return Scratch(k, rows, dtype)
    if getattr(_kept, "shape", None) != shape:
        _kept.scratch, _kept.shape = Scratch(k, rows, dtype), shape
    found: Scratch = _kept.scratch
    return found


@dataclass(frozen=True, slots=True)
class MovedRows:
    """The result of `Nearest.moved`. Its arrays belong to the scratch: the next block overwrites
    them."""

    rows: Rows
    """The rows whose nearest centre has changed."""
    label: Labels
    """The nearest centres of these rows."""
    best: Values
    """For all rows, the distance to the nearest centre, as |c|^2 - 2 x.c."""
    distance: Values
    own: Rows
    """For all rows, the position of the distance to the nearest centre in the flattened
    distances."""

    def second(self, scratch: Scratch) -> Values:
        """For all rows, the distance to the second nearest centre, as |c|^2 - 2 x.c. This
        overwrites `distance`."""
        self.distance.reshape(-1)[self.own] = np.inf
        out: Values = scratch.second[: len(self.best)]
        return np.minimum.reduce(self.distance, axis=0, out=out)


class Nearest:
    """Finds the nearest centre of points. It compares |c|^2 - 2 x.c, which leaves out |x|^2."""

    def __init__(self, centers: Array, dtype: npt.DTypeLike) -> None:
        self._factor = np.ascontiguousarray(-2.0 * centers, dtype)
        self._bias = (centers * centers).sum(1).astype(dtype)[:, None]

    def moved(self, x: npt.NDArray[Any], old: Labels | None, scratch: Scratch) -> MovedRows:
        """Find the rows whose nearest centre is not the one that `old` names; all rows if `old` is
        None. Searching the lowest distance of every row costs as much as computing the distances.
        So first compare the distance to the old centre with the lowest one, and search only the
        rows that differ."""
        distance, count = self._distances(x, scratch), len(x)
        best = np.minimum.reduce(distance, axis=0, out=scratch.best[:count])
        row, at = scratch.row[:count], scratch.at[:count]
        if old is None:
            return MovedRows(row, lowest(distance, best, scratch.rank), best, distance, at)
        np.multiply(old, count, out=at)
        at += row
        flat = distance.reshape(-1)
        own = np.take(flat, at, out=scratch.second[:count], mode="clip")
        moved = np.flatnonzero(own != best)
        if len(moved) > _MANY * count:
            label = lowest(distance, best, scratch.rank)[moved]
        else:
            label = lowest(np.take(distance, moved, axis=1), best[moved], scratch.rank)
        at[moved] = label * np.intp(count) + moved
        return MovedRows(moved, label, best, distance, at)

    def label(self, x: npt.NDArray[Any], scratch: Scratch) -> Labels:
        """The nearest centre of each row. If several centres are equally near, it is the first of
        them."""
        distance = self._distances(x, scratch)
        best = np.minimum.reduce(distance, axis=0, out=scratch.best[: len(x)])
        return lowest(distance, best, scratch.rank)

    def _distances(self, x: npt.NDArray[Any], scratch: Scratch) -> Values:
        k, count = len(self._factor), len(x)
        out = scratch.distance[: k * count].reshape(k, count)
        distance: Values = np.matmul(self._factor, x.T, out=out)
        distance += self._bias
        return distance


def labels_of(
    x: npt.NDArray[Any], centers: npt.NDArray[Any], threads: int = 1
) -> tuple[Labels, npt.NDArray[np.float64]]:
    """The nearest centre of each point, and the squared distance to it. Points are taken relative to
    the mean of the centres, because squared distances lose digits far from the origin."""
    offset = centers.mean(0, dtype=np.float64).astype(x.dtype)
    centers = centers.astype(np.float64) - offset
    nearest = Nearest(centers, x.dtype)
    rows = block_rows(x.shape[1] * x.itemsize + 4 * len(centers) + 16)
    labels = np.empty(len(x), np.int32)
    squared = np.empty(len(x))
    rounded = centers.astype(x.dtype)

    def work(scratch: Scratch, block: slice) -> None:
        points = x[block] - offset
        labels[block] = label = nearest.label(points, scratch)
        points -= rounded.take(label, axis=0)
        squared[block] = np.einsum("nd,nd->n", points, points)

    over_blocks(len(x), rows, threads, lambda: Scratch(len(centers), rows, x.dtype), work)
    return labels, squared
