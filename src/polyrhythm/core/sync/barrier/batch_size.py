"""How many points a worker's batch has under BSP: FSP's two baselines (FSP §6.1).

BSPB takes all of its points (`WHOLE`). BSPV seeks the size by cost and benefit at the very beginning
of training. The paper cites that rule from elsewhere; ours is the simplest honest one: double the
size while the objective falls faster per second, barriers included, and stay with the best.
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
    """None: all that the worker has."""
    probe: bool
    """Read the objective before the round begins."""


WHOLE = BatchTerms(points=None, probe=False)


@dataclass(frozen=True, slots=True)
class MeasuredBatch:
    """One closed round."""

    elapsed_ns: int
    """Work and barrier, reading the objective left out."""
    objective: float | None
    """What was read as this round opened; None if nobody read."""
    most: int
    """The points of the worker that has most: a larger batch is the whole."""


class BatchSize:
    """Every size is tried for four rounds, starting with 32 points. Without an objective the size
    stays where it is."""

    def __init__(self, first: int = _FIRST) -> None:
        self._climb = Climb(first, first_rounds=_ROUNDS, rounds=_ROUNDS)

    def next(self) -> BatchTerms:
        return BatchTerms(self._climb.value, self._climb.probe)

    def closed(self, measured: MeasuredBatch) -> Reason | None:
        """A round closed. If the size changes or is found, the reason."""
        climb = self._climb
        if climb.found:
            return None
        reading = measured.objective
        if climb.probe and (reading is None or not math.isfinite(reading)):
            climb.settle()
            return Reason("batch-blind", {"points": climb.value})
        before = climb.value
        following = min(2 * before, max(before, measured.most))
        climb.closed(max(1, measured.elapsed_ns) / 1e9, reading or 0.0, following)
        if climb.found:
            return Reason("batch-chosen", {"points": climb.value, "gain": climb.gain or 0.0})
        if climb.value == before:
            return None
        return Reason("batch-measuring", {"points": climb.value})
