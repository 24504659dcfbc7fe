"""A simulated training with a known gain per interval, for tests of the choice of intervals."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from polyrhythm.core.machine import Reason
from polyrhythm.core.sync.interval.base import IntervalTerms, Measured
from polyrhythm.core.sync.interval.fixed import Interval
from polyrhythm.observe.reasons import in_words

MS = 10**6


@dataclass
class Training:
    """A training whose objective falls by `rate(interval in s, seconds worked so far)` per
    second."""

    rate: Callable[[float, float], float]
    phi_ns: int = 20 * MS
    micro_ns: int = 1 * MS
    pass_ns: int | None = 10_000 * MS
    objective: float | None = 100.0
    worked_s: float = 0.0
    batch_ns: int = 200 * MS
    """The interval in which every worker visits one batch."""
    noise: Callable[[], float] = lambda: 0.0
    """The error of a reading of the objective."""

    def round(self, interval: Interval) -> tuple[IntervalTerms, Reason | None]:
        terms = interval.next()
        read = self.objective if terms.probe else None
        read = None if read is None else read + self.noise()
        interval_ns = min(terms.interval_ns, self.pass_ns or terms.interval_ns)
        work_s = interval_ns / 1e9
        if self.objective is not None:
            self.objective -= work_s * self.rate(work_s, self.worked_s + work_s / 2)
        self.worked_s += work_s
        told = Measured(
            interval_ns,
            self.phi_ns,
            read,
            self.micro_ns,
            self.pass_ns,
            batches=interval_ns / self.batch_ns,
        )
        return terms, interval.on_closed(told)

    def until(
        self, interval: Interval, code: str, most: int = 500
    ) -> tuple[list[IntervalTerms], Reason]:
        rounds = []
        for _ in range(most):
            terms, reason = self.round(interval)
            rounds.append(terms)
            if reason is not None:
                assert in_words(reason)
                if reason.code == code:
                    return rounds, reason
        raise AssertionError(f"no {code} in {most} rounds")


def line(a: float, b: float, trend: float = 0.0) -> Callable[[float, float], float]:
    return lambda eta, worked_s: a * eta + b + trend * worked_s


def peak(a: float, b: float, phi: float) -> float:
    """The interval with the largest gain per second for the rate `a * interval + b` and barriers of
    `phi` seconds. It is the positive root of the derivative of the gain per second."""
    return -phi + math.sqrt(phi * phi - b * phi / a)
