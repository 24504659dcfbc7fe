"""Non-negative matrix factorisation with the interface of scikit-learn."""

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt

from polyrhythm.errors import UsageError
from polyrhythm.estimators.base import Estimator, check_positive
from polyrhythm.estimators.conventions import (
    ClassNamePrefixFeaturesOutMixin,
    ConvergenceWarning,
    TransformerMixin,
    check_is_fitted,
)
from polyrhythm.learn.pointwise import factors
from polyrhythm.learn.pointwise.algorithm import Batch


class NMF(ClassNamePrefixFeaturesOutMixin, TransformerMixin, Estimator):
    """Non-negative matrix factorisation, X = W H, with the interface of `sklearn.decomposition.NMF`.

    The parameters, the attributes and the objective are those of scikit-learn's class with the
    solver "cd" and the Frobenius norm. X may be sparse. The further parameters are these:

    Args:
        observed_only: numbers that a sparse X does not store are unknown, as in a table of
            ratings, instead of 0.
        workers: the number of worker processes. None: compute in this process.
        sync: the policy of the workers: "bspb" (new parameters after a pass over all points, as
            in scikit-learn), "bsp", "bspv" or "fsp".
        address: the address of a job of `polyrhythm.serve`, which this process joins as a worker.

    Attributes:
        components_: the matrix H.
        reconstruction_err_: the Frobenius norm of X - W H.
        n_iter_: the number of passes.

    Example:
        >>> from polyrhythm.decomposition import NMF
        >>> X = np.outer([1.0, 2.0, 3.0], [4.0, 5.0])
        >>> model = NMF(n_components=1, random_state=0)
        >>> W = model.fit_transform(X)
        >>> np.allclose(W @ model.components_, X, atol=0.01)
        True
    """

    def __init__(
        self,
        n_components: Any = "auto",
        *,
        init: str | None = None,
        solver: str = "cd",
        beta_loss: str = "frobenius",
        tol: float = 1e-4,
        max_iter: int = 200,
        random_state: Any = None,
        alpha_W: float = 0.0,  # noqa: N803
        alpha_H: Any = "same",  # noqa: N803
        l1_ratio: float = 0.0,
        verbose: int = 0,
        observed_only: bool = False,
        workers: int | None = None,
        sync: str = "bspb",
        address: str | None = None,
    ) -> None:
        self.n_components = n_components
        self.init = init
        self.solver = solver
        self.beta_loss = beta_loss
        self.tol = tol
        self.max_iter = max_iter
        self.random_state = random_state
        self.alpha_W = alpha_W
        self.alpha_H = alpha_H
        self.l1_ratio = l1_ratio
        self.verbose = verbose
        self.observed_only = observed_only
        self.workers = workers
        self.sync = sync
        self.address = address

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.positive_only = True
        tags.input_tags.sparse = True
        return tags

    def _algorithm(self, k: int, shape: tuple[int, int]) -> factors.NMFAlgorithm:
        check_positive("max_iter", self.max_iter)
        check_positive("tol", self.tol, whole=False, least=0)
        check_positive("alpha_W", self.alpha_W, whole=False, least=0)
        if self.solver != "cd" or self.beta_loss not in ("frobenius", 2):
            raise ValueError("only solver='cd' and beta_loss='frobenius' are supported")
        if self.init not in (None, "nndsvd", "nndsvda", "nndsvdar", "random"):
            raise ValueError(f"init is {self.init!r}: give None, 'nndsvda' or 'random'")
        if not 0.0 <= self.l1_ratio <= 1.0:
            raise ValueError(f"l1_ratio is {self.l1_ratio!r}: it must lie between 0 and 1")
        samples, features = shape
        alpha_h = self.alpha_W if self.alpha_H == "same" else self.alpha_H
        check_positive("alpha_H", alpha_h, whole=False, least=0)
        of_w, of_h = features * self.alpha_W, samples * alpha_h
        return factors.NMFAlgorithm(
            k,
            l1=(of_w * self.l1_ratio, of_h * self.l1_ratio),
            l2=(of_w * (1.0 - self.l1_ratio), of_h * (1.0 - self.l1_ratio)),
            first="random" if self.init == "random" else "nndsvda",
            observed_only=self.observed_only,
            tol=0.1 * self.tol,
        )

    def _checked(self, x: Any, *, reset: bool) -> Any:
        x = self._points(x, reset=reset)
        try:
            factors.check_negative(x)
            if self.observed_only and isinstance(x, np.ndarray):
                raise UsageError(
                    "observed_only needs a sparse X (scipy's CSR): values that X does not store are"
                    " unknown"
                )
        except UsageError as error:
            raise ValueError(str(error)) from error
        return x

    def fit(self, X: Any, y: Any = None) -> "NMF":  # noqa: N803
        """Find H.

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
        self._fit(X)
        return self

    def fit_transform(self, X: Any, y: Any = None) -> npt.NDArray[Any]:  # noqa: N803
        """Find H, and return W.

        Args:
            X: the points, one row for each.
            y: not used.
        """
        return self._fit(X)

    def _fit(self, given: Any) -> npt.NDArray[Any]:
        x = self._checked(given, reset=True)
        if self.n_components == "auto" or self.n_components is None:
            k = x.shape[1]
        else:
            check_positive("n_components", self.n_components)
            k = self.n_components
        algorithm = self._algorithm(k, x.shape)
        found = self._run(algorithm, Batch(x), rng=self._rng(), max_passes=self.max_iter)
        self.components_ = found.parameter["components"].astype(x.dtype)
        self.n_components_ = k
        self._n_features_out = k
        self.n_iter_ = found.passes
        w = algorithm.transform(x, self.components_.astype(np.float64))
        self.reconstruction_err_ = self._error(x, w)
        if not found.terminated and self.tol > 0:
            warnings.warn(
                f"Maximum number of iterations {self.max_iter} reached. Increase it to improve"
                " convergence.",
                ConvergenceWarning,
                stacklevel=3,
            )
        return w.astype(x.dtype)

    def _error(self, x: Any, w: npt.NDArray[Any]) -> float:
        """The Frobenius norm of X - W H, over the observed numbers if only these count."""
        h = self.components_.astype(np.float64)
        if isinstance(x, np.ndarray):
            return float(np.linalg.norm(x - w @ h))
        entries = x.tocoo()
        made = np.einsum("nk,nk->n", w[entries.row], h.T[entries.col])
        apart = float(((entries.data - made) ** 2).sum())
        if not self.observed_only:
            apart += float(((w.T @ w) * (h @ h.T)).sum() - (made**2).sum())
        return float(np.sqrt(max(0.0, apart)))

    def transform(self, X: Any) -> npt.NDArray[Any]:  # noqa: N803
        """Return the rows of W for some points.

        Args:
            X: the points, one row for each.
        """
        check_is_fitted(self)
        x = self._checked(X, reset=False)
        h = self.components_.astype(np.float64)
        return self._algorithm(len(h), x.shape).transform(x, h).astype(x.dtype)

    def inverse_transform(self, X: Any) -> npt.NDArray[Any]:  # noqa: N803
        """Return the points W H that belong to rows of W.

        Args:
            X: rows of W.
        """
        check_is_fitted(self)
        found: npt.NDArray[Any] = np.asarray(X) @ self.components_
        return found
