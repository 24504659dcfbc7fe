"""How an estimator fits: the seam between estimators and the ways to run an algorithm."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from polyrhythm.io.cores import usable_cores
from polyrhythm.learn.pointwise.algorithm import Algorithm, Batch
from polyrhythm.learn.pointwise.layout import Arrays
from polyrhythm.learn.pointwise.local import LocalFit, fit_local


@dataclass(frozen=True, slots=True)
class Place:
    """Where a fit runs. `workers`: None for this process, otherwise the number of worker processes.
    `address`: the job that this process joins as a worker."""

    workers: int | None
    sync: str
    address: str | None


def fit_points(
    algorithm: Algorithm,
    points: Batch,
    *,
    place: Place,
    rng: np.random.Generator,
    max_passes: int,
    parameter: Arrays | None = None,
    after_pass: Callable[[int, float | None], None] | None = None,
) -> LocalFit:
    return fit_local(
        algorithm,
        points,
        rng=rng,
        max_passes=max_passes,
        parameter=parameter,
        after_pass=after_pass,
    )


def threads_for(points: Batch, place: Place) -> int:
    """How many threads compute in one worker. A worker process has one. Few points do not repay the
    handing over to a second thread."""
    if place.workers is not None or len(points) < _FEW_POINTS:
        return 1
    return usable_cores()


_FEW_POINTS = 20_000
