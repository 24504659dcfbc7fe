"""KMeans with the interface of scikit-learn."""

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt

from polyrhythm.estimators.base import Estimator, check_positive, check_size, check_weights
from polyrhythm.estimators.conventions import (
    ClassNamePrefixFeaturesOutMixin,
    ClusterMixin,
    ConvergenceWarning,
    TransformerMixin,
    check_is_fitted,
)
from polyrhythm.estimators.fitting import Fitted
from polyrhythm.io.limits import usable_cores
from polyrhythm.learn.pointwise.algorithm import Batch
from polyrhythm.learn.pointwise.kmeans import KMeansAlgorithm as Algorithm
from polyrhythm.learn.pointwise.kmeans import given_centers
from polyrhythm.learn.pointwise.layout import Array, Arrays
from polyrhythm.learn.pointwise.local import sample_of
from polyrhythm.learn.pointwise.nearest import labels_of


class Clusterer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClusterMixin, Estimator):
    """What KMeans and FuzzyCMeans share: the options of a fit and the choice of the first centres."""

    n_clusters: int
    init: Any
    n_init: Any
    max_iter: int
    tol: float

    def _check_options(self, x: npt.NDArray[Any]) -> None:
        check_positive("n_clusters", self.n_clusters)
        check_positive("max_iter", self.max_iter)
        check_positive("tol", self.tol, whole=False, least=0)
        if self.n_init != "auto":
            check_positive("n_init", self.n_init)
        if len(x) < self.n_clusters:
            raise ValueError(
                f"n_samples={len(x)} should be >= n_clusters={self.n_clusters}: give fewer clusters"
            )

    def _starts(self) -> int:
        if isinstance(self.init, str) or callable(self.init):
            return int(
                (1 if self.init == "k-means++" else 10) if self.n_init == "auto" else self.n_init
            )
        return 1

    def _first(self, algorithm: Any, points: Batch, rng: np.random.Generator) -> Arrays:
        """The first parameters."""
        sample = sample_of(points, algorithm.sample_points, rng)
        if isinstance(self.init, str) and self.init == "k-means++":
            first: Arrays = algorithm.init_parameter(sample, rng)
            return first
        return given_centers(self._chosen_centers(points, rng), sample)

    def _chosen_centers(self, points: Batch, rng: np.random.Generator) -> Array:
        """The first centres, if k-means++ does not choose them."""
        if isinstance(self.init, str) and self.init == "random":
            chosen = rng.choice(len(points), self.n_clusters, replace=False)
            centers: Array = points.x[chosen].astype(np.float64)
            return centers
        if isinstance(self.init, str):
            raise ValueError(f"init is {self.init!r}: give 'k-means++', 'random', or the centres")
        if callable(self.init):
            seed = int(rng.integers(2**31))
            given = self.init(points.x, self.n_clusters, random_state=seed)
        else:
            given = self.init
        centers = np.asarray(given, np.float64)
        wanted = (self.n_clusters, points.x.shape[1])
        if centers.shape != wanted:
            raise ValueError(f"init has the shape {centers.shape} and needs {wanted}")
        if not np.isfinite(centers).all():
            raise ValueError("init contains NaN or infinity: give finite centres")
        check_size(points.x, float(np.abs(centers).max()), "init")
        return centers

    def _best(self, algorithm: Any, points: Batch) -> Fitted:
        """The best of several fits."""
        rng, starts = self._rng(), self._starts()
        self._check_starts(starts)
        best: Fitted | None = None
        for _ in range(starts):
            first = self._first(algorithm, points, rng)
            found = self._run(algorithm, points, rng=rng, max_passes=self.max_iter, parameter=first)
            if best is None or found.objectives[-1] < best.objectives[-1]:
                best = found
        assert best is not None
        return best

    def fit_predict(
        self,
        X: Any,  # noqa: N803
        y: Any = None,
        sample_weight: Any = None,
    ) -> npt.NDArray[np.int32]:
        """Find the centres, and return the cluster of each point, as `labels_`.

        Args:
            X: the points, one row for each.
            y: not used.
            sample_weight: the weight of each point; all weigh 1 by default.
        """
        labels: npt.NDArray[np.int32] = self.fit(X, sample_weight=sample_weight).labels_
        return labels


class KMeans(Clusterer):
    """KMeans clustering with the interface of `sklearn.cluster.KMeans`.

    All parameters of scikit-learn's class are accepted and mean the same; points must be dense.
    `algorithm` and `copy_x` have no effect. The first centres are chosen by k-means++ from a
    sample of at least 10,000 points. The further parameters are these:

    Args:
        workers: the number of worker processes. None: compute in this process.
        sync: the policy of the workers: "bspb" (new parameters after a pass over all points, as
            in scikit-learn), "bsp", "bspv" or "fsp".
        address: the address of a job of `polyrhythm.serve`, which this process joins as a worker.

    Attributes:
        cluster_centers_: the centres.
        labels_: the cluster of each point.
        inertia_: the sum of the squared distances of the points to their centres.
        n_iter_: the number of passes.

    Example:
        >>> from polyrhythm.cluster import KMeans
        >>> X = np.array([[1.0, 2.0], [1.0, 4.0], [10.0, 2.0], [10.0, 4.0]])
        >>> model = KMeans(n_clusters=2, random_state=0).fit(X)
        >>> np.sort(model.cluster_centers_, axis=0).tolist()
        [[1.0, 3.0], [10.0, 3.0]]
    """

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        init: Any = "k-means++",
        n_init: Any = "auto",
        max_iter: int = 300,
        tol: float = 1e-4,
        verbose: int = 0,
        random_state: Any = None,
        copy_x: bool = True,
        algorithm: str = "lloyd",
        workers: int | None = None,
        sync: str = "bspb",
        address: str | None = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.init = init
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.verbose = verbose
        self.random_state = random_state
        self.copy_x = copy_x
        self.algorithm = algorithm
        self.workers = workers
        self.sync = sync
        self.address = address

    def _check_options(self, x: npt.NDArray[Any]) -> None:
        super()._check_options(x)
        if self.algorithm not in ("lloyd", "elkan"):
            raise ValueError(f"algorithm is {self.algorithm!r}: give 'lloyd' or 'elkan'")

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> "KMeans":  # noqa: N803
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
        points = Batch(x, None, check_weights(sample_weight, x))
        algorithm = Algorithm(self.n_clusters, tol=self.tol)
        found = self._best(algorithm, points)
        self.cluster_centers_ = found.parameter["centers"].astype(x.dtype)
        self.n_iter_ = found.passes
        self._finish(points)
        self._counts = np.bincount(self.labels_, points.weight, self.n_clusters).astype(np.float64)
        distinct = np.count_nonzero(np.bincount(self.labels_))
        if distinct < self.n_clusters:
            warnings.warn(
                f"Number of distinct clusters ({distinct}) found smaller than n_clusters"
                f" ({self.n_clusters}). Possibly due to duplicate points in X.",
                ConvergenceWarning,
                stacklevel=2,
            )
        return self

    def _finish(self, points: Batch) -> None:
        self.labels_, squared = labels_of(points.x, self.cluster_centers_, usable_cores())
        self.inertia_ = float(squared.sum() if points.weight is None else squared @ points.weight)
        self._n_features_out = len(self.cluster_centers_)

    def partial_fit(
        self,
        X: Any,  # noqa: N803
        y: Any = None,
        sample_weight: Any = None,
    ) -> "KMeans":
        """Move the centres by adding more points. A centre is the mean of all points that were
        assigned to it so far, in `fit` and in earlier calls of `partial_fit`.

        Args:
            X: the points, one row for each.
            y: not used.
            sample_weight: the weight of each point; all weigh 1 by default.

        Returns:
            This estimator.
        """
        first = not hasattr(self, "cluster_centers_")
        x = self._points(X, reset=first, learns=True)
        points = Batch(x, None, check_weights(sample_weight, x))
        if first:
            self._check_options(x)
            algorithm = Algorithm(self.n_clusters, tol=self.tol)
            rng = self._rng()
            made = self._first(algorithm, points, rng)
            self.cluster_centers_ = made["centers"].astype(x.dtype)
            self._counts = np.zeros(self.n_clusters)
        algorithm = Algorithm(len(self.cluster_centers_), tol=self.tol)
        centers = self.cluster_centers_.astype(np.float64)
        parameter = given_centers(centers, points)
        change = algorithm.update_points(points, parameter, algorithm.memory(len(x)))
        seen = self._counts + change["count"]
        filled, offset = seen > 0, parameter["offset"]
        total = (centers - offset) * self._counts[:, None] + change["sum"]
        centers[filled] = total[filled] / seen[filled, None] + offset
        self.cluster_centers_ = centers.astype(self.cluster_centers_.dtype)
        self._counts = seen
        self.n_steps_ = getattr(self, "n_steps_", 0) + 1
        self.n_iter_ = getattr(self, "n_iter_", 0) + 1
        self._finish(points)
        return self

    def predict(self, X: Any) -> npt.NDArray[np.int32]:  # noqa: N803
        """Return the number of the nearest centre for each point.

        Args:
            X: the points, one row for each.
        """
        check_is_fitted(self)
        return labels_of(self._points(X, reset=False), self.cluster_centers_)[0]

    def transform(self, X: Any) -> npt.NDArray[Any]:  # noqa: N803
        """Return the distances of the points to all centres.

        Args:
            X: the points, one row for each.
        """
        check_is_fitted(self)
        return distances(self._points(X, reset=False), self.cluster_centers_)

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:  # noqa: N803
        """Return the negative sum of the squared distances to the nearest centres.

        Args:
            X: the points, one row for each.
            y: not used.
            sample_weight: the weight of each point; all weigh 1 by default.
        """
        check_is_fitted(self)
        x = self._points(X, reset=False)
        weight = check_weights(sample_weight, x)
        squared = labels_of(x, self.cluster_centers_)[1]
        return -float(squared.sum() if weight is None else squared @ weight)


def distances(x: npt.NDArray[Any], centers: npt.NDArray[Any]) -> npt.NDArray[Any]:
    offset = centers.mean(0, dtype=np.float64).astype(x.dtype)
    x, centers = x - offset, (centers - offset).astype(x.dtype)
    squared = -2.0 * (x @ centers.T)
    squared += np.einsum("nd,nd->n", x, x)[:, None]
    squared += np.einsum("kd,kd->k", centers, centers)
    found: npt.NDArray[Any] = np.sqrt(np.maximum(squared, 0.0, out=squared), out=squared)
    return found
