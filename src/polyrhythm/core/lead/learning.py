"""Whether a job learns: does the objective fall, rise, stagnate, or is it not finite?

*It is judged once per full pass, by the mean loss of the pass (`passes.py`). A rise counts from the
best pass so far, and only if it exceeds a tenth of all that was gained, a twentieth of the objective
itself, and what the spread of the losses explains. So the noise of a healthy run, early or late, is no
rise. After its n-th rise an objective must be back at its best for n passes in a row before it counts
as falling. It stagnates when its best falls by less than 0.5% of where it began: within five passes
that is convergence if much was gained before, and within three it is a fault if little was.*

A finding carries a state and numbers; `observe/learning.py` puts it into words.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from polyrhythm.core.lead.passes import RunningMean

_OF_GAIN = 0.1
_OF_LEVEL = 0.05
_ERRORS = 3.0
_MOST_NOISE = 0.5
"""The limit of the noise, as a share of the first objective: exploding losses differ so much within a
pass that their standard error would excuse any rise."""
_BACK = 0.25
"""Within this share of the margin above the best, an objective is back at its best."""
_STALLS = 3
_SETTLES = 5
"""Passes without a fall after which an objective has stalled, or settled."""
_FLAT = 0.005
_MOVES = 2 * _FLAT
"""A flat objective falls again when it falls by this share within as many passes."""
_LEARNED = 0.2
"""A gain of less than this share of the first objective is not convergence."""


class LearningState(StrEnum):
    FALLING = "falling"
    SETTLED = "settled"
    """It does not change any more, far below where it began: convergence."""
    STALLED = "stalled"
    """It does not change, and is about where it began."""
    RISING = "rising"
    """It rose above its best pass, and has not come back."""
    NOT_FINITE = "not-finite"


FAULTS = frozenset({LearningState.STALLED, LearningState.RISING, LearningState.NOT_FINITE})


@dataclass(frozen=True, slots=True)
class Finding:
    """The numbers are mean losses of passes; `first` is that of the first round."""

    state: LearningState
    passes: int
    objective: float | None
    first: float | None
    best: float | None
    best_pass: int
    rises: int
    """How often the objective rose so far."""
    workers: tuple[int, ...] = ()
    """Not finite: the workers that reported it."""

    def fields(self) -> dict[str, Any]:
        return {**asdict(self), "state": str(self.state), "workers": list(self.workers)}

    @classmethod
    def read(cls, fields: Mapping[str, Any]) -> "Finding":
        """From the fields of a journal line."""
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
    def lost(self) -> float:
        """The share of all that was gained that the last pass has lost again; 1 or more: the objective
        is no lower than it was at first."""
        if self.objective is None or self.first is None or self.best is None:
            return 0.0
        gained, lost = self.first - self.best, self.objective - self.best
        return lost / gained if gained > 0 else float(lost > 0)


class Trend:
    """The values of one objective from pass to pass. All of them are finite."""

    def __init__(self) -> None:
        self.state = LearningState.FALLING
        self.first: RunningMean | None = None
        self.last: RunningMean | None = None
        self.best: RunningMean | None = None
        self.best_pass = 0
        self.rises = 0
        self._back = 0
        """Passes in a row that were back at the best."""
        self._bests: list[float] = []
        """The best after each of the last passes."""

    def begin(self, first: RunningMean) -> None:
        """The objective before training: the mean loss of the first round."""
        self.first = first

    def passed(self, loss: RunningMean, passes: int) -> None:
        first = self.first
        if first is None:
            first = self.first = loss
        if self.best is None:
            # the losses of one round do not show how much they vary: the first pass does
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
        learned = first.value - best.value >= _LEARNED * scale
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


class Learning:
    """Judges the learning of a job. An objective that is not finite is reported at once; the finding
    ends after a full pass without one."""

    def __init__(self, *, resumed: bool = False) -> None:
        """`resumed`: the job continues after a checkpoint, so the first round is not the objective
        before training, and the first pass is compared with."""
        self._trend = Trend()
        self._passes = 0
        self._broken: dict[int, None] = {}
        """Workers that reported an objective that is not finite, since the last check."""
        self._unfinished: set[int] = set()
        """Workers whose last objective was not finite."""
        self._first_sum = self._first_weight = 0.0
        self._opening = not resumed
        self._said = LearningState.FALLING

    # -- measurements --------------------------------------------------------------------------

    def count(self, worker: int, objective: float, weight: float) -> None:
        """A contribution with this objective is complete."""
        if not math.isfinite(objective):
            self._broken[worker] = None
            self._unfinished.add(worker)
            return
        self._unfinished.discard(worker)
        if self._opening:
            self._first_sum += objective * weight
            self._first_weight += weight

    def folded(self) -> None:
        """A round is over: the first one gives the objective before training."""
        if self._opening and self._first_weight:
            self._opening = False
            first = self._first_sum / self._first_weight
            self._trend.begin(RunningMean(first, 0.0, self._first_weight))

    def passed(self, passes: int, loss: RunningMean | None) -> None:
        """A full pass is over. Its losses count unless one of them is not finite."""
        self._passes = passes
        if loss is None:
            return
        if math.isfinite(loss.value):
            self._broken = dict.fromkeys(sorted(self._unfinished))
            self._trend.passed(loss, passes)

    def left(self, worker: int) -> None:
        self._unfinished.discard(worker)

    # -- findings ------------------------------------------------------------------------------

    @property
    def unfinished(self) -> bool:
        """The last objective of some worker is not finite."""
        return bool(self._unfinished)

    @property
    def finding(self) -> Finding:
        trend = self._trend
        return Finding(
            LearningState.NOT_FINITE if self._broken else trend.state,
            self._passes,
            None if trend.last is None else trend.last.value,
            None if trend.first is None else trend.first.value,
            None if trend.best is None else trend.best.value,
            trend.best_pass,
            trend.rises,
            tuple(self._broken),
        )

    def news(self) -> Finding | None:
        """The finding if its state has changed since the last call, else None."""
        finding = self.finding
        if finding.state is self._said:
            return None
        self._said = finding.state
        return finding
