"""The interface of all algorithms that choose FSP's interval. An algorithm gives the terms of a
round before it opens, and evaluates its measurements afterwards.

Workers measure the objective at the beginning of a round, before its interval, and report it with
their contributions to that round. So one value is the end of one measurement and the beginning of
the next.
"""

import math
import statistics

import msgspec

from polyrhythm.core.machine import Reason
from polyrhythm.core.values import keep_last

FIRST_NS = 200 * 10**6
_LONGEST_NS = 60 * 10**9
_ROUNDS = 5
_FAST = 4
"""The speed of the workers is that of the second fastest of the last five rounds. Disturbances only
make rounds slower, so fast rounds show the speed best."""
_VARY = 1.2
_PHIS = 2
"""Without a learning rate: a search starts with an interval of this many times the cost of a
barrier, so that barriers take a third of the time."""
_LEAST_BATCH = 0.75
"""Without a learning rate: a search starts with at least this share of the interval in which the
workers visit as many points as in a round of bsp."""
_ASK_EVERY = 4


class IntervalTerms(msgspec.Struct, frozen=True):
    interval_ns: int
    probe: bool
    """Whether workers measure the objective before the interval begins."""
    parts: int = 1
    """Workers measure the objective on every n-th point of the probe sample; this is n."""


class Measured(msgspec.Struct, frozen=True):
    """The measurements of one closed round."""

    interval_ns: int
    """How long the workers worked in this round: less than the interval if a worker had visited all
    of its points."""
    phi_ns: int
    """The barrier's cost: the mean over workers of the time from pause to resume, without the time
    to measure the objective."""
    objective: float | None = None
    """The objective when this round opened; None if it was not measured."""
    micro_ns: int = 0
    """The duration of the slowest worker's shortest micro-batch; 0 if unknown."""
    pass_ns: int | None = None
    """The time that the fastest worker needs for all of its points; None if unknown."""
    usual: bool = True
    """Whether `phi_ns` was measured in this round. Otherwise it is the cost of an earlier, typical
    barrier."""
    batches: float = 0.0
    """The points of the round, divided by the points of a bsp round, in which each worker visits one
    batch of the user's size; 0 if unknown."""
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


class Bounds(msgspec.Struct):
    """The limits of the interval: at least max(phi, two micro-batches), and at most one pass of the
    fastest worker.

    phi (the cost of a barrier) and the micro-batch time are medians of the last five rounds that
    measured them, so that a single delay changes nothing. If a pass is shorter than the lower
    limit, the lower limit applies. That does no harm, because a worker that has visited all of its
    points asks to end the round.

    `rated`: whether the user has chosen a learning rate, which fits batches of a certain size.
    `scaled`: whether a round with fewer points than a batch of every worker makes a part of a step
    (kind gradient).
    """

    rated: bool = True
    scaled: bool = False
    _phis_ns: list[int] = []
    _micros_ns: list[int] = []
    _batches_ns: list[float] = []
    _pass_ns: int | None = None
    probe_ns: int = 0
    """How long the last measurement of the objective took."""

    def on_measured(self, measured: Measured) -> None:
        if measured.usual:
            keep_last(self._phis_ns, measured.phi_ns, _ROUNDS)
        if measured.micro_ns:
            keep_last(self._micros_ns, measured.micro_ns, _ROUNDS)
        if measured.batches > 0:
            keep_last(self._batches_ns, measured.interval_ns / measured.batches, _ROUNDS)
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
        """The lower limit. It is at most a minute: the values come from workers, and a wrong report
        must not stop all folds."""
        return min(_LONGEST_NS, max(1, self.phi_ns, 2 * self.micro_ns))

    def allow(self, interval_ns: int) -> bool:
        """Whether a chosen interval may stay. The interval may be a little below the lower limit,
        because the limit varies with the measured costs."""
        return interval_ns >= self.phi_ns and _VARY * interval_ns >= self.low_ns

    @property
    def least_useful_ns(self) -> float:
        """The shortest interval that a search may choose, apart from the lower limit. With scaled
        steps it is the interval of a batch: several parts of a step move the parameters as far as
        one whole step over the same points, and each part costs a barrier."""
        return self._batch_ns() if self.scaled else 0.0

    @property
    def high_ns(self) -> int:
        return max(self.low_ns, self._pass_ns or _LONGEST_NS)

    @property
    def start_ns(self) -> int:
        """The interval with which a search begins, always within the limits. The search leaves it
        only as far as measurements show a gain.

        With a learning rate, it is the interval in which all workers together visit as many points
        as in a round of bsp, because the user chose the rate for batches of that size. Until a
        round is measured, it is the lower limit.

        Without a learning rate, the only disadvantage of short rounds is the cost of their
        barriers, so the interval is twice that cost. But it is not much shorter than that of a bsp
        round, because parameters computed from very few points are poor.
        """
        batch_ns = self._batch_ns()
        if self.rated:
            return self.clamp(batch_ns)
        return self.clamp(max(_PHIS * self.phi_ns, _LEAST_BATCH * batch_ns))

    def _batch_ns(self) -> float:
        """The interval in which all workers together visit as many points as in a round of bsp; 0
        until a round has been measured."""
        if not self._batches_ns:
            return 0.0
        slowest_first = sorted(self._batches_ns, reverse=True)
        return slowest_first[min(_FAST, len(slowest_first)) - 1]

    def clamp(self, interval_ns: float) -> int:
        return max(self.low_ns, min(self.high_ns, round(interval_ns)))


class BlindInterval(msgspec.Struct):
    """The interval while no objective is reported: the one with which a search would begin.

    The interval follows that value only if the two differ by more than a quarter. In every fourth
    round, workers are asked to measure the objective.
    """

    interval_ns: int
    _rounds: int = 1

    @property
    def probe(self) -> bool:
        return self._rounds % _ASK_EVERY == 0

    def reason(self, bounds: Bounds) -> Reason:
        return interval_reason("interval-blind", self.interval_ns, phi_ms=bounds.phi_ns / 1e6)

    def on_closed(self, bounds: Bounds) -> Reason | None:
        self._rounds += 1
        wanted_ns = bounds.start_ns
        if 4 * self.interval_ns <= 5 * wanted_ns and 4 * wanted_ns <= 5 * self.interval_ns:
            return None
        self.interval_ns = wanted_ns
        return self.reason(bounds)


def interval_reason(code: str, interval_ns: int, **fields: float) -> Reason:
    return Reason(code, {"interval_ms": interval_ns / 1e6, **fields})


def raised_reason(bounds: Bounds) -> Reason:
    """The reason for raising the interval to the lower limit."""
    phi_ms = bounds.phi_ns / 1e6
    if bounds.low_ns == bounds.phi_ns:
        return interval_reason("interval-raised", bounds.low_ns, phi_ms=phi_ms)
    micro_ms = bounds.micro_ns / 1e6
    return interval_reason("interval-bounded", bounds.low_ns, phi_ms=phi_ms, micro_ms=micro_ms)
