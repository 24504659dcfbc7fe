"""KMeans by statistics (FSP's section 2.2): the sum and the number of the points of each cluster.

A point's memory is its cluster. Only points that move to another cluster change the statistics, and
their summands are computed in float64, so what is added is later subtracted exactly.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from polyrhythm.errors import UsageError
from polyrhythm.learn.pointwise.algorithm import Algorithm, Batch, Check, Memory
from polyrhythm.learn.pointwise.blocks import block_rows, over_blocks
from polyrhythm.learn.pointwise.layout import Array, Arrays, Shape

Labels = npt.NDArray[np.int32]


class KMeans(Algorithm):
    """`tol`: the job ends when the centres move by at most this much (the sum of squares, in units
    of the mean variance of the features, as in scikit-learn)."""

    name = "kmeans"

    def __init__(self, k: int, *, tol: float = 1e-4, threads: int = 1) -> None:
        if k < 1:
            raise UsageError(f"k is {k}: a positive number of clusters is needed")
        self.k = k
        self.tol = tol
        self.threads = threads
        self.sample_points = max(10_000, 100 * k)

    def init_parameter(self, sample: Batch, rng: np.random.Generator) -> Arrays:
        check_count(self.k, len(sample))
        return {
            "centers": plus_plus(sample.x, self.k, rng, sample.weight),
            "variance": mean_variance(sample),
        }

    def statistics(self, parameter: Arrays) -> Mapping[str, Shape]:
        k, d = parameter["centers"].shape
        return {"sum": (k, d), "count": (k,), "square": (k,)}

    def memory(self, count: int) -> Memory:
        return {"label": np.full(count, -1, np.int32)}

    def update_points(self, batch: Batch, parameter: Arrays, memory: Memory) -> Arrays:
        x, known = batch.x, memory["label"]
        nearest = Nearest(parameter["centers"], x.dtype)
        layout = self.layout(parameter)
        rows = block_rows(x.shape[1] * x.itemsize + 4 * self.k + 16)

        def begin() -> tuple[Moves, Scratch]:
            return Moves(layout.zeros()), Scratch(self.k, rows, x.dtype)

        def work(state: tuple[Moves, Scratch], block: slice) -> None:
            moves, scratch = state
            points, old = x[block], known[block]
            moved, label = nearest.moved(points, old, scratch)
            if len(moved):
                weight = None if batch.weight is None else batch.weight[block][moved]
                moves.add(points[moved], old[moved], label, weight)
                old[moved] = label

        states = over_blocks(len(batch), rows, self.threads, begin, work)
        total = states[0][0].total()
        for moves, _ in states[1:]:
            for name, array in moves.total().items():
                total[name] += array
        return total

    def update_parameter(self, statistics: Arrays, old: Arrays) -> Arrays:
        count = statistics["count"]
        filled = count > 0
        centers = old["centers"].copy()
        centers[filled] = statistics["sum"][filled] / count[filled, None]
        if not filled.all():
            _fill(centers, statistics)
        return {"centers": centers, "variance": old["variance"]}

    def objective(self, statistics: Arrays, parameter: Arrays) -> float:
        """The sum of the squared distances of the points to the centres of their clusters."""
        return float(max(0.0, spread(statistics, parameter["centers"]).sum()))

    def terminated(self, check: Check) -> bool:
        moved = float(((check.new["centers"] - check.old["centers"]) ** 2).sum())
        return moved <= self.tol * float(check.new["variance"])


class Scratch:
    """Reused arrays for the rows of one block."""

    def __init__(self, k: int, rows: int, dtype: npt.DTypeLike) -> None:
        self.distance = np.empty(k * rows, dtype)
        self.best = np.empty(rows, dtype)
        self.own = np.empty(rows, dtype)
        self.row = np.arange(rows)
        self.at = np.empty(rows, np.intp)


class Nearest:
    """Finds the nearest centre of points. It compares |c|^2 - 2 x.c, which leaves out |x|^2."""

    def __init__(self, centers: Array, dtype: npt.DTypeLike) -> None:
        self._factor = np.ascontiguousarray(-2.0 * centers, dtype)
        self._bias = (centers * centers).sum(1).astype(dtype)[:, None]

    def moved(
        self, x: npt.NDArray[Any], old: Labels, scratch: Scratch
    ) -> tuple[npt.NDArray[np.intp], Labels]:
        """The rows whose nearest centre is not that of `old` (-1: none), and their new labels. A
        search for the lowest distance of every row costs as much as the distances do. So only the
        distance to the old centre is compared with the lowest one, and the search is left to the
        rows that differ."""
        distance = self._distances(x, scratch)
        count = len(x)
        if count == 0 or (old < 0).any():
            label = distance.argmin(0).astype(np.int32)
            moved = np.flatnonzero(label != old)
            return moved, label[moved]
        best = np.minimum.reduce(distance, axis=0, out=scratch.best[:count])
        at = np.multiply(old, count, out=scratch.at[:count])
        at += scratch.row[:count]
        own = np.take(distance.reshape(-1), at, out=scratch.own[:count], mode="clip")
        moved = np.flatnonzero(own != best)
        return moved, distance[:, moved].argmin(0).astype(np.int32)

    def label(self, x: npt.NDArray[Any], scratch: Scratch) -> Labels:
        """The nearest centre of each row; of equally near ones the first."""
        label: Labels = self._distances(x, scratch).argmin(0).astype(np.int32)
        return label

    def _distances(self, x: npt.NDArray[Any], scratch: Scratch) -> npt.NDArray[Any]:
        k, count = len(self._factor), len(x)
        out = scratch.distance[: k * count].reshape(k, count)
        distance: npt.NDArray[Any] = np.matmul(self._factor, x.T, out=out)
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

    def work(scratch: Scratch, block: slice) -> None:
        points = x[block] - offset
        labels[block] = nearest.label(points, scratch)
        apart = points - centers[labels[block]]
        np.einsum("nd,nd->n", apart, apart, out=squared[block])

    over_blocks(len(x), rows, threads, lambda: Scratch(len(centers), rows, x.dtype), work)
    return labels, squared


def check_count(k: int, points: int) -> None:
    if points < k:
        raise UsageError(f"k is {k}, and there are only {points} points: give a smaller k")


def mean_variance(points: Batch) -> Array:
    """The mean of the variances of the features."""
    x = np.asarray(points.x, np.float64)
    mean = np.average(x, axis=0, weights=points.weight)
    return np.asarray(np.average((x - mean) ** 2, axis=0, weights=points.weight).mean())


def plus_plus(
    x: npt.NDArray[Any],
    k: int,
    rng: np.random.Generator,
    weight: npt.NDArray[Any] | None = None,
) -> Array:
    """Choose k points as first centres by k-means++: a point is chosen with a probability that grows
    with its squared distance to the nearest centre. Of 2 + log k candidates the best is kept.

    The points are put into an order of their own first, so the choice depends neither on their order
    nor on whether equal points are repeated or weighed."""
    order = np.argsort(x @ np.cos(np.arange(1.0, x.shape[1] + 1.0)).astype(x.dtype), kind="stable")
    if weight is not None:
        order = order[np.asarray(weight)[order] > 0.0]
        weight = np.asarray(weight)[order]
    x = x[order]
    norms = np.einsum("nd,nd->n", x, x, dtype=np.float64)
    weight = np.ones(len(x)) if weight is None else np.asarray(weight, np.float64)
    centers = np.empty((k, x.shape[1]))
    chance = np.cumsum(weight)
    first = np.searchsorted(chance, rng.random() * chance[-1], side="right")
    centers[0] = x[min(int(first), len(x) - 1)]
    nearest = _squared(x, norms, centers[:1])[0]
    trials = 2 + int(np.log(k))
    for at in range(1, k):
        chance = np.cumsum(nearest * weight)
        found = np.searchsorted(chance, rng.random(trials) * chance[-1], side="right")
        found = np.minimum(found, len(x) - 1)
        distance = np.minimum(nearest, _squared(x, norms, x[found]))
        best = int((distance @ weight).argmin())
        nearest = distance[best]
        centers[at] = x[found[best]]
    return centers


def _squared(x: npt.NDArray[Any], norms: Array, centers: npt.NDArray[Any]) -> Array:
    """The squared distances of all points to some centres, one row per centre."""
    centers = np.asarray(centers, np.float64)
    product = (centers.astype(x.dtype) @ x.T).astype(np.float64)
    distance: Array = norms - 2.0 * product + (centers * centers).sum(1)[:, None]
    np.maximum(distance, 0.0, out=distance)
    return distance


def spread(statistics: Arrays, centers: Array) -> Array:
    """For each cluster the sum of the squared distances of its points to `centers`."""
    product = np.einsum("kd,kd->k", statistics["sum"], centers)
    norms = np.einsum("kd,kd->k", centers, centers)
    found: Array = statistics["square"] - 2.0 * product + statistics["count"] * norms
    return found


class Moves:
    """Points that move to other clusters, and how they change the statistics. The moves of several
    blocks are added up together, because each time costs about as much as some hundred points."""

    def __init__(self, change: Arrays) -> None:
        self._change = change
        self._waiting: list[tuple[Any, Labels, Labels, Any]] = []
        self._count = 0

    def add(
        self,
        points: npt.NDArray[Any],
        old: Labels,
        new: Labels,
        weight: npt.NDArray[Any] | None,
    ) -> None:
        """Move points from their old clusters (-1: none) to their new ones."""
        self._waiting.append((points, old, new, weight))
        self._count += len(points)
        if self._count >= _TOGETHER:
            self._add_up()

    def total(self) -> Arrays:
        """The change of the statistics by all moves."""
        self._add_up()
        return self._change

    def _add_up(self) -> None:
        if not self._waiting:
            return
        parts, old, new, weights = zip(*self._waiting, strict=True)
        points = np.concatenate(parts, dtype=np.float64)
        from_, to = np.concatenate(old), np.concatenate(new)
        one = np.ones(len(points)) if weights[0] is None else np.concatenate(weights, dtype=float)
        self._waiting, self._count = [], 0
        at = np.arange(len(points))
        signs = np.zeros((len(self._change["count"]), len(points)))
        signs[to, at] = one
        counted = np.flatnonzero(from_ >= 0)
        signs[from_[counted], at[counted]] -= one[counted]
        self._change["sum"] += signs @ points
        self._change["count"] += signs.sum(1)
        self._change["square"] += signs @ np.einsum("nd,nd->n", points, points)


_TOGETHER = 4_096
"""So many moves are added up together."""


def _fill(centers: Array, statistics: Arrays) -> None:
    """Give a cluster without points a new centre, near the cluster with the largest spread: that
    cluster is divided. The direction is the same on every worker."""
    left = spread(statistics, centers)
    count = statistics["count"].copy()
    for empty in np.flatnonzero(count <= 0):
        widest = int(left.argmax())
        if left[widest] <= 0.0 or count[widest] <= 0:
            return
        direction = np.random.default_rng(int(empty)).standard_normal(centers.shape[1])
        direction *= 0.1 * np.sqrt(left[widest] / count[widest]) / np.linalg.norm(direction)
        centers[empty] = centers[widest] + direction
        left[widest] /= 2.0
