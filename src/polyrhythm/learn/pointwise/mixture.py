"""Gaussian mixtures by statistics: for each component the sums of r, r x and r x^2 (diagonal) or r
x x^T (full), where r is the probability that the point comes from the component; and the entropy of
these probabilities, summed over all points.

The objective is -F(Q, theta) of FSP's Eq. 2. F is the expected log-probability of points and
components, which follows from the sums, plus the entropy. The probabilities of a point are those of
its last visit, so F is a lower bound of the log-likelihood. *No visit and no M-step makes F
smaller* (FSP's Theorem 2). The only exception: `regularisation` moves variances away from the
values with the largest F, which matters for variances as small as the regularisation.

Points are taken relative to a fixed offset, the mean of a sample, so that float32 is precise
enough.
"""

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from polyrhythm.errors import UsageError
from polyrhythm.learn.pointwise.algorithm import Algorithm, Batch, Check, Memory
from polyrhythm.learn.pointwise.blocks import block_rows, over_blocks
from polyrhythm.learn.pointwise.fuzzy import add_up
from polyrhythm.learn.pointwise.kmeans import KMeansAlgorithm, above_rounding, check_count, rounded
from polyrhythm.learn.pointwise.layout import Array, Arrays, Shape
from polyrhythm.learn.pointwise.local import fit_local

Covariance = Literal["diag", "full"]


class GaussianMixtureAlgorithm(Algorithm):
    """`covariance`: "diag" or "full". `regularisation` is added to every variance. `tol`: the job
    ends when the mean log-likelihood of a point grows by less than this from one check to the next.
    As in scikit-learn, it is the log-likelihood before the M-step. If not all points were visited
    with the same parameters, F replaces it."""

    name = "gmm"

    def __init__(
        self,
        k: int,
        *,
        covariance: Covariance = "diag",
        tol: float = 1e-3,
        regularisation: float = 1e-6,
        threads: int = 1,
    ) -> None:
        if k < 1:
            raise UsageError(f"k is {k}: a positive number of components is needed")
        if covariance not in ("diag", "full"):
            raise UsageError(f"covariance is {covariance!r}: give 'diag' or 'full'")
        self.k, self.covariance, self.tol = k, covariance, tol
        self.regularisation, self.threads = regularisation, threads
        self.sample_points = max(10_000, 100 * k)
        self._kept: tuple[Arrays, Density] | None = None

    def init_parameter(self, sample: Batch, rng: np.random.Generator) -> Arrays:
        """Divide the sample by KMeans, and compute the parameters of these parts."""
        check_count(self.k, len(sample))
        found = fit_local(KMeansAlgorithm(self.k), sample, rng=rng, max_passes=20)
        offset = rounded(np.asarray(sample.x, np.float64).mean(0))
        label = found.memory["label"]
        share = (label == np.arange(self.k)[:, None]).astype(np.float64)
        points = sample.x.astype(np.float64) - offset
        return self.from_shares(points, share, offset)

    def from_shares(self, points: Array, share: Array, offset: Array) -> Arrays:
        """The parameters if each point belongs to each component by the fraction `share`, which has
        one row per component."""
        statistics = {
            "count": share.sum(1),
            "sum": share @ points,
            "square": _squares(share, points, self.covariance),
            "entropy": np.zeros(()),
        }
        d = points.shape[1]
        shape = (self.k, d) if self.covariance == "diag" else (self.k, d, d)
        old = {
            "weights": np.full(self.k, 1.0 / self.k),
            "means": np.zeros((self.k, d)),
            "covariances": np.broadcast_to(np.ones(d) if shape[1:] == (d,) else np.eye(d), shape),
            "offset": offset,
            "points": np.zeros(()),
        }
        return self.update_parameter(statistics, old)

    def statistics(self, parameter: Arrays) -> Mapping[str, Shape]:
        return {
            "count": (self.k,),
            "sum": parameter["means"].shape,
            "square": parameter["covariances"].shape,
            "entropy": (),
        }

    def update_points(self, batch: Batch, parameter: Arrays, memory: Memory) -> Arrays:
        x = batch.x
        density = self._density(parameter, x.dtype)
        layout = self.layout(parameter)
        d = x.shape[1]
        rows = block_rows(density.dtype.itemsize * (2 * d + 2 * self.k), 4096)

        def begin() -> tuple[Arrays, npt.NDArray[Any]]:
            return layout.zeros(), np.empty((rows, 2 * d if density.diagonal else d), density.dtype)

        def work(state: tuple[Arrays, npt.NDArray[Any]], block: slice) -> None:
            total, scratch = state
            points = density.features(x[block], scratch)
            share, entropy = shares_and_entropy(
                density.joint(points), None if batch.weight is None else batch.weight[block]
            )
            total["entropy"] += entropy
            total["count"] += share.sum(1, dtype=np.float64)
            if density.diagonal:
                product = share @ points
                total["sum"] += product[:, :d]
                total["square"] += product[:, d:]
            else:
                total["sum"] += share @ points
                total["square"] += _squares(share, points, "full")

        states = over_blocks(len(batch), rows, self.threads, begin, work)
        return add_up([total for total, _ in states])

    def update_parameter(self, statistics: Arrays, old: Arrays) -> Arrays:
        """*A component without points keeps its mean and covariance.* Points belong to components
        only with a probability, so "without points" means: the component's sum is not well above
        the rounding errors of the sum over all components."""
        count = statistics["count"]
        filled = above_rounding(count, _LEAST)
        safe = np.where(filled, count, 1.0)
        centred = statistics["sum"] / safe[:, None]
        means = np.where(filled[:, None], centred + old["offset"], old["means"])
        if self.covariance == "diag":
            found = statistics["square"] / safe[:, None] - centred**2
            found = np.maximum(found, 0.0) + self.regularisation
            covariances = np.where(filled[:, None], found, old["covariances"])
        else:
            found = statistics["square"] / safe[:, None, None]
            found = found - centred[:, :, None] * centred[:, None, :]
            found = found + self.regularisation * np.eye(centred.shape[1])
            covariances = np.where(filled[:, None, None], found, old["covariances"])
        weights = np.where(filled, count, np.finfo(np.float64).eps)
        return {
            "weights": weights / weights.sum(),
            "means": means,
            "covariances": covariances,
            "offset": old["offset"],
            "points": np.asarray(count.sum()),
        }

    def objective(self, statistics: Arrays, parameter: Arrays) -> float:
        """-F(Q, theta) of FSP's Eq. 2. If all points were last visited with these parameters, F is
        their log-likelihood; otherwise it is smaller."""
        kept = self._kept
        density = kept[1] if kept and kept[0] is parameter else Density(parameter, np.float64)
        return -(density.expected(statistics) + float(statistics["entropy"]))

    def terminated(self, check: Check) -> bool:
        return abs(check.gain_before) < self.tol * float(check.new["points"])

    def _density(self, parameter: Arrays, dtype: npt.DTypeLike) -> "Density":
        """The density under these parameters. It is kept for the next call, because a worker visits
        many blocks with the same parameters."""
        kept = self._kept
        if kept is None or kept[0] is not parameter or kept[1].asked != dtype:
            kept = self._kept = (parameter, Density(parameter, dtype))
        return kept[1]


class Density:
    """The log-probability of points and components under given parameters. The computation uses
    `dtype`, which is the type of the points, or float64 if a component is narrow in some direction.
    Otherwise the squares of the points would lose the digits in which the points of that component
    differ. A column with few distinct values, as in HIGGS, makes a component narrow."""

    def __init__(self, parameter: Arrays, dtype: npt.DTypeLike) -> None:
        means = parameter["means"] - parameter["offset"]
        covariances = parameter["covariances"]
        k, d = means.shape
        self.diagonal = covariances.ndim == 2
        constant = np.log(parameter["weights"]) - 0.5 * d * np.log(2.0 * np.pi)
        variances = covariances if self.diagonal else np.einsum("kdd->kd", covariances)
        # for each column, the largest mean square of its points in a component
        extent = (means**2 + variances).max(0)
        if self.diagonal:
            if (covariances <= 0.0).any():
                raise UsageError(_SINGULAR)
            precision = 1.0 / covariances
            narrow = (extent * precision).max()
            constant += 0.5 * np.log(precision).sum(1) - 0.5 * (means**2 * precision).sum(1)
            factor = np.hstack([means * precision, -0.5 * precision])
        else:
            roots = np.stack([root_of_precision(covariance) for covariance in covariances])
            constant += np.log(np.einsum("kdd->kd", roots)).sum(1)
            narrow = np.einsum("d,kde->ke", extent, roots**2).max()
            factor = np.empty((k, 0))
        self.asked = np.dtype(dtype)
        """The dtype for which this object was made."""
        self.dtype = dtype = self.asked if narrow < _NARROW else np.dtype(np.float64)
        self._offset = parameter["offset"].astype(dtype)
        if not self.diagonal:
            centres = np.einsum("kd,kde->ke", means, roots)
            self._roots, self._centres = roots.astype(dtype), centres.astype(dtype)
        self._exact: tuple[Array, ...] = (constant, factor)
        """The same density in float64, for sums over all points."""
        if not self.diagonal:
            self._exact = (constant, roots, centres)
        self._factor = np.ascontiguousarray(factor, dtype)
        self._constant = constant.astype(dtype)[:, None]

    def features(
        self, x: npt.NDArray[Any], out: npt.NDArray[Any] | None = None
    ) -> npt.NDArray[Any]:
        """The summands of the statistics: the points relative to the offset, and with diagonal
        covariances also their squares."""
        count, d = x.shape
        if out is None:
            out = np.empty((count, 2 * d if self.diagonal else d), self.dtype)
        out = out[:count]
        np.subtract(x, self._offset, out=out[:, :d])
        if self.diagonal:
            np.multiply(out[:, :d], out[:, :d], out=out[:, d:])
        return out

    def joint(self, features: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """log p(point, component), one row per component."""
        if self.diagonal:
            logs = self._factor @ features.T
            logs += self._constant
            return logs  # type: ignore[no-any-return]
        logs = np.empty((len(self._roots), len(features)), features.dtype)
        for k, (root, centre) in enumerate(zip(self._roots, self._centres, strict=True)):
            apart = features @ root
            apart -= centre
            np.einsum("nd,nd->n", apart, apart, out=logs[k])
        logs *= -0.5
        logs += self._constant
        return logs

    def expected(self, statistics: Arrays) -> float:
        """The sum of r log p(point, component) over all points and components. It is linear in the
        statistics."""
        count = statistics["count"]
        found = float(count @ self._exact[0])
        if self.diagonal:
            factor = self._exact[1]
            return found + float(
                np.vdot(factor, np.hstack([statistics["sum"], statistics["square"]]))
            )
        roots, centres = self._exact[1:]
        squared = np.vdot(statistics["square"] @ roots, roots)
        product = np.einsum("kd,kde->ke", statistics["sum"], roots)
        squared += (centres * (count[:, None] * centres - 2.0 * product)).sum()
        return found - 0.5 * float(squared)


def shares_and_entropy(
    logs: npt.NDArray[Any], weight: npt.NDArray[Any] | None
) -> tuple[npt.NDArray[Any], float]:
    """The probability of each component for each point, and the sum of the entropies of these
    probabilities, both times the weights of the points. `logs` is overwritten."""
    logs -= logs.max(0)
    share = np.exp(logs)
    total = share.sum(0)
    share /= total
    spread = np.log(total)  # log(share) = logs - spread
    if weight is not None:
        share *= weight
        spread *= weight
    inner = np.vdot(share, logs)
    if np.isnan(inner):  # a probability is 0, and its logarithm is minus infinity
        inner = np.vdot(share, np.where(share > 0.0, logs, 0.0))
    return share, float(spread.sum(dtype=np.float64)) - float(inner)


def shares(logs: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """The probability of each component for each point, and the log-likelihood of each point. The
    probabilities are written into `logs`."""
    highest = logs.max(0)
    logs -= highest
    share = np.exp(logs, out=logs)
    total = share.sum(0)
    share /= total
    return share, highest + np.log(total)


_LEAST = 2.0**-26
"""A component with a smaller fraction of the points gets no separate mean and covariance: rounding
errors of sums over all points would exceed 1e-7 of its sums."""
_NARROW = 1e3
"""A component is narrow if the mean square of the points is this many times its variance. In
float32, the log-probabilities of narrow components would have errors above 1e-4."""
_SINGULAR = (
    "a covariance is singular: in some direction, all points of a component have the same value; give"
    " fewer components or a larger reg_covar"
)


def root_of_precision(covariance: Array) -> Array:
    """The matrix L^-T for the covariance L L^T. The product of (x - mean) and this matrix has unit
    variances."""
    try:
        lower = np.linalg.cholesky(covariance)
    except np.linalg.LinAlgError:
        raise UsageError(_SINGULAR) from None
    found: Array = np.linalg.inv(lower).T
    return found


def _squares(
    share: npt.NDArray[Any], points: npt.NDArray[Any], covariance: Covariance
) -> npt.NDArray[Any]:
    if covariance == "diag":
        found: npt.NDArray[Any] = share @ (points * points)
        return found
    return np.stack([(points * weight[:, None]).T @ points for weight in share])
