"""The objective of each full pass, which `--target-change` and the monitoring of learning compare.

*A check is due once per full pass of the slowest worker (FSP §5.3), but only when as many points as
the data set has were visited since the last check: when chunks move between workers, the number of
full passes can rise twice within a few points. A check uses only values that were measured after
the last check.*
"""

import math
from dataclasses import dataclass

from polyrhythm.wire.messages import Trailer

_REST = 0.5
"""At the end of a job, a last check is made if this share of a pass was visited since the check
before it."""


@dataclass(frozen=True, slots=True)
class RunningMean:
    """A mean loss over a number of points, and its standard error."""

    value: float
    error: float
    points: float


@dataclass(frozen=True, slots=True)
class PassObjective:
    """`loss`: the mean over all contributions since the last check; None if none had an objective.
    `change`: how much the objective has changed since a check at least one pass ago; None if there
    is nothing to compare with yet."""

    passes: int
    loss: RunningMean | None
    change: float | None


@dataclass(frozen=True, slots=True)
class _Probed:
    """The mean loss over `sample` points of the probe sample, measured after `visited` points of
    training."""

    value: float
    sample: int
    visited: int


class _Losses:
    """The mean of weighted losses, and its standard error.

    Each loss is a mean over `weight` points. The difference of two losses at the same parameters
    has the variance of one point's loss times `1 / weight + 1 / other weight`. Contributions that
    follow each other were computed on nearly the same parameters. So their differences show the
    noise alone, without the change of the objective during the pass.
    """

    def __init__(self) -> None:
        self._weight = self._mean = 0.0
        self._before: tuple[float, float] | None = None
        self._pairs = 0
        self._variances = 0.0

    def add(self, loss: float, weight: float) -> None:
        self._weight += weight
        self._mean += (loss - self._mean) * weight / self._weight
        if self._before is not None:
            other, other_weight = self._before
            self._variances += (loss - other) ** 2 / (1 / weight + 1 / other_weight)
            self._pairs += 1
        self._before = (loss, weight)

    def mean(self) -> RunningMean | None:
        return RunningMean(self._mean, self._error(), self._weight) if self._weight else None

    def _error(self) -> float:
        """The standard error of the mean. With few differences the estimate is poor, so the error is
        made larger, about as Student's t does."""
        if not self._pairs:
            return 0.0
        return math.sqrt(self._variances / self._pairs / self._weight) * (1 + 2 / self._pairs)


class Passes:
    def __init__(self) -> None:
        self._losses = _Losses()
        self._checked = 0
        """The number of full passes at the last check."""
        self.visited = self._since = 0
        """The number of points visited in the whole job: now, and at the last check."""
        self._last: RunningMean | None = None
        self._share = (0.0, 0)
        """The probe sample in the open round: the sum of the losses over its points, and their
        number."""
        self._probed: _Probed | None = None
        """The last measurement on the probe sample, if it was made after the last check; else
        None."""
        self._compared: _Probed | None = None
        """The earlier measurement on the probe sample with which the next one is compared."""

    def count(self, trailer: Trailer, points: int) -> None:
        """A contribution is complete; `points` of its points were visited for the first time in
        their pass."""
        self.visited += points
        if trailer.objective is not None:
            self._losses.add(trailer.objective, trailer.weight)
        if trailer.probe is not None:
            total, sample = self._share
            self._share = (
                total + trailer.probe * trailer.probe_points,
                sample + trailer.probe_points,
            )

    def visit(self, points: int) -> None:
        """This many points were visited for the first time in their pass."""
        self.visited += points

    def folded(self, passes: int, data_set: int) -> PassObjective | None:
        """Contributions were folded, after `passes` full passes over `data_set` points. Returns the
        objective of the pass if a check is due."""
        self._close_probe()
        if passes <= self._checked or self.visited - self._since < data_set:
            return None
        return self._check(passes, data_set)

    def rest(self, passes: int, data_set: int) -> PassObjective | None:
        """The job ends. Returns a last objective if enough points were visited since the last check."""
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
        self._last, self._losses, self._probed = loss, _Losses(), None
        return PassObjective(passes, loss, change)

    def _probe_change(self, data_set: int) -> float | None:
        """The change between two measurements on the probe sample. The two are compared only if
        they are a full pass apart and over the same number of points: if a worker died, its share
        of the sample is missing."""
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
