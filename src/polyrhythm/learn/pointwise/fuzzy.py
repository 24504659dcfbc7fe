"""Fuzzy C-Means by statistics: every point belongs to every cluster to a degree (Bezdek, 1981).

The statistics are for each cluster the sums of u^m x and u^m, where u is the degree, and for all
clusters together the sum of u^m |x|^2. The objective, the sum of u^m d^2 with the distances d, follows
from them for any centres. *No visit and no M-step makes it larger* (FSP's Theorem 2). As for KMeans,
points and centres are taken relative to an offset.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from polyrhythm.errors import UsageError
from polyrhythm.learn.pointwise.algorithm import Algorithm, Batch, Check, Memory
from polyrhythm.learn.pointwise.blocks import block_rows, over_blocks
from polyrhythm.learn.pointwise.kmeans import above_rounding, first_centers
from polyrhythm.learn.pointwise.layout import Array, Arrays, Shape


class FuzzyCMeansAlgorithm(Algorithm):
    """`m`: the fuzzifier, above 1; near 1 the result is that of KMeans. `tol`: as for KMeans."""

    name = "fcm"
    starts_from_sample = True

    def __init__(self, k: int, *, m: float = 2.0, tol: float = 1e-4, threads: int = 1) -> None:
        if k < 1:
            raise UsageError(f"k is {k}: a positive number of clusters is needed")
        if not 1.0 < m < np.inf:
            raise UsageError(f"the fuzzifier m is {m}: it must be above 1")
        self.k, self.m, self.tol, self.threads = k, m, tol, threads
        self.sample_points = max(10_000, 100 * k)

    def init_parameter(self, sample: Batch, rng: np.random.Generator) -> Arrays:
        return first_centers(self.k, sample, rng)

    def statistics(self, parameter: Arrays) -> Mapping[str, Shape]:
        k, d = parameter["centers"].shape
        return {"sum": (k, d), "count": (k,), "square": ()}

    def update_points(self, batch: Batch, parameter: Arrays, memory: Memory) -> Arrays:
        x, centers = batch.x, parameter["centers"] - parameter["offset"]
        offset = parameter["offset"].astype(x.dtype) if parameter["offset"].any() else None
        layout = self.layout(parameter)
        rows = block_rows(x.shape[1] * x.itemsize + 2 * x.itemsize * self.k)

        def work(total: Arrays, block: slice) -> None:
            points = x[block] if offset is None else x[block] - offset
            norms, degree = degrees(points, centers, self.m)
            if self.m == 2.0:
                powered = np.multiply(degree, degree, out=degree)
            else:
                powered = np.power(degree, self.m, out=degree)
            if batch.weight is not None:
                powered *= batch.weight[block]
            total["sum"] += powered @ points
            total["count"] += powered.sum(1, dtype=np.float64)
            total["square"] += (powered @ norms).sum(dtype=np.float64)

        return add_up(over_blocks(len(batch), rows, self.threads, layout.zeros, work))

    def update_parameter(self, statistics: Arrays, old: Arrays) -> Arrays:
        count = statistics["count"]
        centers = old["centers"].copy()
        filled = above_rounding(count)
        centers[filled] = statistics["sum"][filled] / count[filled, None] + old["offset"]
        return {**old, "centers": centers}

    def objective(self, statistics: Arrays, parameter: Arrays) -> float:
        """The sum of u^m d^2 over all points and clusters, with the degrees u of the last visits."""
        centers = parameter["centers"] - parameter["offset"]
        found = float(statistics["square"]) - 2.0 * float(np.vdot(statistics["sum"], centers))
        return max(0.0, found + float(statistics["count"] @ (centers * centers).sum(1)))

    def terminated(self, check: Check) -> bool:
        moved = float(((check.new["centers"] - check.old["centers"]) ** 2).sum())
        return moved <= self.tol * float(check.new["variance"])


def degrees(
    x: npt.NDArray[Any], centers: Array, m: float
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """The squared norms of the points, and the degrees to which they belong to clusters, one row per
    cluster. A point that lies on a centre belongs to that cluster alone."""
    c = centers.astype(x.dtype)
    squared = (c * -2.0) @ x.T
    squared += (c * c).sum(1)[:, None]
    norms = np.einsum("nd,nd->n", x, x)
    squared += norms
    # squared distances below the rounding error of this sum count as equal
    least = np.finfo(x.dtype).eps * max(1e-30, float(np.abs(squared).max(initial=0.0)))
    np.maximum(squared, least, out=squared)
    near = squared / squared.min(0)
    degree = np.reciprocal(near, out=near)
    if m != 2.0:
        np.power(degree, 1.0 / (m - 1.0), out=degree)
    degree /= degree.sum(0)
    return norms, degree


def equal_degrees(x: npt.NDArray[Any], centers: Array, m: float) -> str | None:
    """If points belong to all clusters to nearly the same degree, the centres say nothing about the
    points. Then return a sentence that says this, and what to do. `x`: all points, or a sample of
    them."""
    k, offset = len(centers), centers.mean(0)
    near = np.asarray(x, np.float64) - offset
    near = near[(near != 0.0).any(1)]
    if k < 2 or not len(near):
        return None
    degree = degrees(near, centers - offset, m)[1]
    if degree.max(0).mean() - 1.0 / k > _EQUAL * (1.0 - 1.0 / k):
        return None
    found = (
        f"fuzzy c-means has found no clusters: points belong to each of the {k} clusters to a degree of"
        f" about 1/{k}, and the centres lie close together"
    )
    most = largest_fuzzifier(near)
    if m < most:
        return f"{found}; give a smaller m than {m:g}, or use k-means"
    return (
        f"{found}. With m = {m:g} the best place for all centres is the mean of these points; give an m"
        f" below {most:.4g}, or use k-means"
    )


_EQUAL = 0.02
"""A limit for centres that lie at one place: the highest degree of a point then exceeds 1/k by less
than this share of the difference to 1, because a fit ends before the centres are exactly equal. On
real data with clusters the share is above 0.05."""


def largest_fuzzifier(near: npt.NDArray[np.float64]) -> float:
    """The largest m for which the objective has no minimum with all centres at the mean of the
    points (Yu, Cheng and Huang, 2004). The limit is low if the points have many features and spread
    in many directions. `near`: the points relative to their mean, without those that lie there."""
    unit = near / np.linalg.norm(near, axis=1)[:, None]
    spread = float(np.linalg.eigvalsh(unit.T @ unit / len(unit))[-1])
    return 1.0 / (1.0 - 2.0 * spread) if spread < 0.5 else np.inf


def add_up(totals: list[Arrays]) -> Arrays:
    """Add the results of several threads."""
    first = totals[0]
    for other in totals[1:]:
        for name in first:
            first[name] += other[name]
    return first
