"""FSP's automatic interval, which is measured again in every stage of training (FSP §3.3,
multi-stage linear fitting).

**Start.** The search starts with the interval in which all workers together visit as many points as
in a round of bsp, because the user chose the learning rate for batches of that size. The kind
statistics has no learning rate. Its search starts with twice the cost of a barrier or with three
quarters of the interval above, whichever is longer (`Bounds.start_ns`). The search leaves its start
only as far as measurements prove a gain.

**Trial.** A trial consists of parts of several rounds each. Parts with the interval eta alternate
with parts with 2 eta, and the objective is measured between the parts. Each part at 2 eta is
compared with the mean of the two parts beside it, so that the general trend of training cancels
out. Four such comparisons give the slope of the line g and its standard error, and g gives the
interval with the highest gain per second (`gain`).

**Choice.** Each slope within three standard errors leads to such an interval. The search chooses
the one nearest to the starting interval, so noise alone does not move the interval. An interval
that is too short costs at most half of the time, because it is never shorter than a barrier. One
that is too long can make training fail. With kind gradient the search never chooses an interval
with fewer points than a round of bsp: such a round makes a part of a step.

**Checks.** After a trial, the gain is checked regularly, and less often while trials confirm the
interval. A stage ends after three consecutive checks that find less than 80% of the promised gain.

The paper instead restores earlier parameters between two measurements, and trains on the same data
twice. Here a part has several rounds, so measuring the objective takes at most a tenth of the time,
and one lucky step does not decide. If a trial would take longer than the job has run, the objective
is measured only on a part of the sample. So a short job soon has its first trial, and spends little
time on it.
"""

import math
import statistics
from dataclasses import dataclass
from itertools import pairwise

import msgspec

from polyrhythm.core.machine import Reason
from polyrhythm.core.sync.interval.base import (
    BlindInterval,
    Bounds,
    IntervalTerms,
    Measured,
    interval_reason,
    raised_reason,
)
from polyrhythm.core.sync.interval.gain import Line

_FIRST_NS = 10 * 10**6
_FIRST_UNRATED_NS = 25 * 10**6
"""The length of the first rounds without a learning rate. The first round replaces the initial
parameters by parameters computed from its points, and those from very few points can be worse than
the initial ones."""
_WARM_UP = (5, 12)
"""The smallest and the largest number of rounds before the search makes its first trial. In the
first round the processes still warm up. The second round measures the objective, and so shows how
long measuring takes. The other rounds approach the interval in which each worker visits one
batch."""
_ABOUT_ONE = (0.67, 1.5)
_SHORTER, _LONGER = 4, 2
"""A stage divides the interval by up to 4, or at most doubles it. It never chooses a longer
interval than it has tried: a too long interval does more harm than a too short one, and the line is
right only near the measured lengths."""
_ENOUGH = 0.8
_CHECKS = 3
_COMPARISONS = 4
_ERRORS = 3.0
"""By how many standard errors the true slope may differ from the measured one."""
_LEAST_ROUNDS, _MOST_ROUNDS = 4, 1_000
"""The smallest and the largest number of rounds in one part of a trial. Without the upper limit, a
worker's wrong report about the time to measure the objective could make a trial endless."""
_MOST_MISSED = 8
"""The objective may be missing for this many consecutive rounds. With kind statistics there is none
while points move between workers, because the sum lacks these points."""
_PROBES = 10
"""A part of a trial takes this many times as long as measuring the objective, unless that needs
more than `_MOST_ROUNDS` rounds."""
_SAMPLES = (1, 2, 4, 8)
"""The objective is measured on the whole sample, or on a half, a quarter or an eighth of it. The
share is as large as possible, but a trial must not take longer than the job has trained so far. The
first measurement of a job uses an eighth."""
_NARROWEST, _WIDEST = 4, 8
"""The smallest and the largest number of rounds between two checks of the promised gain, in units
of the rounds of one part of the trial. A stage has at least three checks, so it takes longer than
its trial, which has nine parts."""
_CLEARLY_LONGER = 1.2
_ALIKE = 1.25


@dataclass(slots=True)
class _Stage:
    promised: float
    """The fall of the objective per second that the trial predicted."""
    interval_ns: int
    """The chosen interval. The lower limit replaces it while that is longer."""
    span: int
    """The number of rounds from one check to the next."""
    rounds: int = 0
    short: int = 0
    """The number of consecutive checks that found less than the promised gain."""
    objective: float | None = None
    """The objective at the last check."""
    elapsed_s: float = 0.0
    """The time since the last check."""


@dataclass(slots=True)
class _Trial:
    """One trial: the plan of its rounds, and their measurements."""

    part: int
    """The number of rounds of a part at eta; a part at 2 eta has half as many."""
    plan: list[tuple[int, bool]]
    """Per round: its length in units of eta, and whether it measures the objective first."""
    rounds: list[Measured]


class AutoInterval(msgspec.Struct, tag=True):
    """The interval of `--interval auto`. The first rounds last 10 ms, or 25 ms
    without a learning rate (kind statistics).

    While no objective is reported, the interval has the length with which a search would begin.
    """

    _bounds: Bounds = msgspec.field(default_factory=Bounds)
    _interval_ns: int = _FIRST_NS
    _warmed: int = 0
    _trial: _Trial | None = None
    _stage: _Stage | None = None
    _blind: BlindInterval | None = None
    _measured: bool = False
    """Whether the objective was ever measured."""
    _missed: int = 0
    """The number of consecutive rounds without the objective that the workers were asked to
    measure."""
    _age_s: float = 0.0
    """The total time of all rounds so far."""
    _parts: int = _SAMPLES[-1]
    """The probe sample is divided into this many parts, and the objective is measured on one of
    them."""
    _spacing: int = _NARROWEST
    """The number of rounds between two checks, divided by the number of rounds in one part of the
    trial."""

    @classmethod
    def with_scaled_steps(cls) -> "AutoInterval":
        """The interval for kind gradient. There a short round makes only a part of a step."""
        return cls(Bounds(scaled=True))

    @classmethod
    def without_rate(cls) -> "AutoInterval":
        """The interval for a kind without a learning rate."""
        return cls(Bounds(rated=False), _FIRST_UNRATED_NS)

    def next(self) -> IntervalTerms:
        if self._blind is not None:
            return IntervalTerms(self._blind.interval_ns, self._blind.probe, self._parts)
        if self._trial is not None:
            times, probe = self._trial.plan[len(self._trial.rounds)]
            return IntervalTerms(times * self._interval_ns, probe, self._parts)
        if self._stage is not None:
            checks = self._stage.rounds % self._stage.span == 0
            return IntervalTerms(self._interval_ns, checks, self._parts)
        return IntervalTerms(self._interval_ns, self._warmed == 1, self._parts)

    def on_closed(self, measured: Measured) -> Reason | None:
        unmeasured = self.next().probe and measured.finite_objective is None
        self._bounds.on_measured(measured)
        self._age_s += measured.elapsed_s
        if self._blind is not None:
            return (
                self._blind.on_closed(self._bounds)
                if measured.finite_objective is None
                else self._try_again(self._blind)
            )
        self._missed = self._missed + 1 if unmeasured else 0
        if unmeasured and self._measured and self._missed <= _MOST_MISSED:
            return None  # the next round has the same terms, so it requests the objective again
        self._measured = self._measured or measured.finite_objective is not None
        if unmeasured:
            self._blind = BlindInterval(self._bounds.start_ns)
            self._trial = self._stage = None
            return self._blind.reason(self._bounds)
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
            self._interval_ns = min(most_ns, self._bounds.start_ns)
        least, most = _WARM_UP
        few, many = _ABOUT_ONE
        settled = few <= measured.batches <= many or self._interval_ns == before_ns
        if self._warmed >= (least if settled else most):
            return self._begin_trial("interval-measuring")
        if self._interval_ns == before_ns:
            return None
        return interval_reason("interval-started", self._interval_ns)

    def _try_again(self, blind: BlindInterval) -> Reason:
        self._interval_ns, self._blind = blind.interval_ns, None
        return self._begin_trial("interval-measuring")

    def _begin_trial(self, code: str, **fields: float) -> Reason:
        """Start a trial with an interval eta such that eta and 2 eta are within the limits."""
        self._stage = None
        most_ns = max(self._bounds.low_ns, self._bounds.high_ns // 2)
        self._interval_ns = min(most_ns, self._bounds.clamp(self._interval_ns))
        round_ns = self._interval_ns + self._bounds.phi_ns
        whole_ns = self._bounds.probe_ns * self._parts
        for self._parts in _SAMPLES:
            many = min(_MOST_ROUNDS, math.ceil(_PROBES * whole_ns / self._parts / round_ns))
            part = 2 * math.ceil(max(_LEAST_ROUNDS, many) / 2)
            takes_s = (2 * _COMPARISONS + 1) * part * round_ns / 1e9
            if many <= _LEAST_ROUNDS or takes_s <= self._age_s:
                break
        self._trial = _Trial(part, _plan(part), [])
        return interval_reason(code, self._interval_ns, **fields)

    def _learn(self, measured: Measured, trial: _Trial) -> Reason | None:
        trial.rounds.append(measured)
        if len(trial.rounds) < len(trial.plan):
            return None
        phi, tried_ns = self._bounds.phi_ns / 1e9, self._interval_ns
        high_ns = self._bounds.clamp(tried_ns * _LONGER)
        least_ns = max(tried_ns / _SHORTER, self._bounds.least_useful_ns)
        low_ns = min(high_ns, self._bounds.clamp(least_ns))
        fit = _fit(trial)
        possible = [
            line.best_within(low_ns / 1e9, high_ns / 1e9, phi) for line in (fit.least, fit.most)
        ]
        eta = max(min(possible), min(max(possible), self._bounds.start_ns / 1e9))
        self._interval_ns = round(eta * 1e9)
        alike = tried_ns <= _ALIKE * self._interval_ns and self._interval_ns <= _ALIKE * tried_ns
        self._spacing = min(_WIDEST, 2 * self._spacing) if alike else _NARROWEST
        self._trial = None
        self._stage = _Stage(fit.line.gain(eta, phi), self._interval_ns, self._spacing * trial.part)
        fields = {"before_ms": tried_ns / 1e6, "gain": self._stage.promised}
        return interval_reason("interval-chosen", self._interval_ns, **fields)

    def _check(self, measured: Measured, stage: _Stage) -> Reason | None:
        if stage.rounds % stage.span == 0:
            objective = measured.finite_objective
            if stage.objective is not None and objective is not None:
                gained = (stage.objective - objective) / stage.elapsed_s
                enough = stage.promised - (1 - _ENOUGH) * abs(stage.promised)
                stage.short = stage.short + 1 if gained < enough else 0
                if stage.short == _CHECKS:
                    fields = {"gain": gained, "promised": stage.promised}
                    return self._begin_trial("interval-stage-over", **fields)
            stage.objective, stage.elapsed_s = objective, 0.0
        stage.elapsed_s += measured.elapsed_s
        stage.rounds += 1
        return self._keep_bounds(stage)

    def _keep_bounds(self, stage: _Stage) -> Reason | None:
        low_ns = self._bounds.low_ns
        if not self._bounds.allow(self._interval_ns):
            self._interval_ns = low_ns
            return raised_reason(self._bounds)
        wanted_ns = max(stage.interval_ns, low_ns)
        if self._interval_ns <= _ALIKE * wanted_ns:
            return None
        self._interval_ns = wanted_ns
        return interval_reason("interval-lowered", wanted_ns)


def _plan(part: int) -> list[tuple[int, bool]]:
    """The rounds of a trial: parts at eta and at 2 eta alternate, and all take equally long. The
    last round belongs to no part. It measures the objective at the end of the last part."""
    short, long = [(1, at == 0) for at in range(part)], [(2, at == 0) for at in range(part // 2)]
    return [*(short + long) * _COMPARISONS, *short, (1, True)]


class _Fit(msgspec.Struct, frozen=True):
    line: Line
    least: Line
    """The flattest line that is consistent with the measurements. It favours short intervals."""
    most: Line
    """The steepest line that is consistent with the measurements. It favours long intervals."""


def _fit(trial: _Trial) -> _Fit:
    """Three lines through the measured gain at eta. One has the mean of the slopes from eta to 2
    eta; the slopes of the others are `_ERRORS` standard errors away."""
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
    """The slope from one comparison of three parts.

    Returns 0 if the rounds of the middle part were not clearly longer, because a worker had visited
    all of its points. Such a trial says nothing about longer intervals.
    """
    length, gained = (before[0] + after[0]) / 2, (before[1] + after[1]) / 2
    if middle[0] < _CLEARLY_LONGER * length:
        return 0.0
    return (middle[1] - gained) / (middle[0] - length)


def _part(rounds: list[Measured]) -> tuple[float, float]:
    """The mean length of a part's rounds, and their gain per second of work. The last of `rounds`
    belongs to the next part; only its objective is used."""
    *inside, end = rounds
    work_s = sum(round_.work_s for round_ in inside)
    gained = (inside[0].finite_objective or 0.0) - (end.finite_objective or 0.0)
    return work_s / len(inside), gained / work_s
