"""Logistic regression with the interface of scikit-learn."""

import math
import warnings
from typing import Any

import numpy as np
import numpy.typing as npt

from polyrhythm.estimators.base import (
    FLOATS,
    Estimator,
    check_finite,
    check_positive,
    check_size,
    check_weights,
)
from polyrhythm.estimators.conventions import (
    ClassifierMixin,
    ConvergenceWarning,
    check_classification_targets,
    check_is_fitted,
    compute_class_weight,
    validate_data,
)
from polyrhythm.learn.pointwise.algorithm import Batch
from polyrhythm.learn.pointwise.layout import Array, Arrays
from polyrhythm.learn.pointwise.logistic import LogisticRegressionAlgorithm as Algorithm


class LogisticRegression(ClassifierMixin, Estimator):
    """Logistic regression for two classes or several (multinomial), with the interface of
    `sklearn.linear_model.LogisticRegression`.

    The parameters of scikit-learn's class mean the same. The solver is "lbfgs", with an L2
    penalty or none (`penalty=None`). `n_jobs` and `intercept_scaling` are accepted and have no
    effect. X may be sparse. The further parameters are these:

    Args:
        workers: the number of worker processes. None: compute in this process.
        sync: the policy of the workers: "bspb", because the search needs the gradients of all
            points at the same coefficients.
        address: the address of a job of `polyrhythm.serve`, which this process joins as a worker.

    Attributes:
        classes_: the labels.
        coef_: the coefficients of the features.
        intercept_: the intercepts.
        n_iter_: the number of steps of the search.

    Example:
        >>> from polyrhythm.linear_model import LogisticRegression
        >>> X = np.array([[0.0], [1.0], [2.0], [3.0]])
        >>> model = LogisticRegression().fit(X, ["no", "no", "yes", "yes"])
        >>> model.predict([[0.5], [2.5]]).tolist()
        ['no', 'yes']
    """

    def __init__(
        self,
        penalty: Any = "l2",
        *,
        C: float = 1.0,  # noqa: N803
        l1_ratio: float = 0.0,
        dual: bool = False,
        tol: float = 1e-4,
        fit_intercept: bool = True,
        intercept_scaling: float = 1,
        class_weight: Any = None,
        random_state: Any = None,
        solver: str = "lbfgs",
        max_iter: int = 100,
        verbose: int = 0,
        warm_start: bool = False,
        n_jobs: int | None = None,
        workers: int | None = None,
        sync: str = "bspb",
        address: str | None = None,
    ) -> None:
        self.penalty = penalty
        self.C = C
        self.l1_ratio = l1_ratio
        self.dual = dual
        self.tol = tol
        self.fit_intercept = fit_intercept
        self.intercept_scaling = intercept_scaling
        self.class_weight = class_weight
        self.random_state = random_state
        self.solver = solver
        self.max_iter = max_iter
        self.verbose = verbose
        self.warm_start = warm_start
        self.n_jobs = n_jobs
        self.workers = workers
        self.sync = sync
        self.address = address

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def _check_options(self) -> None:
        if isinstance(self.C, bool) or not self.C > 0:
            raise ValueError(f"C is {self.C!r}: it must be above 0")
        check_positive("tol", self.tol, whole=False, least=0)
        check_positive("max_iter", self.max_iter)
        if self.penalty not in ("l2", "deprecated", None):
            raise ValueError(f"penalty is {self.penalty!r}: give 'l2', or None for no penalty")
        if self.solver != "lbfgs" or self.l1_ratio not in (0, None) or self.dual:
            raise ValueError(
                "only solver='lbfgs' with an L2 penalty (l1_ratio=0, dual=False) is supported"
            )
        if self.sync != "bspb":
            raise ValueError(
                f"sync is {self.sync!r}: LogisticRegression needs the gradients of all points at the"
                " same coefficients, so give 'bspb'"
            )

    def _strength(self, points: float) -> float:
        """The factor of the penalty, per point."""
        return 0.0 if self.penalty is None or math.isinf(self.C) else 1.0 / (self.C * points)

    def _labelled(self, x: Any, y: Any, *, reset: bool) -> tuple[Any, npt.NDArray[Any]]:
        x, y = validate_data(
            self,
            x,
            y,
            reset=reset,
            accept_sparse="csr",
            dtype=FLOATS,
            order="C",
            ensure_all_finite=False,
        )
        check_size(x, check_finite(x))
        check_classification_targets(y)
        return x, y

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "LogisticRegression":  # noqa: N803
        """Find the coefficients.

        Args:
            X: the points, one row for each.
            y: the label of each point.
            sample_weight: the weight of each point; all weigh 1 by default.

        Returns:
            This estimator.

        Raises:
            ValueError: a parameter or a point cannot be used. The message names the row of a
                point that is NaN or infinite.
            RuntimeError: the job of the workers failed.
        """
        self._check_options()
        x, y = self._labelled(X, y, reset=True)
        self.classes_, label = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(
                "This solver needs samples of at least 2 classes in the data, but the data contains"
                f" only one class: {self.classes_[0]!r}"
            )
        weight = self._weights(y, label, sample_weight, x)
        points = Batch(x, label.astype(np.int64), weight)
        total = float(x.shape[0] if weight is None else weight.sum())
        algorithm = Algorithm(
            len(self.classes_),
            penalty=self._strength(total),
            intercept=self.fit_intercept,
            tol=self.tol,
            steps=self.max_iter,
        )
        found = self._run(
            algorithm,
            points,
            rng=self._rng(),
            max_passes=3 * self.max_iter + 10,
            parameter=self._warm(algorithm, x.shape[1]),
        )
        place = found.parameter["place"]
        self.coef_ = place[:, :-1].astype(x.dtype)
        self.intercept_ = place[:, -1].astype(x.dtype)
        taken = round(float(found.parameter["search"][4]))
        self.n_iter_ = np.array([max(1, taken)], dtype=np.int32)
        if taken >= self.max_iter or not found.terminated:
            warnings.warn(
                f"lbfgs failed to converge after {taken} iteration(s): increase max_iter, or scale"
                " the data",
                ConvergenceWarning,
                stacklevel=2,
            )
        return self

    def _weights(
        self, y: npt.NDArray[Any], label: npt.NDArray[Any], sample_weight: Any, x: Any
    ) -> npt.NDArray[Any] | None:
        weight = check_weights(sample_weight, x)
        if self.class_weight is None:
            return weight
        of_class = compute_class_weight(
            self.class_weight, classes=self.classes_, y=y, sample_weight=weight
        )
        found: npt.NDArray[Any] = of_class[label] * (1.0 if weight is None else weight)
        return found

    def _warm(self, algorithm: Algorithm, features: int) -> Arrays | None:
        """The parameters with which the last fit ended, if `warm_start` is set and their shape
        fits."""
        shape = (algorithm.rows, features)
        if not self.warm_start or getattr(self, "coef_", np.empty(0)).shape != shape:
            return None
        return algorithm.begin(self._place_of())

    def _place_of(self) -> Array:
        found: Array = np.hstack([self.coef_, self.intercept_[:, None]]).astype(np.float64)
        return found

    def partial_fit(
        self,
        X: Any,  # noqa: N803
        y: Any,
        classes: Any = None,
        sample_weight: Any = None,
    ) -> "LogisticRegression":
        """Make one step of AdaGrad with some more points.

        Args:
            X: the points, one row for each.
            y: the label of each point.
            classes: all labels that will occur. The first call needs them.
            sample_weight: the weight of each point; all weigh 1 by default.

        Returns:
            This estimator.
        """
        self._check_options()
        first = not hasattr(self, "classes_")
        x, y = self._labelled(X, y, reset=first)
        if first:
            if classes is None:
                raise ValueError("classes must be passed on the first call to partial_fit.")
            self.classes_ = np.unique(classes)
        unknown = np.setdiff1d(y, self.classes_)
        if len(unknown):
            raise ValueError(
                f"y contains {unknown.tolist()}, and the classes are {self.classes_.tolist()}: give"
                " all labels as classes to the first call of partial_fit"
            )
        label = np.searchsorted(self.classes_, y)
        points = Batch(x, label.astype(np.int64), self._weights(y, label, sample_weight, x))
        self._seen = getattr(self, "_seen", 0.0) + x.shape[0]
        algorithm = Algorithm(
            len(self.classes_),
            penalty=self._strength(self._seen),
            intercept=self.fit_intercept,
        )
        shape = (algorithm.rows, x.shape[1] + 1)
        place = self._place_of() if hasattr(self, "coef_") else np.zeros(shape)
        parameter = algorithm.begin(place)
        _, gradient = algorithm.loss_and_gradient(
            algorithm.update_points(points, parameter, {}), place
        )
        gradient = gradient.reshape(shape)
        self._squares = getattr(self, "_squares", np.zeros(shape)) + gradient**2
        place = place - 0.1 * gradient / np.sqrt(self._squares + 1e-10)
        self.coef_, self.intercept_ = place[:, :-1].astype(x.dtype), place[:, -1].astype(x.dtype)
        self.n_iter_ = np.array([1], dtype=np.int32)
        return self

    def decision_function(self, X: Any) -> npt.NDArray[Any]:  # noqa: N803
        """Return the scores of the classes for each point: one score for two classes, and one for
        each class otherwise.

        Args:
            X: the points, one row for each.
        """
        check_is_fitted(self)
        x = self._points(X, reset=False)
        scores = np.asarray(x @ self.coef_.T + self.intercept_)
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def predict(self, X: Any) -> npt.NDArray[Any]:  # noqa: N803
        """Return the most probable label of each point.

        Args:
            X: the points, one row for each.
        """
        scores = self.decision_function(X)
        chosen = (scores > 0).astype(np.intp) if scores.ndim == 1 else scores.argmax(1)
        found: npt.NDArray[Any] = self.classes_[chosen]
        return found

    def predict_proba(self, X: Any) -> npt.NDArray[Any]:  # noqa: N803
        """Return the probability of each class for each point, in the order of `classes_`.

        Args:
            X: the points, one row for each.
        """
        found: npt.NDArray[Any] = np.exp(self.predict_log_proba(X))
        return found

    def predict_log_proba(self, X: Any) -> npt.NDArray[Any]:  # noqa: N803
        """Return the logarithm of the probability of each class for each point.

        Args:
            X: the points, one row for each.
        """
        scores = self.decision_function(X)
        if scores.ndim == 1:
            scores = np.stack([np.zeros_like(scores), scores], axis=1)
        scores = scores - scores.max(1, keepdims=True)
        found: npt.NDArray[Any] = scores - np.log(np.exp(scores).sum(1, keepdims=True))
        return found
