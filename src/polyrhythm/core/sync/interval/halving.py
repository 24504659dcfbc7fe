"""FSP's baseline: the interval by recursive binary searching (FSP §3.3).

Beginning with a full pass, halve the interval (lambda = 2) while the objective falls faster per
second than before; at the first reversal go back one step and stay there. As the paper says, the
trend of training itself is mistaken for the effect of the interval, so it tends to stop early.
"""

from polyrhythm.core.machine import Reason
from polyrhythm.core.sync.interval.base import (
    FIRST_NS,
    Blind,
    Bounds,
    IntervalTerms,
    Measured,
    changed,
    raised,
)
from polyrhythm.core.sync.interval.climb import Climb

_LAMBDA = 2


class BinaryInterval:
    """The first round, 200 ms, only tells what a pass takes."""

    def __init__(self) -> None:
        self._bounds = Bounds()
        self._interval_ns = FIRST_NS
        self._climb: Climb | None = None
        self._blind: Blind | None = None

    def next(self) -> IntervalTerms:
        if self._blind is not None:
            return IntervalTerms(self._blind.interval_ns, self._blind.probe)
        return IntervalTerms(self._interval_ns, self._climb is not None and self._climb.probe)

    def closed(self, measured: Measured) -> Reason | None:
        unread = self.next().probe and measured.reading is None
        self._bounds.measured(measured)
        if self._blind is not None:
            return self._blind.closed() if measured.reading is None else self._search()
        if unread:
            self._blind = Blind(self._bounds)
            return self._blind.reason()
        if self._climb is None:
            return self._search()
        return self._stay() if self._climb.found else self._try(measured, self._climb)

    def _search(self) -> Reason:
        self._blind = None
        self._interval_ns = self._bounds.high_ns
        self._climb = Climb(self._interval_ns, first_rounds=1, rounds=_LAMBDA)
        return changed("interval-measuring", self._interval_ns)

    def _try(self, measured: Measured, climb: Climb) -> Reason | None:
        before_ns = self._interval_ns
        shorter_ns = min(before_ns, self._bounds.high_ns) // _LAMBDA
        following_ns = shorter_ns if shorter_ns >= self._bounds.low_ns else before_ns
        climb.closed(measured.elapsed_s, measured.reading or 0.0, following_ns)
        self._interval_ns = climb.value
        if climb.found:
            fields = {"before_ms": before_ns / 1e6, "gain": climb.gain or 0.0}
            return changed("interval-chosen", self._interval_ns, **fields)
        if self._interval_ns == before_ns:
            return None
        return changed("interval-measuring", self._interval_ns)

    def _stay(self) -> Reason | None:
        if self._bounds.allow(self._interval_ns):
            return None
        self._interval_ns = self._bounds.low_ns
        return raised(self._bounds)
