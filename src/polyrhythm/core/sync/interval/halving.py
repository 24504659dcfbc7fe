"""FSP's baseline: an interval that is found by recursive binary searching (FSP §3.3).

The search begins with the interval of a full pass. It halves the interval (lambda = 2) while the
objective falls faster per second than before. When the objective falls more slowly, the search goes
back one step and ends. As the paper notes, this search mistakes the trend of training for the
effect of the interval, so it tends to stop early.
"""

import msgspec

from polyrhythm.core.machine import Reason
from polyrhythm.core.sync.interval.base import (
    FIRST_NS,
    BlindInterval,
    Bounds,
    IntervalTerms,
    Measured,
    interval_reason,
    raised_reason,
)
from polyrhythm.core.sync.interval.climb import Climb

_LAMBDA = 2


class BinaryInterval(msgspec.Struct, tag=True):
    """The interval of `--interval binary`. The first round, of 200 ms, only measures how long a
    pass takes."""

    _bounds: Bounds = msgspec.field(default_factory=Bounds)
    _interval_ns: int = FIRST_NS
    _climb: Climb | None = None
    _blind: BlindInterval | None = None

    def next(self) -> IntervalTerms:
        if self._blind is not None:
            return IntervalTerms(self._blind.interval_ns, self._blind.probe)
        return IntervalTerms(self._interval_ns, self._climb is not None and self._climb.probe)

    def on_closed(self, measured: Measured) -> Reason | None:
        unmeasured = self.next().probe and measured.finite_objective is None
        self._bounds.on_measured(measured)
        if self._blind is not None:
            return (
                self._blind.on_closed(self._bounds)
                if measured.finite_objective is None
                else self._search()
            )
        if unmeasured:
            self._blind = BlindInterval(self._bounds.start_ns)
            return self._blind.reason(self._bounds)
        if self._climb is None:
            return self._search()
        return self._stay() if self._climb.found else self._try(measured, self._climb)

    def _search(self) -> Reason:
        self._blind = None
        self._interval_ns = self._bounds.high_ns
        self._climb = Climb.begin(self._interval_ns, first_rounds=1, rounds=_LAMBDA)
        return interval_reason("interval-measuring", self._interval_ns)

    def _try(self, measured: Measured, climb: Climb) -> Reason | None:
        before_ns = self._interval_ns
        shorter_ns = min(before_ns, self._bounds.high_ns) // _LAMBDA
        following_ns = shorter_ns if shorter_ns >= self._bounds.low_ns else before_ns
        climb.on_closed(measured.elapsed_s, measured.finite_objective or 0.0, following_ns)
        self._interval_ns = climb.value
        if climb.found:
            fields = {"before_ms": before_ns / 1e6, "gain": climb.gain or 0.0}
            return interval_reason("interval-chosen", self._interval_ns, **fields)
        if self._interval_ns == before_ns:
            return None
        return interval_reason("interval-measuring", self._interval_ns)

    def _stay(self) -> Reason | None:
        if self._bounds.allow(self._interval_ns):
            return None
        self._interval_ns = self._bounds.low_ns
        return raised_reason(self._bounds)
