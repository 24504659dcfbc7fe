"""The intervals of `--interval`: a fixed length, `auto` (`staged`) or `binary` (`halving`).

A fixed interval that is shorter than the cost of a barrier is raised to that cost, and the journal
reports that.
"""

from typing import TypeAlias

import msgspec

from polyrhythm.core.kinds import keeps_rows, steps_on_servers
from polyrhythm.core.machine import Reason
from polyrhythm.core.sync.interval.base import (
    Bounds,
    IntervalTerms,
    Measured,
    interval_reason,
)
from polyrhythm.core.sync.interval.gain import best_interval
from polyrhythm.core.sync.interval.halving import BinaryInterval
from polyrhythm.core.sync.interval.staged import AutoInterval
from polyrhythm.core.values import parse_duration
from polyrhythm.errors import UsageError

__all__ = [
    "AutoInterval",
    "BinaryInterval",
    "FixedInterval",
    "Interval",
    "IntervalTerms",
    "Measured",
    "best_interval",
    "parse_interval",
]

_CHEAPER = 0.8
_DEARER = 1.05


class FixedInterval(msgspec.Struct, tag=True):
    """The interval that the command line gives, raised to the cost of a barrier while that is
    larger.

    A raised interval follows the cost of barriers: it rises if the cost grows by more than a
    twentieth, and falls if the cost falls by a fifth or more. Smaller changes are noise.
    """

    _asked_ns: int
    _raised_ns: int = 0
    """The cost of a barrier to which the interval is raised; 0 if it is not raised."""
    _bounds: Bounds = msgspec.field(default_factory=Bounds)

    @property
    def _interval_ns(self) -> int:
        return self._raised_ns or self._asked_ns

    def next(self) -> IntervalTerms:
        return IntervalTerms(self._interval_ns, False)

    def on_closed(self, measured: Measured) -> Reason | None:
        self._bounds.on_measured(measured)
        phi_ns, before_ns = self._bounds.phi_ns, self._interval_ns
        cheapest_ns = max(self._asked_ns, _CHEAPER * before_ns)
        if self._raised_ns and cheapest_ns < phi_ns <= _DEARER * before_ns:
            return None
        self._raised_ns = phi_ns if phi_ns > self._asked_ns else 0
        if self._interval_ns == before_ns:
            return None
        if not self._raised_ns:
            return interval_reason("interval-restored", self._interval_ns)
        return interval_reason("interval-raised", self._interval_ns, phi_ms=phi_ns / 1e6)


Interval: TypeAlias = FixedInterval | AutoInterval | BinaryInterval
"""An algorithm that chooses the interval. `next` returns the terms of the coming round. `closed`
evaluates a closed round, and returns a reason if the interval changes."""


def parse_interval(text: str, kind: str = "local") -> Interval:
    """Build the algorithm that `--interval` names, for contributions of this kind."""
    match text.strip():
        case "auto" if keeps_rows(kind):
            return AutoInterval.without_rate()
        case "auto":
            return AutoInterval.with_scaled_steps() if steps_on_servers(kind) else AutoInterval()
        case "binary":
            return BinaryInterval()
        case length:
            try:
                return FixedInterval(parse_duration(length))
            except ValueError as error:
                raise UsageError(
                    f"--interval {text!r} is not understood: give auto, binary or 250ms ({error})"
                ) from None
