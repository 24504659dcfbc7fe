"""Fuzzy C-Means as an estimator. scikit-learn has no such estimator; the interface is that of
scikit-learn's KMeans."""

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt

from polyrhythm.estimators.base import check_positive, check_weights, warn_few_points
from polyrhythm.estimators.conventions import ConvergenceWarning, check_is_fitted
from polyrhythm.estimators.kmeans import Clusterer
from polyrhythm.learn.pointwise.algorithm import Batch
from polyrhythm.learn.pointwise.fuzzy import FuzzyCMeansAlgorithm as Algorithm
from polyrhythm.learn.pointwise.fuzzy import degrees, equal_degrees
from polyrhythm.learn.pointwise.local import sample_of


class FuzzyCMeans(Clusterer):
    """Fuzzy C-Means clustering: a point belongs to every cluster to a degree. scikit-learn has no
    such estimator; the interface is that of `KMeans`, whose parameters mean the same here.

    Args:
        m: the fuzzifier, above 1. The larger it is, the more equal are the degrees of a point.
        workers: the number of worker processes. None: compute in this process.
        sync: the policy of the workers: "bspb" (new parameters after a pass over all points, as
            in scikit-learn), "bsp", "bspv" or "fsp".
        address: the address of a job of `polyrhythm.serve`, which this process joins as a worker.

    Attributes:
        cluster_centers_: the centres.
        labels_: the cluster of the highest degree of each point.
        objective_: the value that the fit has minimised.
        n_iter_: the number of passes.

    Example:
        >>> from polyrhythm.cluster import FuzzyCMeans
        >>> X = np.array([[1.0, 2.0], [1.0, 4.0], [10.0, 2.0], [10.0, 4.0]])
        >>> model = FuzzyCMeans(n_clusters=2, random_state=0).fit(X)
        >>> model.predict_proba(X).sum(axis=1).round(6).tolist()
        [1.0, 1.0, 1.0, 1.0]
    """

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        m: float = 2.0,
        init: Any = "k-means++",
        n_init: Any = "auto",
        max_iter: int = 300,
        tol: float = 1e-4,
        verbose: int = 0,
        random_state: Any = None,
        workers: int | None = None,
        sync: str = "bspb",
        address: str | None = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.m = m
        self.init = init
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.verbose = verbose
        self.random_state = random_state
        self.workers = workers
        self.sync = sync
        self.address = address

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> "FuzzyCMeans":  # noqa: N803
        """Find the centres.

        Args:
            X: the points, one row for each.
            y: not used.
            sample_weight: the weight of each point; all weigh 1 by default.

        Returns:
            This estimator.

        Raises:
            ValueError: a parameter or a point cannot be used. The message names the row of a
                point that is NaN or infinite.
            RuntimeError: the job of the workers failed.
        """
        x = self._points(X, reset=True)
        self._check_options(x)
        check_positive("m", self.m, whole=False, least=1)
        if self.m == 1:
            raise ValueError("m is 1: the fuzzifier must be above 1; for m = 1 use KMeans")
        points = Batch(x, None, check_weights(sample_weight, x))
        algorithm = Algorithm(self.n_clusters, m=self.m, tol=self.tol)
        found = self._best(algorithm, points)
        self.cluster_centers_ = found.parameter["centers"].astype(x.dtype)
        self.objective_ = found.objectives[-1]
        self.n_iter_ = found.passes
        self._n_features_out = self.n_clusters
        self.labels_ = self._degrees(x).argmax(0).astype(np.int32)
        warn_few_points(x, self.n_clusters, "n_clusters")
        sample = sample_of(points, algorithm.sample_points, np.random.default_rng(0))
        fault = equal_degrees(sample.x, found.parameter["centers"], self.m)
        if fault is not None:
            warnings.warn(fault, ConvergenceWarning, stacklevel=2)
        return self

    def _degrees(self, x: npt.NDArray[Any]) -> npt.NDArray[Any]:
        offset = x.mean(0)
        return degrees(x - offset, self.cluster_centers_.astype(np.float64) - offset, self.m)[1]

    def predict(self, X: Any) -> npt.NDArray[np.int32]:  # noqa: N803
        """Return the cluster of the highest degree for each point.

        Args:
            X: the points, one row for each.
        """
        found: npt.NDArray[np.int32] = self.predict_proba(X).argmax(1).astype(np.int32)
        return found

    def predict_proba(self, X: Any) -> npt.NDArray[Any]:  # noqa: N803
        """Return the degrees to which the points belong to the clusters. Each row adds up to 1.

        Args:
            X: the points, one row for each.
        """
        check_is_fitted(self)
        return np.ascontiguousarray(self._degrees(self._points(X, reset=False)).T)

    def transform(self, X: Any) -> npt.NDArray[Any]:  # noqa: N803
        """Return the degrees to which the points belong to the clusters, as `predict_proba` does.

        Args:
            X: the points, one row for each.
        """
        return self.predict_proba(X)
