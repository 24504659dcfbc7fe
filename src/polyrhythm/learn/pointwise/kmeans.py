"""KMeans by statistics (FSP's section 2.2): the sum and the number of the points of each cluster.

A point's memory is its cluster, and how far the centres must move before the point can change its
cluster (`drift.py`). Points that cannot change their cluster are skipped. Only points that move to
another cluster change the statistics. Their summands are computed in float64, so nearly nothing is
left of a point that is subtracted again. *Whether a cluster has points is decided by the number of
its points, which is exact, and not by the sum of their weights.* Points with weight 0 do not count.

Squared distances lose digits far from the origin. So the parameters have an offset, which is subtracted
from the points and the centres before anything is computed. The statistics are those of the differences.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from polyrhythm.errors import UsageError
from polyrhythm.learn.pointwise.algorithm import Algorithm, Batch, Check, Memory
from polyrhythm.learn.pointwise.blocks import over_blocks
from polyrhythm.learn.pointwise.drift import Drift, Drifted
from polyrhythm.learn.pointwise.layout import Array, Arrays, Shape
from polyrhythm.learn.pointwise.nearest import (
    DISTANCE_BYTES,
    Labels,
    Nearest,
    Scratch,
    distance_rows,
    scratch_of,
)

_DENSE = 0.6
"""If more than this fraction of the points must be examined, all points are examined, because
selecting rows costs time too."""
_MANY_MOVES = 0.1
"""If more than this fraction of the points move, the centres will move far, and no bound would
hold. So no bounds are computed."""


class KMeansAlgorithm(Algorithm):
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
        self._drift = Drift()
        self._kept: tuple[Drifted, Nearest, np.dtype[Any]] | None = None

    def init_parameter(self, sample: Batch, rng: np.random.Generator) -> Arrays:
        return first_centers(self.k, sample, rng)

    def statistics(self, parameter: Arrays) -> Mapping[str, Shape]:
        k, d = parameter["centers"].shape
        return {"sum": (k, d), "count": (k,), "square": (k,), "points": (k,)}

    def memory(self, count: int) -> Memory:
        """`label`: the cluster of a point. `bound`: up to this drift of its cluster the point cannot
        change its cluster. The bound is compared with the drift that this object computes. `square`: the
        squared norm."""
        return {
            "label": np.full(count, -1, np.int32),
            "bound": np.full(count, -np.inf, np.float32),
            "square": np.zeros(count, np.float32),
        }

    def adopt(self, memory: Memory) -> Memory:
        return {**memory, "bound": np.full_like(memory["bound"], -np.inf)}

    def update_points(self, batch: Batch, parameter: Arrays, memory: Memory) -> Arrays:
        x = np.asarray(batch.x)
        label, bound, square = memory["label"], memory["bound"], memory["square"]
        drifted, nearest = self._drift_and_nearest(
            parameter["centers"] - parameter["offset"], x.dtype
        )
        offset = parameter["offset"].astype(x.dtype) if parameter["offset"].any() else None
        new = bool((label < 0).any())
        left = np.flatnonzero(~(bound > np.take(drifted.limit, label, mode="clip")))
        dense = len(left) > _DENSE * len(x)
        layout = self.layout(parameter)
        rows = distance_rows(x.shape[1], self.k, x.dtype)
        reach = np.inf if new else drifted.reach(square)

        def begin() -> tuple[Moves, Scratch]:
            return Moves(layout.zeros()), scratch_of(self.k, rows, x.dtype)

        def work(state: tuple[Moves, Scratch], block: slice) -> None:
            moves, scratch = state
            at: Any = block if dense else left[block]
            # `take` is faster, but copies all rows first if `x` has only some columns of a wider
            # array
            points = x.take(at, axis=0) if x.flags.c_contiguous and not dense else x[at]
            if offset is not None:
                points = points - offset
            old = label[at]
            weight = None if batch.weight is None else batch.weight[at]
            found = nearest.moved(points, None if new else old, scratch)
            if new:
                with np.errstate(over="ignore"):  # a point whose square overflows gets no bound
                    square[at] = moves.add_all(points, old, found.label, weight)
                bound[at] = np.where(old == found.label, bound[at], -np.inf)
                label[at] = found.label
                return
            moves.add(points, old, found.rows, found.label, weight)
            old[found.rows] = found.label
            if not dense:  # if `dense`, `old` is a view of `label`, so `label` is up to date
                label[at] = old
            if len(found.rows) < _MANY_MOVES * len(points):
                second = found.second(scratch)
                bound[at] = drifted.bound(found.best, second, square[at], old, reach)
            else:  # the bounds of moved points refer to their old clusters
                bound[found.rows + block.start if dense else at[found.rows]] = -np.inf

        count = len(x) if dense else len(left)
        states = over_blocks(count, rows, self.threads, begin, work)
        total = states[0][0].total()
        for moves, _ in states[1:]:
            for name, array in moves.total().items():
                total[name] += array
        return total

    def _drift_and_nearest(self, centers: Array, dtype: np.dtype[Any]) -> tuple[Drifted, Nearest]:
        """The drift of the clusters at these centres (relative to the offset), and the object that
        finds the nearest centres. Both are kept for the next call, because a worker visits many
        chunks with the same centres."""
        drifted, kept = self._drift.to(centers), self._kept
        if kept is None or kept[0] is not drifted or kept[2] != dtype:
            kept = self._kept = (drifted, Nearest(centers, dtype), dtype)
        return kept[0], kept[1]

    def update_parameter(self, statistics: Arrays, old: Arrays) -> Arrays:
        count = statistics["count"]
        filled = (statistics["points"] > 0.0) & above_rounding(count)
        centers = old["centers"].copy()
        centers[filled] = statistics["sum"][filled] / count[filled, None] + old["offset"]
        return {**old, "centers": centers}

    def repair(self, statistics: Arrays, new: Arrays) -> Arrays:
        """Move the centres of clusters without points. *While some points were not visited yet,
        they may belong to a cluster that seems empty, so its centre stays.*"""
        if (statistics["points"] > 0.0).all():
            return new
        offset = new["offset"]
        return {**new, "centers": _filled(new["centers"] - offset, statistics) + offset}

    def objective(self, statistics: Arrays, parameter: Arrays) -> float:
        """The sum of the squared distances of the points to the centres of their clusters."""
        centers = parameter["centers"] - parameter["offset"]
        return float(max(0.0, spread(statistics, centers).sum()))

    def terminated(self, check: Check) -> bool:
        moved = float(((check.new["centers"] - check.old["centers"]) ** 2).sum())
        return moved <= self.tol * float(check.new["variance"])


_ROUNDING = 2.0**-40


def above_rounding(weight: Array, least: float = _ROUNDING) -> npt.NDArray[np.bool_]:
    """Which clusters have points. Points are added to the weight of a cluster and subtracted from
    it, so rounding leaves a small weight in an empty cluster. `least`: the smallest weight that
    counts, as a fraction of all weights."""
    found: npt.NDArray[np.bool_] = weight > least * weight.sum()
    return found


def check_count(k: int, points: int) -> None:
    if points < k:
        raise UsageError(f"k is {k}, and there are only {points} points: give a smaller k")


_FAR = 100.0


def offset_of(x: npt.NDArray[Any]) -> Array:
    """What is subtracted from points before their distances are computed: their mean if they lie
    far from the origin compared with their spread. Otherwise zeros, because a subtraction costs
    time."""
    part = x[:: max(1, len(x) // 1000)].astype(np.float64)
    mean: Array = part.mean(0)
    if float((mean**2).sum()) <= _FAR * float(part.var(0).sum()):
        return np.zeros_like(mean)
    return rounded(mean)


def rounded(offset: Array) -> Array:
    """Round to a number of digits that float32 can represent, so that points of float32 and of
    float64 are shifted by the same numbers."""
    fraction, exponent = np.frexp(offset)
    found: Array = np.ldexp(np.round(fraction * 2.0**20), exponent - 20)
    return found


def first_centers(k: int, sample: Batch, rng: np.random.Generator) -> Arrays:
    """The first parameters, with the centres of k-means++."""
    check_count(k, len(sample))
    offset = offset_of(sample.x)
    near = sample.x - offset.astype(sample.x.dtype) if offset.any() else sample.x
    return given_centers(plus_plus(near, k, rng, sample.weight) + offset, sample, offset)


def given_centers(centers: Array, sample: Batch, offset: Array | None = None) -> Arrays:
    """The first parameters, with these centres. `sample`: some of the points, which determine the
    offset and the tolerance."""
    offset = offset_of(sample.x) if offset is None else offset
    return {"centers": centers, "variance": mean_variance(sample), "offset": offset}


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

    The points are first sorted by a function of their values. So the choice depends neither on the
    order in which they are given, nor on whether equal points are repeated or have a weight."""
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
    """For each cluster the sum of the squared distances of its points to `centers`, which are relative
    to the offset."""
    product = np.einsum("kd,kd->k", statistics["sum"], centers)
    norms = np.einsum("kd,kd->k", centers, centers)
    found: Array = statistics["square"] - 2.0 * product + statistics["count"] * norms
    return found


class Moves:
    """Collects points that move to other clusters, and the resulting change of the statistics. The
    moves of several blocks are added up together, because each addition costs about as much as some
    hundred points."""

    def __init__(self, change: Arrays) -> None:
        self._change = change
        self._cluster = np.arange(len(change["count"]), dtype=np.int32)[:, None]
        self._waiting: list[tuple[Any, Labels, Labels, Any]] = []
        self._count = 0
        self._together = min(_TOGETHER, DISTANCE_BYTES // (8 * len(self._cluster)))

    def add(
        self,
        points: npt.NDArray[Any],
        old: Labels,
        rows: npt.NDArray[np.intp],
        new: Labels,
        weight: npt.NDArray[Any] | None,
    ) -> None:
        """Move some rows of the points from their old clusters to their new ones."""
        if len(rows):
            some = None if weight is None else weight[rows]
            self._waiting.append((points.take(rows, axis=0), old[rows], new, some))
            self._count += len(rows)
            if self._count >= self._together:
                self._add_waiting()

    def add_all(
        self,
        points: npt.NDArray[Any],
        old: Labels,
        new: Labels,
        weight: npt.NDArray[Any] | None,
    ) -> npt.NDArray[np.float64]:
        """Move points to their first clusters. Some of them may already have a cluster (-1: none).
        Returns the squared norms of all points."""
        return self._add_up(points.astype(np.float64), old, new, weight)

    def total(self) -> Arrays:
        """The change of the statistics by all moves."""
        if self._waiting:
            self._add_waiting()
        return self._change

    def _add_waiting(self) -> None:
        parts, old, new, weights = zip(*self._waiting, strict=True)
        weight = None if weights[0] is None else np.concatenate(weights)
        points = np.concatenate(parts, dtype=np.float64)
        self._add_up(points, np.concatenate(old), np.concatenate(new), weight)
        self._waiting, self._count = [], 0

    def _add_up(
        self, points: npt.NDArray[np.float64], old: Labels, new: Labels, weight: Any
    ) -> npt.NDArray[np.float64]:
        square: npt.NDArray[np.float64] = np.einsum("nd,nd->n", points, points)
        signs = (self._cluster == new).astype(np.float64)
        if (old >= 0).any():
            signs -= self._cluster == old
        change = self._change
        if weight is None:
            count = points_of = signs.sum(1)
        else:
            points_of = signs @ (weight > 0.0)
            signs *= weight
            count = signs.sum(1)
        change["points"] += points_of
        change["count"] += count
        change["sum"] += signs @ points
        change["square"] += signs @ square
        return square


_TOGETHER = 4_096
"""The number of moves that are added up together. It is smaller with many clusters, because each
move then has a number for each cluster."""


def _filled(centers: Array, statistics: Arrays) -> Array:
    """Give a cluster without points a new centre, near the cluster with the largest spread: that
    cluster is divided. The direction is the same on every worker. The centres are relative to the
    offset."""
    centers = centers.copy()
    count = statistics["count"]
    filled = statistics["points"] > 0.0
    left = np.where(filled & above_rounding(count), spread(statistics, centers), 0.0)
    for empty in np.flatnonzero(~filled):
        widest = int(left.argmax())
        if left[widest] <= 0.0:
            break
        direction = np.random.default_rng(int(empty)).standard_normal(centers.shape[1])
        direction *= 0.1 * np.sqrt(left[widest] / count[widest]) / np.linalg.norm(direction)
        centers[empty] = centers[widest] + direction
        left[widest] /= 2.0
    return centers
