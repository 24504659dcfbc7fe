"""FSP's interval, found anew in every stage of training (FSP §3.3, multi-stage linear fitting).

*The search starts where the user's own batch size would: with the interval in which all workers
together visit as many points as in a round of bsp. It moves away from there only as far as the
readings prove.*

*Measuring undoes nothing: parts at eta and parts at 2 eta take turns, and the objective is read
between them. The mean of both neighbours of a part stands at the same moment of training as the part
itself, so the trend of training cancels.* Four such comparisons give the slope of the line g and its
error; g gives the interval with the highest gain per second. Of all intervals that are best for a
slope within three standard errors, the one nearest to the start is taken. So noise alone moves nothing,
which matters because an interval that is too short costs at most half of the time (it is never
shorter than a barrier), while one that is too long can cost the training itself.

The paper rolls back between the two measurements instead, and trains on the same data twice. A part
has several rounds, so that reading the objective takes a tenth of the time at most and one lucky
step does not decide. A stage is over after three checks in a row with under 80% of the promised gain;
checks become rarer while measuring finds nothing better.
"""

import math
import statistics
from dataclasses import dataclass
from itertools import pairwise

from polyrhythm.core.machine import Reason
from polyrhythm.core.sync.interval.base import (
    Blind,
    Bounds,
    IntervalTerms,
    Measured,
    changed,
    raised,
)
from polyrhythm.core.sync.interval.gain import Line

_FIRST_NS = 10 * 10**6
_WARM_UP = (5, 12)
"""Rounds before the first measurement, at least and at most. The first has cold processes; the second
reads the objective, which tells what a reading costs; the others approach the interval in which the
workers visit one batch each."""
_ABOUT_ONE = (0.67, 1.5)
_SHORTER, _LONGER = 4, 2
"""How much a stage may change the interval. A longer one than was tried is never chosen: too long does
more harm than too short, and the line is only right near the lengths that were measured."""
_ENOUGH = 0.8
_CHECKS = 3
_COMPARISONS = 4
_ERRORS = 3.0
"""A slope may differ from the measured one by so many standard errors."""
_LEAST_ROUNDS = 4
_READINGS = 10
"""A part takes at least so many times as long as reading the objective."""
_RAREST = 8
_CLEARLY_LONGER = 1.2
_ALIKE = 1.25


@dataclass(slots=True)
class _Stage:
    promised: float
    """Gain of the objective per second."""
    interval_ns: int
    """What was chosen; the bounds may raise the interval above it for a while."""
    span: int
    """Rounds from one check to the next."""
    rounds: int = 0
    short: int = 0
    read: float | None = None
    elapsed_s: float = 0.0


@dataclass(slots=True)
class _Trial:
    """One measurement: the plan of its rounds, and what has come of it."""

    part: int
    """Rounds of a part at eta; a part at 2 eta has half as many."""
    plan: list[tuple[int, bool]]
    """Per round: how many eta it lasts, and whether it opens with a reading."""
    rounds: list[Measured]


class AutoInterval:
    """The first rounds last 10 ms. Without an objective the interval is the one that visits one
    batch each, and the next reading is awaited."""

    def __init__(self) -> None:
        self._bounds = Bounds()
        self._interval_ns = _FIRST_NS
        self._warmed = 0
        self._trial: _Trial | None = None
        self._stage: _Stage | None = None
        self._blind: Blind | None = None
        self._rarity = 1
        """How many times rarer checks are than they could be."""

    def next(self) -> IntervalTerms:
        if self._blind is not None:
            return IntervalTerms(self._blind.interval_ns, self._blind.probe)
        if self._trial is not None:
            times, probe = self._trial.plan[len(self._trial.rounds)]
            return IntervalTerms(times * self._interval_ns, probe)
        if self._stage is not None:
            return IntervalTerms(self._interval_ns, self._stage.rounds % self._stage.span == 0)
        return IntervalTerms(self._interval_ns, self._warmed == 1)

    def closed(self, measured: Measured) -> Reason | None:
        unread = self.next().probe and measured.reading is None
        self._bounds.measured(measured)
        if self._blind is not None:
            return self._blind.closed() if measured.reading is None else self._see(self._blind)
        if unread:
            self._blind = Blind(self._bounds)
            self._trial = self._stage = None
            return self._blind.reason()
        if self._trial is not None:
            return self._learn(measured, self._trial)
        if self._stage is not None:
            return self._check(measured, self._stage)
        return self._warm_up(measured)

    def _warm_up(self, measured: Measured) -> Reason | None:
        self._warmed += 1
        before_ns = self._interval_ns
        if self._warmed > 1:
            most_ns = max(2 * before_ns, self._bounds.low_ns)
            self._interval_ns = min(most_ns, self._bounds.batch_ns)
        least, most = _WARM_UP
        few, many = _ABOUT_ONE
        settled = few <= measured.batches <= many or self._interval_ns == before_ns
        if self._warmed >= (least if settled else most):
            return self._measure("interval-measuring")
        if self._interval_ns == before_ns:
            return None
        return changed("interval-started", self._interval_ns)

    def _see(self, blind: Blind) -> Reason:
        self._interval_ns, self._blind = blind.interval_ns, None
        return self._measure("interval-measuring")

    def _measure(self, code: str, **fields: float) -> Reason:
        """Both lengths must be possible, so that they differ when they are tried."""
        self._stage = None
        most_ns = max(self._bounds.low_ns, self._bounds.high_ns // 2)
        self._interval_ns = min(most_ns, self._bounds.clamp(self._interval_ns))
        round_ns = self._interval_ns + self._bounds.phi_ns
        many = max(_LEAST_ROUNDS, math.ceil(_READINGS * self._bounds.probe_ns / round_ns))
        part = 2 * math.ceil(many / 2)
        self._trial = _Trial(part, _plan(part), [])
        return changed(code, self._interval_ns, **fields)

    def _learn(self, measured: Measured, trial: _Trial) -> Reason | None:
        trial.rounds.append(measured)
        if len(trial.rounds) < len(trial.plan):
            return None
        phi, tried_ns = self._bounds.phi_ns / 1e9, self._interval_ns
        low_ns = self._bounds.clamp(tried_ns / _SHORTER)
        high_ns = self._bounds.clamp(tried_ns * _LONGER)
        fit = _fit(trial)
        possible = [
            line.best_within(low_ns / 1e9, high_ns / 1e9, phi) for line in (fit.least, fit.most)
        ]
        eta = max(min(possible), min(max(possible), self._bounds.batch_ns / 1e9))
        self._interval_ns = round(eta * 1e9)
        alike = tried_ns <= _ALIKE * self._interval_ns and self._interval_ns <= _ALIKE * tried_ns
        self._rarity = min(_RAREST, 2 * self._rarity) if alike else 1
        self._trial = None
        self._stage = _Stage(fit.line.gain(eta, phi), self._interval_ns, self._rarity * trial.part)
        fields = {"before_ms": tried_ns / 1e6, "gain": self._stage.promised}
        return changed("interval-chosen", self._interval_ns, **fields)

    def _check(self, measured: Measured, stage: _Stage) -> Reason | None:
        if stage.rounds % stage.span == 0:
            reading = measured.reading
            if stage.read is not None and reading is not None:
                gained = (stage.read - reading) / stage.elapsed_s
                enough = stage.promised - (1 - _ENOUGH) * abs(stage.promised)
                stage.short = stage.short + 1 if gained < enough else 0
                if stage.short == _CHECKS:
                    fields = {"gain": gained, "promised": stage.promised}
                    return self._measure("interval-stage-over", **fields)
            stage.read, stage.elapsed_s = reading, 0.0
        stage.elapsed_s += measured.elapsed_s
        stage.rounds += 1
        return self._keep_bounds(stage)

    def _keep_bounds(self, stage: _Stage) -> Reason | None:
        low_ns = self._bounds.low_ns
        if not self._bounds.allow(self._interval_ns):
            self._interval_ns = low_ns
            return raised(self._bounds)
        wanted_ns = max(stage.interval_ns, low_ns)
        if self._interval_ns <= _ALIKE * wanted_ns:
            return None
        self._interval_ns = wanted_ns
        return changed("interval-lowered", wanted_ns)


def _plan(part: int) -> list[tuple[int, bool]]:
    """Parts at eta and 2 eta in turn, as long as each other. The last round only ends the last
    part."""
    short, long = [(1, at == 0) for at in range(part)], [(2, at == 0) for at in range(part // 2)]
    return [*(short + long) * _COMPARISONS, *short, (1, True)]


@dataclass(frozen=True, slots=True)
class _Fit:
    line: Line
    least: Line
    """The line with the steepest fall that the readings allow: short intervals are best."""
    most: Line


def _fit(trial: _Trial) -> _Fit:
    """The line through what a second of work gained at eta, with the mean slope towards 2 eta."""
    ends = [at for at, (_, probe) in enumerate(trial.plan) if probe]
    parts = [_part(trial.rounds[start : end + 1]) for start, end in pairwise(ends)]
    slopes = [_slope(*parts[at : at + 3]) for at in range(0, len(parts) - 2, 2)]
    length = statistics.fmean(length for length, _ in parts[::2])
    gained = statistics.fmean(gained for _, gained in parts[::2])
    slope = statistics.fmean(slopes)
    error = _ERRORS * statistics.stdev(slopes) / math.sqrt(len(slopes))
    lines = [Line(a, gained - a * length) for a in (slope, slope - error, slope + error)]
    return _Fit(*lines)


def _slope(
    before: tuple[float, float], middle: tuple[float, float], after: tuple[float, float]
) -> float:
    """Where the middle was not clearly longer (a worker had visited all points), nothing is known of
    longer intervals: a level line."""
    length, gained = (before[0] + after[0]) / 2, (before[1] + after[1]) / 2
    if middle[0] < _CLEARLY_LONGER * length:
        return 0.0
    return (middle[1] - gained) / (middle[0] - length)


def _part(rounds: list[Measured]) -> tuple[float, float]:
    """The mean length of a part's rounds, and what a second of them gained; the last one ends it."""
    *inside, end = rounds
    work_s = sum(round_.work_s for round_ in inside)
    gained = (inside[0].reading or 0.0) - (end.reading or 0.0)
    return work_s / len(inside), gained / work_s
