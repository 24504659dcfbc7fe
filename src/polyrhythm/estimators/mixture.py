"""Gaussian mixtures with the interface of scikit-learn."""

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt

from polyrhythm.errors import UsageError
from polyrhythm.estimators.base import Estimator, check_positive, warn_few_points
from polyrhythm.estimators.conventions import (
    ConvergenceWarning,
    DensityMixin,
    check_is_fitted,
    check_random_state,
)
from polyrhythm.estimators.fitting import Fitted
from polyrhythm.learn.pointwise.algorithm import Batch
from polyrhythm.learn.pointwise.kmeans import plus_plus, rounded
from polyrhythm.learn.pointwise.layout import Array, Arrays
from polyrhythm.learn.pointwise.local import sample_of
from polyrhythm.learn.pointwise.mixture import Density, root_of_precision, shares
from polyrhythm.learn.pointwise.mixture import GaussianMixtureAlgorithm as Algorithm

_ROUNDING = 1e-6
_STARTS = ("kmeans", "k-means++", "random", "random_from_data")


class GaussianMixture(DensityMixin, Estimator):
    """A mixture of normal distributions with the interface of
    `sklearn.mixture.GaussianMixture`.

    All parameters of scikit-learn's class are accepted and mean the same. `covariance_type` is
    "full" or "diag". The further parameters are these:

    Args:
        workers: the number of worker processes. None: compute in this process.
        sync: the policy of the workers: "bspb" (new parameters after a pass over all points, as
            in scikit-learn), "bsp", "bspv" or "fsp".
        address: the address of a job of `polyrhythm.serve`, which this process joins as a worker.

    Attributes:
        weights_: the weight of each component.
        means_: the mean of each component.
        covariances_: the covariance of each component: a matrix, or a row of variances if
            `covariance_type` is "diag".
        converged_: whether the fit has converged within `max_iter` passes.
        n_iter_: the number of passes.
        lower_bound_: the mean log-likelihood of a point at the end of the fit.

    Example:
        >>> from polyrhythm.mixture import GaussianMixture
        >>> rng = np.random.default_rng(0)
        >>> X = np.concatenate([rng.normal(0, 1, (200, 1)), rng.normal(9, 1, (200, 1))])
        >>> model = GaussianMixture(n_components=2, random_state=0).fit(X)
        >>> sorted(model.means_.ravel().round().tolist())
        [0.0, 9.0]
    """

    def __init__(
        self,
        n_components: int = 1,
        *,
        covariance_type: str = "full",
        tol: float = 1e-3,
        reg_covar: float = 1e-6,
        max_iter: int = 100,
        n_init: int = 1,
        init_params: str = "kmeans",
        weights_init: Any = None,
        means_init: Any = None,
        precisions_init: Any = None,
        random_state: Any = None,
        warm_start: bool = False,
        verbose: int = 0,
        verbose_interval: int = 10,
        workers: int | None = None,
        sync: str = "bspb",
        address: str | None = None,
    ) -> None:
        self.n_components = n_components
        self.covariance_type = covariance_type
        self.tol = tol
        self.reg_covar = reg_covar
        self.max_iter = max_iter
        self.n_init = n_init
        self.init_params = init_params
        self.weights_init = weights_init
        self.means_init = means_init
        self.precisions_init = precisions_init
        self.random_state = random_state
        self.warm_start = warm_start
        self.verbose = verbose
        self.verbose_interval = verbose_interval
        self.workers = workers
        self.sync = sync
        self.address = address

    def fit(self, X: Any, y: Any = None) -> "GaussianMixture":  # noqa: N803
        """Find the mixture.

        Args:
            X: the points, one row for each.
            y: not used.

        Returns:
            This estimator.

        Raises:
            ValueError: a parameter or a point cannot be used. The message names the row of a
                point that is NaN or infinite.
            RuntimeError: the job of the workers failed.
        """
        x = self._points(X, reset=True, least=2)
        self._check_options(x)
        points = Batch(x)
        algorithm = Algorithm(
            self.n_components,
            covariance=self.covariance_type,  # type: ignore[arg-type]
            tol=self.tol,
            regularisation=self.reg_covar,
        )
        rng = self._rng()
        best: Fitted | None = None
        warm = self.warm_start and hasattr(self, "means_")
        starts = 1 if warm else self.n_init
        self._check_starts(starts)
        for _ in range(starts):
            first = self._first(algorithm, points, rng, warm=warm)
            found = self._run(algorithm, points, rng=rng, max_passes=self.max_iter, parameter=first)
            if best is None or found.objectives[-1] < best.objectives[-1]:
                best = found
        assert best is not None
        self._keep(best)
        warn_few_points(x, self.n_components, "n_components")
        if not self.converged_:
            warnings.warn(
                f"the mixture has not converged in {self.max_iter} passes: increase max_iter or tol",
                ConvergenceWarning,
                stacklevel=2,
            )
        return self

    def _check_options(self, x: npt.NDArray[Any]) -> None:
        check_positive("n_components", self.n_components)
        check_positive("max_iter", self.max_iter)
        check_positive("n_init", self.n_init)
        check_positive("tol", self.tol, whole=False, least=0)
        check_positive("reg_covar", self.reg_covar, whole=False, least=0)
        if self.covariance_type not in ("full", "diag"):
            raise ValueError(f"covariance_type is {self.covariance_type!r}: give 'full' or 'diag'")
        if self.init_params not in _STARTS:
            raise ValueError(f"init_params is {self.init_params!r}: give one of {_STARTS}")
        if len(x) < self.n_components:
            raise ValueError(
                f"Expected n_samples >= n_components but got n_components = {self.n_components},"
                f" n_samples = {len(x)}"
            )

    def _first(
        self, algorithm: Algorithm, points: Batch, rng: np.random.Generator, *, warm: bool
    ) -> Arrays:
        if warm:
            return self._parameter()
        sample = sample_of(points, algorithm.sample_points, rng)
        try:
            if self.init_params == "kmeans":
                first = algorithm.init_parameter(sample, rng)
            else:
                first = self._drawn(algorithm, sample, rng)
        except UsageError as error:
            raise ValueError(str(error)) from error
        if self.weights_init is not None:
            first["weights"] = _weights(self.weights_init, first["weights"])
        if self.means_init is not None:
            first["means"] = _given("means_init", self.means_init, first["means"])
        if self.precisions_init is not None:
            given = _given("precisions_init", self.precisions_init, first["covariances"])
            first["covariances"] = _inverse(given)
        return first

    def _drawn(self, algorithm: Algorithm, sample: Batch, rng: np.random.Generator) -> Arrays:
        """First parameters from random shares of the points, or from single points."""
        x = sample.x.astype(np.float64)
        offset = rounded(x.mean(0))
        k = self.n_components
        if self.init_params == "random":
            share = rng.random((k, len(x)))
            share /= share.sum(0)
        else:
            if self.init_params == "k-means++":
                chosen = plus_plus(x, k, rng)
            else:
                chosen = x[rng.choice(len(x), k, replace=False)]
            share = (chosen[:, None, :] == x[None, :, :]).all(2).astype(np.float64)
        return algorithm.from_shares(x - offset, share, offset)

    def _keep(self, found: Fitted) -> None:
        parameter = found.parameter
        self.weights_ = parameter["weights"].copy()
        self.means_ = parameter["means"].copy()
        self.covariances_ = parameter["covariances"].copy()
        self._offset = parameter["offset"].copy()
        if self.covariance_type == "diag":
            self.precisions_ = 1.0 / self.covariances_
            self.precisions_cholesky_ = np.sqrt(self.precisions_)
        else:
            try:
                roots = np.stack([root_of_precision(each) for each in self.covariances_])
            except UsageError as error:
                raise ValueError(str(error)) from error
            self.precisions_cholesky_ = roots
            self.precisions_ = roots @ roots.transpose(0, 2, 1)
        self.converged_ = found.terminated
        self.n_iter_ = found.passes
        points = float(parameter["points"])
        self.lower_bounds_ = [-objective / points for objective in found.objectives]
        self.lower_bound_ = self.lower_bounds_[-1]
        self._seen = points

    def _parameter(self) -> Arrays:
        return {
            "weights": self.weights_,
            "means": self.means_,
            "covariances": self.covariances_,
            "offset": self._offset,
            "points": np.asarray(self._seen),
        }

    def _joint(self, x: Any) -> npt.NDArray[Any]:
        check_is_fitted(self)
        points = self._points(x, reset=False)
        density = Density(self._parameter(), points.dtype)
        return density.joint(density.features(points))

    def predict(self, X: Any) -> npt.NDArray[np.int64]:  # noqa: N803
        """Return the most probable component of each point.

        Args:
            X: the points, one row for each.
        """
        found: npt.NDArray[np.int64] = self._joint(X).argmax(0)
        return found

    def fit_predict(self, X: Any, y: Any = None) -> npt.NDArray[np.int64]:  # noqa: N803
        """Find the mixture, and return the most probable component of each point.

        Args:
            X: the points, one row for each.
            y: not used.
        """
        return self.fit(X).predict(X)

    def predict_proba(self, X: Any) -> npt.NDArray[Any]:  # noqa: N803
        """Return the probability of each component for each point. Each row adds up to 1.

        Args:
            X: the points, one row for each.
        """
        return np.ascontiguousarray(shares(self._joint(X))[0].T)

    def score_samples(self, X: Any) -> npt.NDArray[Any]:  # noqa: N803
        """Return the log-likelihood of each point.

        Args:
            X: the points, one row for each.
        """
        return shares(self._joint(X))[1]

    def score(self, X: Any, y: Any = None) -> float:  # noqa: N803
        """Return the mean log-likelihood of a point.

        Args:
            X: the points, one row for each.
            y: not used.
        """
        return float(self.score_samples(X).mean())

    def _free_numbers(self) -> int:
        k, d = self.means_.shape
        return int(k - 1 + k * d + (k * d if self.covariances_.ndim == 2 else k * d * (d + 1) // 2))

    def bic(self, X: Any) -> float:  # noqa: N803
        """Return the Bayesian information criterion of the mixture for these points. The lower,
        the better.

        Args:
            X: the points, one row for each.
        """
        return float(-2 * self.score_samples(X).sum() + self._free_numbers() * np.log(len(X)))

    def aic(self, X: Any) -> float:  # noqa: N803
        """Return the Akaike information criterion of the mixture for these points. The lower, the
        better.

        Args:
            X: the points, one row for each.
        """
        return float(-2 * self.score_samples(X).sum() + 2 * self._free_numbers())

    def sample(self, n_samples: int = 1) -> tuple[Array, npt.NDArray[np.int64]]:
        """Draw points from the mixture.

        Args:
            n_samples: how many points to draw.

        Returns:
            The points, and the component of each.
        """
        check_is_fitted(self)
        check_positive("n_samples", n_samples)
        rng = check_random_state(self.random_state)
        counts = rng.multinomial(n_samples, self.weights_)
        parts = []
        for mean, covariance, count in zip(self.means_, self.covariances_, counts, strict=True):
            full = np.diag(covariance) if covariance.ndim == 1 else covariance
            parts.append(rng.multivariate_normal(mean, full, int(count)))
        return np.concatenate(parts), np.repeat(np.arange(len(counts)), counts)


def _given(name: str, value: Any, like: Array) -> Array:
    found = np.asarray(value, np.float64)
    if found.shape != like.shape:
        raise ValueError(f"{name} has the shape {found.shape} and needs {like.shape}")
    if not np.isfinite(found).all():
        raise ValueError(f"{name} contains NaN or infinity: give finite numbers")
    return found


def _weights(value: Any, like: Array) -> Array:
    found = _given("weights_init", value, like)
    if found.min() < 0 or abs(found.sum() - 1) > _ROUNDING:
        raise ValueError(
            f"weights_init is {found.tolist()}: give numbers from 0 to 1 whose sum is 1"
        )
    return found


def _inverse(precisions: Array) -> Array:
    """The covariances that belong to the given precisions: for each component a row of numbers, or a
    matrix."""
    if precisions.ndim == 2:
        if precisions.min() <= 0:
            raise ValueError("precisions_init contains a number that is not above 0")
        return 1.0 / precisions
    symmetric = np.allclose(precisions, precisions.transpose(0, 2, 1))
    if not symmetric or np.linalg.eigvalsh(precisions).min() <= 0:
        raise ValueError(
            "precisions_init contains a matrix that is not symmetric, positive-definite"
        )
    return np.asarray(np.linalg.inv(precisions), np.float64)
