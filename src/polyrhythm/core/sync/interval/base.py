"""The seam of all intervals: the terms of a round before it opens, and its measurements afterwards.

Workers measure the objective at the parameters with which a round opens, before its interval begins, and
report it with their contributions to that round. So the value that ends one measurement begins the next.
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
"""The fourth slowest of five rounds shows the workers' speed: a disturbance makes a round visit fewer
points, never more."""
_VARY = 1.2
_ASK_EVERY = 4


@dataclass(frozen=True, slots=True)
class IntervalTerms:
    interval_ns: int
    probe: bool
    """Measure the objective before the interval begins."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The measurements of one closed round."""

    interval_ns: int
    """How long the workers worked: less than the interval if a worker had visited all of its points."""
    phi_ns: int
    """The barrier's cost: the mean over workers of the time from pause to resume, without measuring the
    objective."""
    objective: float | None = None
    """The objective when this round opened; None if it was not measured."""
    micro_ns: int = 0
    """The slowest worker's shortest micro-batch; 0: unknown."""
    pass_ns: int | None = None
    """The time of the fastest worker for all of its points; None: unknown."""
    usual: bool = True
    """`phi_ns` was measured in this round. Otherwise it is the value of an earlier, typical barrier."""
    batches: float = 0.0
    """The points of the round in units of a round of bsp, which is one of the user's batches per worker;
    0: unknown."""
    probe_ns: int = 0
    """The longest time that a worker needed to measure the objective; 0 if it was not measured."""

    @property
    def work_s(self) -> float:
        return max(1, self.interval_ns) / 1e9

    @property
    def elapsed_s(self) -> float:
        return (max(1, self.interval_ns) + self.phi_ns) / 1e9

    @property
    def finite_objective(self) -> float | None:
        return self.objective if self.objective is None or math.isfinite(self.objective) else None


class Interval(Protocol):
    def next(self) -> IntervalTerms:
        """The terms of the coming round."""

    def closed(self, measured: Measured) -> Reason | None:
        """Take a closed round into account. Return a reason if the interval changes."""


class Bounds:
    """The shortest and the longest interval: max(phi, two micro-batches), and one pass of the fastest.

    phi and micro-batches are medians of the last five rounds that measured them, so one delay of one
    worker changes nothing. The lower bound wins if a pass is shorter than it: a worker that has visited
    all of its points asks for the barrier anyway.
    """

    def __init__(self) -> None:
        self._phis_ns: deque[int] = deque(maxlen=_ROUNDS)
        self._micros_ns: deque[int] = deque(maxlen=_ROUNDS)
        self._batches_ns: deque[float] = deque(maxlen=_ROUNDS)
        self._pass_ns: int | None = None
        self.probe_ns = 0
        """The time of the last measurement of the objective."""

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
        """At most a minute, because workers report the values, and no worker may stop all folds."""
        return min(_LONGEST_NS, max(1, self.phi_ns, 2 * self.micro_ns))

    def allow(self, interval_ns: int) -> bool:
        """Whether a chosen interval may stay. It may be a little too short, because costs vary."""
        return interval_ns >= self.phi_ns and _VARY * interval_ns >= self.low_ns

    @property
    def high_ns(self) -> int:
        return max(self.low_ns, self._pass_ns or _LONGEST_NS)

    @property
    def batch_ns(self) -> int:
        """The interval in which all workers together visit as many points as in a round of bsp.

        The user chose the learning rate for a batch of that size. The result is within the bounds; it
        is the lower bound until a round has been measured.
        """
        if not self._batches_ns:
            return self.low_ns
        slowest_first = sorted(self._batches_ns, reverse=True)
        return self.clamp(slowest_first[min(_FAST, len(slowest_first)) - 1])

    def clamp(self, interval_ns: float) -> int:
        return max(self.low_ns, min(self.high_ns, round(interval_ns)))


class BlindInterval:
    """The interval while no objective is reported: rounds have as many points as under bsp.

    It changes only if it is wrong by more than a quarter. Every fourth round asks for the objective.
    """

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._rounds = 1
        self.interval_ns = bounds.batch_ns

    @property
    def probe(self) -> bool:
        return self._rounds % _ASK_EVERY == 0

    def reason(self) -> Reason:
        return interval_reason("interval-blind", self.interval_ns, phi_ms=self._bounds.phi_ns / 1e6)

    def closed(self) -> Reason | None:
        self._rounds += 1
        wanted_ns = self._bounds.batch_ns
        if 4 * self.interval_ns <= 5 * wanted_ns and 4 * wanted_ns <= 5 * self.interval_ns:
            return None
        self.interval_ns = wanted_ns
        return self.reason()


def interval_reason(code: str, interval_ns: int, **fields: float) -> Reason:
    return Reason(code, {"interval_ms": interval_ns / 1e6, **fields})


def raised_reason(bounds: Bounds) -> Reason:
    """Why the interval was raised to the lower bound."""
    phi_ms = bounds.phi_ns / 1e6
    if bounds.low_ns == bounds.phi_ns:
        return interval_reason("interval-raised", bounds.low_ns, phi_ms=phi_ms)
    micro_ms = bounds.micro_ns / 1e6
    return interval_reason("interval-bounded", bounds.low_ns, phi_ms=phi_ms, micro_ms=micro_ms)
