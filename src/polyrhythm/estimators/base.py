"""What all estimators share: their options, the check of their input, and how they start a fit."""

import math
import sys
import warnings
from numbers import Integral
from typing import Any

import numpy as np
import numpy.typing as npt

from polyrhythm.errors import PolyrhythmError, UsageError
from polyrhythm.estimators.conventions import (
    BaseEstimator,
    ConvergenceWarning,
    check_random_state,
    check_sample_weight,
    validate_data,
)
from polyrhythm.estimators.fitting import FitPlace, Fitted, fit_points
from polyrhythm.learn.pointwise.algorithm import Algorithm, Batch
from polyrhythm.learn.pointwise.layout import Arrays

FLOATS = [np.float64, np.float32]
SYNCS = ("bspb", "bsp", "bspv", "fsp", "asp")
"""The policies of jobs of kind statistics. asp is for comparison only: it may diverge."""
_ROWS = 16_384
_MOST_WEIGHT = math.sqrt(np.finfo(np.float64).max)
"""Larger sums of weights would exceed the range of float64 when they are multiplied by squares."""


class Estimator(BaseEstimator):
    """The base class. `workers`, `sync` and `address` are options of every estimator."""

    workers: int | None
    sync: str
    address: str | None
    verbose: int
    random_state: Any

    def _points(self, x: Any, *, reset: bool, least: int = 1, learns: bool = False) -> Any:
        """Check the points. A value that is not finite is reported with its row. `reset`: these are
        the first points of a fit. `learns`: the parameters will depend on them."""
        x = validate_data(
            self,
            x,
            reset=reset,
            accept_sparse="csr" if self.__sklearn_tags__().input_tags.sparse else False,
            dtype=FLOATS,
            order="C",
            ensure_all_finite=False,
            ensure_min_samples=least,
        )
        largest = check_finite(x)
        if reset or learns:
            check_size(x, largest)
        return x

    def _rng(self) -> np.random.Generator:
        state = check_random_state(self.random_state)
        return np.random.default_rng(state.randint(2**31))

    def _place(self) -> FitPlace:
        whole = isinstance(self.workers, Integral) and not isinstance(self.workers, bool)
        if self.workers is not None and not (whole and self.workers >= 1):
            raise ValueError(f"workers is {self.workers!r}: give a positive number, or None")
        if self.sync not in SYNCS:
            known = ", ".join(map(repr, SYNCS))
            raise ValueError(f"sync is {self.sync!r}: give one of {known}")
        return FitPlace(self.workers, self.sync, self.address, type(self).__name__)

    def _check_starts(self, starts: int) -> None:
        """Raise an error if this fit consists of several fits and joins a job. A job can only run
        one fit."""
        if self.address is not None and starts > 1:
            raise ValueError(
                f"the job at {self.address} runs one fit, and this estimator begins {starts} fits: give"
                " n_init=1"
            )

    def _run(
        self,
        algorithm: Algorithm,
        points: Batch,
        *,
        rng: np.random.Generator,
        max_passes: int,
        parameter: Arrays | None = None,
    ) -> Fitted:
        """Run an algorithm on the points. Raises the errors that users of scikit-learn expect."""
        try:
            found = fit_points(
                algorithm,
                points,
                place=self._place(),
                rng=rng,
                max_passes=max_passes,
                parameter=parameter,
                after_pass=self._show if self.verbose else None,
            )
        except UsageError as error:
            raise ValueError(str(error)) from error
        except PolyrhythmError as error:
            raise RuntimeError(str(error)) from error
        if self.address is not None and not found.terminated and found.passes < max_passes:
            warnings.warn(
                f"the job at {self.address} ended after {found.passes} passes, before the fit had"
                " converged: it was stopped, or it has a time limit",
                ConvergenceWarning,
                stacklevel=3,
            )
        return found

    def _show(self, number: int, objective: float | None) -> None:
        """Show the progress of a fit."""
        value = "" if objective is None else f", objective {objective:.6g}"
        print(f"{type(self).__name__}: pass {number}{value}", file=sys.stderr, flush=True)


def check_finite(x: Any) -> float:
    """The largest absolute value. Raise an error that names the first value which is NaN or
    infinite."""
    values = x.data if hasattr(x, "indptr") else x
    largest = _largest(values)
    if math.isfinite(largest):
        return largest
    broken = ~np.isfinite(values)
    if hasattr(x, "indptr"):
        at = int(np.flatnonzero(broken)[0])
        row, column = int(np.searchsorted(x.indptr, at, side="right")) - 1, int(x.indices[at])
        value = values[at]
    else:
        row, column = (int(index) for index in np.argwhere(broken)[0])
        value = values[row, column]
    rows = int(np.count_nonzero(broken.any(axis=1))) if broken.ndim == 2 else 1
    kind = "NaN" if np.isnan(value) else "infinity"
    more = "" if rows < 2 else f", and {rows - 1} more rows like it"
    raise ValueError(
        f"Input X contains {kind} in row {row}, column {column}{more}: remove or fill such values"
    )


def _largest(values: npt.NDArray[Any]) -> float:
    """The largest absolute value of some numbers; NaN if one of them is NaN."""
    if not values.size:
        return 0.0
    return float(np.maximum(np.abs(values.max()), np.abs(values.min())))


def check_size(x: Any, largest: float, name: str = "Input X") -> None:
    """Raise an error if a sum of squares could overflow. The sum has as many numbers as `x`, of the type
    of `x`, and their absolute values are at most `largest`."""
    values = x.data if hasattr(x, "indptr") else x
    summands = 8.0 * x.shape[1] * (x.shape[0] if values.dtype == np.float64 else 1)
    most = math.sqrt(float(np.finfo(values.dtype).max) / summands)
    if largest > most:
        raise ValueError(
            f"{name} contains values as large as {largest:.3g}, whose squares are too large for"
            f" {values.dtype}: scale X, for instance to unit variance"
        )


def warn_few_points(x: npt.NDArray[Any], wanted: int, name: str) -> None:
    """Warn if fewer distinct points than clusters are given."""
    found: set[bytes] = set()
    for first in range(0, len(x), _ROWS):
        part = np.ascontiguousarray(x[first : first + _ROWS] + 0.0)  # -0.0 equals 0.0
        found.update(row.tobytes() for row in np.unique(part, axis=0)[:wanted])
        if len(found) >= wanted:
            return
    warnings.warn(
        f"Number of distinct points ({len(found)}) found smaller than {name} ({wanted}): give a"
        f" smaller {name}",
        ConvergenceWarning,
        stacklevel=3,
    )


def check_positive(name: str, value: Any, *, whole: bool = True, least: float = 1) -> None:
    """Raise an error if an option is not a number that is at least `least`."""
    kinds = (int, np.integer) if whole else (int, float, np.integer, np.floating)
    if isinstance(value, bool) or not isinstance(value, kinds) or not least <= value < math.inf:
        kind = "an integer" if whole else "a number"
        raise ValueError(f"{name} is {value!r}: it must be {kind} of at least {least}")


def check_weights(sample_weight: Any, x: Any) -> npt.NDArray[Any] | None:
    """Check the weights of points."""
    if sample_weight is None:
        return None
    found: npt.NDArray[Any] = check_sample_weight(
        sample_weight, x, dtype=np.float64, ensure_non_negative=True
    )
    with np.errstate(over="ignore"):
        total = float(found.sum())
    if total > _MOST_WEIGHT:
        raise ValueError(
            f"the sum of sample_weight is {total:.3g}, and products with it are too large for float64:"
            " scale the weights, for instance to a mean of 1"
        )
    return found
