"""The seam of all intervals: what a round is told before it opens, and what is measured of it.

*The objective is read on the parameters with which a round opens, before its interval begins; it
comes with the trailers of that round.* So the reading that ends one measurement begins the next.
"""

import math
import statistics
from collections import deque
from dataclasses import dataclass
from typing import Protocol

from polyrhythm.core.machine import Reason

FIRST_NS = 200 * 10**6
_LONGEST_NS = 60 * 10**9
_ROUNDS = 5
_FAST = 4
"""Of five rounds, so many were slower than the one that tells the workers' speed, or as slow. What
disturbs a round makes its points fewer, never more."""
_VARY = 1.2
_ASK_EVERY = 4


@dataclass(frozen=True, slots=True)
class IntervalTerms:
    interval_ns: int
    probe: bool
    """Read the objective before the interval begins."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One closed round."""

    interval_ns: int
    """How long the workers worked: less than told where somebody had passed over all points."""
    phi_ns: int
    """The barrier's cost: mean over workers from pause to resume, reading the objective left out."""
    objective: float | None = None
    """What was read as this round opened; None if nobody read."""
    micro_ns: int = 0
    """The slowest worker's shortest micro-batch; 0 if it is not known."""
    pass_ns: int | None = None
    """What the fastest worker needs for all of its points; None where nobody knows."""
    usual: bool = True
    """The cost was measured at a barrier like others; otherwise it is that of the last such."""
    batches: float = 0.0
    """The points of the round, as a multiple of those that a round of bsp has: one of the user's
    batches per worker. 0 if that is not known."""
    probe_ns: int = 0
    """The longest time that a worker spent on reading the objective; 0 if none read it."""

    @property
    def work_s(self) -> float:
        return max(1, self.interval_ns) / 1e9

    @property
    def elapsed_s(self) -> float:
        return (max(1, self.interval_ns) + self.phi_ns) / 1e9

    @property
    def reading(self) -> float | None:
        return self.objective if self.objective is None or math.isfinite(self.objective) else None


class Interval(Protocol):
    def next(self) -> IntervalTerms:
        """The terms of the coming round."""
        ...

    def closed(self, measured: Measured) -> Reason | None:
        """A round closed. If the interval changes, the reason."""
        ...


class Bounds:
    """From max(phi, two micro-batches) to one full pass of the fastest worker.

    phi and micro-batches are medians of the last five rounds that measured them, so that one hiccup
    of one worker changes nothing. Where a pass is shorter than the lower bound, the lower bound
    wins: a worker that has visited all of its points asks for the barrier anyway.
    """

    def __init__(self) -> None:
        self._phis_ns: deque[int] = deque(maxlen=_ROUNDS)
        self._micros_ns: deque[int] = deque(maxlen=_ROUNDS)
        self._batches_ns: deque[float] = deque(maxlen=_ROUNDS)
        self._pass_ns: int | None = None
        self.probe_ns = 0
        """The cost of the last reading."""

    def measured(self, measured: Measured) -> None:
        if measured.usual:
            self._phis_ns.append(measured.phi_ns)
        if measured.micro_ns:
            self._micros_ns.append(measured.micro_ns)
        if measured.batches > 0:
            self._batches_ns.append(measured.interval_ns / measured.batches)
        self._pass_ns = measured.pass_ns
        self.probe_ns = measured.probe_ns or self.probe_ns

    @property
    def phi_ns(self) -> int:
        return statistics.median_low(self._phis_ns) if self._phis_ns else 0

    @property
    def micro_ns(self) -> int:
        return statistics.median_low(self._micros_ns) if self._micros_ns else 0

    @property
    def low_ns(self) -> int:
        """At most a minute: members report both, and none may stop the folds of all others."""
        return min(_LONGEST_NS, max(1, self.phi_ns, 2 * self.micro_ns))

    def allow(self, interval_ns: int) -> bool:
        """Whether an interval that was right when it was chosen may stay: costs vary a little."""
        return interval_ns >= self.phi_ns and _VARY * interval_ns >= self.low_ns

    @property
    def high_ns(self) -> int:
        return max(self.low_ns, self._pass_ns or _LONGEST_NS)

    @property
    def batch_ns(self) -> int:
        """The interval in which all workers together visit as many points as in a round of bsp: the
        batch that the user chose the learning rate for. Within the bounds; the lower one while no
        round has told."""
        if not self._batches_ns:
            return self.low_ns
        slowest_first = sorted(self._batches_ns, reverse=True)
        return self.clamp(slowest_first[min(_FAST, len(slowest_first)) - 1])

    def clamp(self, interval_ns: float) -> int:
        return max(self.low_ns, min(self.high_ns, round(interval_ns)))


class Blind:
    """The interval where there is no objective to choose by: rounds have as many points as with bsp.

    It changes only when that takes a quarter more or less time, and asks for the objective every
    fourth round.
    """

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._rounds = 1
        self.interval_ns = bounds.batch_ns

    @property
    def probe(self) -> bool:
        return self._rounds % _ASK_EVERY == 0

    def reason(self) -> Reason:
        return changed("interval-blind", self.interval_ns, phi_ms=self._bounds.phi_ns / 1e6)

    def closed(self) -> Reason | None:
        self._rounds += 1
        wanted_ns = self._bounds.batch_ns
        if 4 * self.interval_ns <= 5 * wanted_ns and 4 * wanted_ns <= 5 * self.interval_ns:
            return None
        self.interval_ns = wanted_ns
        return self.reason()


def changed(code: str, interval_ns: int, **fields: float) -> Reason:
    return Reason(code, {"interval_ms": interval_ns / 1e6, **fields})


def raised(bounds: Bounds) -> Reason:
    phi_ms = bounds.phi_ns / 1e6
    if bounds.low_ns == bounds.phi_ns:
        return changed("interval-raised", bounds.low_ns, phi_ms=phi_ms)
    micro_ms = bounds.micro_ns / 1e6
    return changed("interval-bounded", bounds.low_ns, phi_ms=phi_ms, micro_ms=micro_ms)
