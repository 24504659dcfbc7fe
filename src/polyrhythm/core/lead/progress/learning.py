"""Decides whether a job learns: whether its objective falls, rises, stagnates, or is not finite. It
compares the objective of each full pass with that of earlier passes.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import msgspec

from polyrhythm.core.record import Record, RecordedMean
from polyrhythm.wire.messages import ContributionReport

_KEPT_PAIRS = 32
_REST = 0.5
"""The last check of a job is made if at least this share of a pass was visited since the check
before it."""


class RunningMean(msgspec.Struct, frozen=True):
    """A mean loss over a number of points, and its standard error."""

    value: float
    error: float
    points: float


class PassObjective(msgspec.Struct, frozen=True):
    """`loss`: the mean over all contributions since the last check; None if none had an objective.
    `change`: how much the objective has changed since a check at least one pass ago; None if there
    is nothing to compare with yet."""

    passes: int
    loss: RunningMean | None
    change: float | None


class _Probed(msgspec.Struct, frozen=True):
    """The mean loss over `sample` points of the probe sample, measured after `visited` points of
    training."""

    value: float
    sample: int
    visited: int


class _Losses(msgspec.Struct):
    """The weighted mean of losses, and its standard error.

    Each loss is a mean over `weight` points. So the difference of two losses at the same parameters
    has the variance of one point's loss, times `1 / weight + 1 / other weight`. Consecutive
    contributions were computed with nearly the same parameters. So their differences show the noise
    alone, without the change of the objective during the pass. A pass may have only two
    contributions, so the differences of earlier passes count too.
    """

    _weight: float = 0.0
    _mean: float = 0.0
    _before: tuple[float, float] | None = None
    _pairs: int = 0
    _variances: float = 0.0

    def add(self, loss: float, weight: float) -> None:
        self._weight += weight
        self._mean += (loss - self._mean) * weight / self._weight
        if self._before is not None:
            other, other_weight = self._before
            self._variances += (loss - other) ** 2 / (1 / weight + 1 / other_weight)
            self._pairs += 1
        self._before = (loss, weight)

    def next_pass(self) -> "_Losses":
        """Begin another mean. Keep the noise that is known, as if it had been found in at most
        `_KEPT_PAIRS` differences: it changes while the job learns."""
        kept = min(self._pairs, _KEPT_PAIRS)
        share = kept / self._pairs if self._pairs else 0.0
        return _Losses(_pairs=kept, _variances=self._variances * share)

    def mean(self) -> RunningMean | None:
        return RunningMean(self._mean, self._error(), self._weight) if self._weight else None

    def _error(self) -> float:
        """The standard error of the mean. With few differences the estimate is poor, so the error
        is enlarged, roughly as with Student's t."""
        if not self._pairs:
            return 0.0
        return math.sqrt(self._variances / self._pairs / self._weight) * (1 + 2 / self._pairs)


@dataclass(slots=True)
class Passes:
    """The objective of each full pass, which `--target-change` and `Learning` compare.

    *A check is due once per full pass of the slowest worker (FSP §5.3), but only if as many points
    were visited since the last check as the data set has.* Otherwise a move of chunks could make
    the number of full passes rise twice within a few points. A check uses only values that were
    measured after the last check.
    """

    visited: int = 0
    """The number of points visited in the whole job."""
    _losses: _Losses = field(default_factory=_Losses)
    _checked: int = 0
    """The number of full passes at the last check."""
    _since: int = 0
    """The number of points visited at the last check."""
    _last: RunningMean | None = None
    _share: tuple[float, int] = (0.0, 0)
    """In the open round: the sum of the losses over the points of the probe sample, and the number
    of these points."""
    _probed: _Probed | None = None
    """The last measurement on the probe sample, if it was made after the last check; else
    None."""
    _compared: _Probed | None = None
    """The earlier measurement on the probe sample with which the next one is compared."""

    def count(self, report: ContributionReport, points: int) -> None:
        """Count a complete contribution. `points`: how many of its points were visited for the
        first time in their pass."""
        self.visited += points
        if report.objective is not None:
            self._losses.add(report.objective, report.weight)
        if report.probe is not None:
            total, sample = self._share
            self._share = (
                total + report.probe * report.probe_points,
                sample + report.probe_points,
            )

    def visit(self, points: int) -> None:
        """Count points that were visited for the first time in their pass."""
        self.visited += points

    def on_folded(self, passes: int, data_set: int) -> PassObjective | None:
        """Check the pass after a fold, with `passes` full passes over `data_set` points. Returns
        the objective of the pass if a check is due."""
        self._close_probe()
        if passes <= self._checked or self.visited - self._since < data_set:
            return None
        return self._check(passes, data_set)

    def rest(self, passes: int, data_set: int) -> PassObjective | None:
        """Make a last check at the end of the job. Returns an objective if enough points were
        visited since the last check."""
        if not data_set or self.visited - self._since < _REST * data_set:
            return None
        self._close_probe()
        return self._check(passes, data_set)

    def _close_probe(self) -> None:
        total, sample = self._share
        if sample:
            self._probed = _Probed(total / sample, sample, self.visited)
            self._share = (0.0, 0)

    def _check(self, passes: int, data_set: int) -> PassObjective:
        loss = self._losses.mean()
        change = self._probe_change(data_set)
        if change is None and loss is not None and self._last is not None:
            change = abs(loss.value - self._last.value)
        self._checked, self._since = passes, self.visited
        self._last, self._losses, self._probed = loss, self._losses.next_pass(), None
        return PassObjective(passes, loss, change)

    def _probe_change(self, data_set: int) -> float | None:
        """The change between two measurements on the probe sample. They are compared only if they
        are a full pass apart and cover the same number of points. The number differs if a worker
        died, because its share of the sample is then missing."""
        now, before = self._probed, self._compared
        if now is None:
            return None
        if before is None or before.sample != now.sample:
            self._compared = now
            return None
        if now.visited - before.visited < data_set:
            return None
        self._compared = now
        return abs(now.value - before.value)


_OF_GAIN = 0.1
_OF_LEVEL = 0.05
_ERRORS = 4.0
"""A rise is larger than this many standard errors. The best pass of many is better by chance: with 30
passes by about two errors, so that fewer than four would be exceeded in one healthy run of ten."""
_MOST_NOISE = 0.5
"""The largest noise that counts, as a share of the first objective. When losses explode, they vary
so much within a pass that their standard error could explain any rise."""
_BACK = 0.25
"""After a rise, the objective counts as back at its best if it exceeds the best by at most this
share of the margin for a rise."""
_STALLS = 3
_SETTLES = 5
"""After this many passes without a fall, the objective of a job that has learned counts as settled.
The objective of a job that has learned little counts as stalled after `_STALLS` such passes."""
_FLAT = 0.005
_MOVES = 2 * _FLAT
"""A stagnating objective counts as falling again when it falls by this share of the first objective
within `_SETTLES` passes, or `_STALLS` passes if the job has learned little."""
_LEARNED = 0.05
"""A total gain below this share of the first objective is too little for convergence. Example: if
labels cannot be learned, the loss of a classifier falls by less than this, to the loss of equal
probabilities."""
_LEAST_FOLDS = 100
_LEAST_NS = 10 * 10**9
"""A job that has learned little is reported after this many folds and, unless it ends, after this
time. A small data set has several passes within a second, and no optimizer gets far in a second."""


class LearningState(StrEnum):
    FALLING = "falling"
    SETTLED = "settled"
    """The objective no longer changes and is far below its first value: convergence."""
    STALLED = "stalled"
    """The objective no longer changes and is about as high as its first value."""
    RISING = "rising"
    """The objective has risen above its best pass, and has not fallen back to it."""
    NOT_FINITE = "not-finite"


FAULTS = frozenset({LearningState.STALLED, LearningState.RISING, LearningState.NOT_FINITE})


class Finding(msgspec.Struct, frozen=True):
    """A state with its numbers. The numbers are mean losses of passes; only `first` is the mean
    loss of the first round.

    `observe/learning.py` puts findings into words.
    """

    state: LearningState
    passes: int
    objective: float | None
    first: float | None
    best: float | None
    best_pass: int
    rises: int
    """How often the objective has begun to rise so far."""
    workers: tuple[int, ...] = ()
    """If the objective is not finite: the workers that reported it."""

    def fields(self) -> dict[str, Any]:
        return {
            **msgspec.structs.asdict(self),
            "state": str(self.state),
            "workers": list(self.workers),
        }

    @classmethod
    def read(cls, fields: Mapping[str, Any]) -> "Finding":
        """Read a finding from the fields of a journal entry."""
        return cls(
            LearningState(fields["state"]),
            fields["passes"],
            fields["objective"],
            fields["first"],
            fields["best"],
            fields["best_pass"],
            fields["rises"],
            tuple(fields["workers"]),
        )

    @property
    def lost_share(self) -> float:
        """How much of its total gain the objective has lost again in the last pass. At 1 or more,
        the gain is gone."""
        if self.objective is None or self.first is None or self.best is None:
            return 0.0
        gained, lost = self.first - self.best, self.objective - self.best
        return lost / gained if gained > 0 else float(lost > 0)


class Trend(msgspec.Struct):
    """The values of one objective from pass to pass. All values are finite."""

    _learned: float = _LEARNED
    """A total gain of at least this share of the first objective means that the job learns."""
    state: LearningState = LearningState.FALLING
    first: RunningMean | None = None
    last: RunningMean | None = None
    best: RunningMean | None = None
    best_pass: int = 0
    rises: int = 0
    _back: int = 0
    """The number of consecutive passes in which the objective was back at its best."""
    _bests: list[float] = []
    """For each of the last passes, the best value up to the end of that pass."""

    def begin(self, first: RunningMean) -> None:
        """Set the objective before training: the mean loss of the first round."""
        self.first = first

    def on_pass(self, loss: RunningMean, passes: int) -> None:
        first = self.first
        if first is None:
            first = self.first = loss
        if self.best is None:
            # a single round does not show how much losses vary, so the error of the first pass is
            # used
            error = loss.error * math.sqrt(loss.points / first.points)
            self.best = RunningMean(first.value, error, first.points)
            self._bests = [first.value]
        above, margin = loss.value - self.best.value, self._margin(loss, first, self.best)
        self._judge_rise(above, margin)
        if above < 0:
            self.best, self.best_pass = loss, passes
        self.last = loss
        self._bests = [*self._bests[-_SETTLES:], self.best.value]
        if self.state is not LearningState.RISING:
            self.state = self._judge_fall(first, self.best, above <= margin)

    def _margin(self, loss: RunningMean, first: RunningMean, best: RunningMean) -> float:
        gained = max(0.0, first.value - best.value)
        noise = min(_ERRORS * math.hypot(loss.error, best.error), _MOST_NOISE * abs(first.value))
        return max(_OF_GAIN * gained, _OF_LEVEL * abs(best.value), noise)

    def _judge_rise(self, above: float, margin: float) -> None:
        if above > margin:
            if self.state is not LearningState.RISING:
                self.rises += 1
            self.state, self._back = LearningState.RISING, 0
        elif self.state is LearningState.RISING:
            self._back = self._back + 1 if above <= _BACK * margin else 0
            if self._back >= self.rises:
                self.state = LearningState.FALLING

    def _judge_fall(self, first: RunningMean, best: RunningMean, level: bool) -> LearningState:
        scale = abs(first.value)
        learned = first.value - best.value >= self._learned * scale
        flat = LearningState.SETTLED if learned else LearningState.STALLED
        window = _SETTLES if learned else _STALLS
        if len(self._bests) <= window or not level:
            return self.state
        fell = self._bests[-1 - window] - best.value
        if fell < _FLAT * scale:
            return flat
        if self.state is LearningState.FALLING or fell >= _MOVES * scale:
            return LearningState.FALLING
        return flat


class Learning(msgspec.Struct):
    """Judges once per full pass whether a job learns, by the mean loss of the pass.

    An objective that is not finite is reported at once. This finding ends after a full pass with
    finite objectives only.

    *A rise is measured from the best pass so far. It counts only if it is larger than a tenth of
    the total gain, larger than a twentieth of the objective, and larger than the spread of the
    losses explains. So the noise of a healthy run does not count. After the n-th rise, the
    objective counts as falling again only when it was back at its best for n consecutive passes.*

    *The objective stagnates if its best value falls by less than 0.5% of the first objective. Five
    such passes mean convergence if at least 5% were gained before. Three such passes mean a fault
    if less was gained. The lead reports the fault only after a hundred folds and, while the job
    runs, ten seconds of training.*
    """

    _trend: Trend
    _opening: bool
    _passes: int = 0
    _broken: dict[int, None] = {}
    """The workers that reported an objective that is not finite since the last check."""
    _unfinished: set[int] = set()
    """The workers whose last objective was not finite."""
    _first_sum: float = 0.0
    _first_weight: float = 0.0
    _folds: int = 0
    _began_ns: int | None = None
    _said: LearningState = LearningState.FALLING

    @classmethod
    def begin(cls, *, resumed: bool = False, small_gains: bool = False) -> "Learning":
        """`resumed`: the job continues from a checkpoint. Then the first round does not show the
        objective before training, and the model may have little left to learn. `small_gains`: even
        in a healthy job the objective may fall by only a small share of its first value."""
        return cls(Trend(0.0 if small_gains or resumed else _LEARNED), not resumed)

    @property
    def first(self) -> RecordedMean | None:
        """The objective before training, for a checkpoint; None if unknown."""
        first = self._trend.first
        return None if first is None else RecordedMean(first.value, first.points)

    def resume(self, record: Record) -> None:
        """Compare later passes with the objective before training. If the checkpoint does not
        contain it, they are compared with the first pass."""
        if record.first is not None:
            self._trend.begin(RunningMean(record.first.value, 0.0, record.first.points))

    # -- measurements --------------------------------------------------------------------------

    def count(self, worker: int, objective: float, weight: float) -> None:
        """Count a complete contribution of this worker with this objective."""
        if not math.isfinite(objective):
            self._broken[worker] = None
            self._unfinished.add(worker)
            return
        self._unfinished.discard(worker)
        if self._opening:
            self._first_sum += objective * weight
            self._first_weight += weight

    def on_folded(self, now_ns: int) -> None:
        """Note that a round is folded. The first round gives the objective before training."""
        self._folds += 1
        if self._began_ns is None:
            self._began_ns = now_ns
        if self._opening and self._first_weight:
            self._opening = False
            first = self._first_sum / self._first_weight
            self._trend.begin(RunningMean(first, 0.0, self._first_weight))

    def on_pass(self, passes: int, loss: RunningMean | None) -> None:
        """Judge a full pass. Its mean loss is used if all objectives in the pass were finite."""
        self._passes = passes
        if loss is None:
            return
        if math.isfinite(loss.value):
            self._broken = dict.fromkeys(sorted(self._unfinished))
            self._trend.on_pass(loss, passes)

    def left(self, worker: int) -> None:
        self._unfinished.discard(worker)

    # -- findings ------------------------------------------------------------------------------

    @property
    def unfinished(self) -> bool:
        """Whether the last objective of any worker is not finite."""
        return bool(self._unfinished)

    @property
    def finding(self) -> Finding:
        trend = self._trend
        return Finding(
            LearningState.NOT_FINITE if self._broken else self._judged(trend.state),
            self._passes,
            None if trend.last is None else trend.last.value,
            None if trend.first is None else trend.first.value,
            None if trend.best is None else trend.best.value,
            trend.best_pass,
            trend.rises,
            tuple(self._broken),
        )

    def _judged(self, state: LearningState) -> LearningState:
        early = state is LearningState.STALLED and self._folds < _LEAST_FOLDS
        return LearningState.FALLING if early else state

    def news(self, now_ns: int, *, last: bool = False) -> Finding | None:
        """The finding if its state has changed since it was last returned, else None. `last`: the
        job ends."""
        finding = self.finding
        if finding.state is self._said:
            return None
        early = self._began_ns is None or now_ns - self._began_ns < _LEAST_NS
        if finding.state is LearningState.STALLED and early and not last:
            return None
        self._said = finding.state
        return finding
