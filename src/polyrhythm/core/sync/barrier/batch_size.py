"""The number of points in a worker's batch under BSPB and BSPV, FSP's two baselines (FSP §6.1).

Under BSPB a batch is all points of a worker (`WHOLE`). BSPV searches for the size at the beginning of
training, by cost and benefit. FSP takes that rule from another paper. This module has a simple
version of the rule: double the size while the objective falls faster per second (the time at barriers
included), then keep the best size.
"""

import math
from dataclasses import dataclass

from polyrhythm.core.machine import Reason
from polyrhythm.core.sync.interval.climb import Climb

_FIRST = 32
_ROUNDS = 4


@dataclass(frozen=True, slots=True)
class BatchTerms:
    points: int | None
    """The points of a batch; None means all points of the worker."""
    probe: bool
    """Whether workers measure the objective before the round begins."""


WHOLE = BatchTerms(points=None, probe=False)


@dataclass(frozen=True, slots=True)
class MeasuredBatch:
    """The measurements of one closed round."""

    elapsed_ns: int
    """The time of the work and the barrier, without the time to measure the objective."""
    objective: float | None
    """The objective when this round opened; None if it was not measured."""
    most: int
    """The most points that any worker has. A batch cannot be larger than that."""


class BatchSize:
    """Tries each size for four rounds, starting with 32 points. If no objective is reported, the
    size stays."""

    def __init__(self, first: int = _FIRST) -> None:
        self._climb = Climb(first, first_rounds=_ROUNDS, rounds=_ROUNDS)

    def next(self) -> BatchTerms:
        return BatchTerms(self._climb.value, self._climb.probe)

    def closed(self, measured: MeasuredBatch) -> Reason | None:
        """Take a closed round into account. Returns a reason if the size has changed or the search
        is over."""
        climb = self._climb
        if climb.found:
            return None
        objective = measured.objective
        if climb.probe and (objective is None or not math.isfinite(objective)):
            climb.settle()
            return Reason("batch-blind", {"points": climb.value})
        before = climb.value
        following = min(2 * before, max(before, measured.most))
        climb.closed(max(1, measured.elapsed_ns) / 1e9, objective or 0.0, following)
        if climb.found:
            return Reason("batch-chosen", {"points": climb.value, "gain": climb.gain or 0.0})
        if climb.value == before:
            return None
        return Reason("batch-measuring", {"points": climb.value})
