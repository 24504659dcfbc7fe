"""The work of the workers of a run: of each worker in total and in the last seconds, means and
medians over rounds, and the metrics of the run."""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from polyrhythm.core.metrics import Reported
from polyrhythm.wire.messages import Target
from polyrhythm.wire.messages.reasons import Reason

Fields = Mapping[str, Any]
"""The fields of one worker in a `rounds` line of the journal."""


class Totals(msgspec.Struct, frozen=True):
    """The work of one worker since the job began."""

    contributions: int = 0
    points: int = 0
    compute_s: float = 0.0
    wait_s: float = 0.0
    transfer_s: float = 0.0
    redone_s: float = 0.0
    """The part of `compute_s` that was lost, because other workers visit the same points again."""
    skipped: int = 0
    """How many steps and contributions were left out because they were not finite."""
    without_step: int = 0
    """How many contributions were left out because the training loop had made no step."""

    @classmethod
    def of(cls, fields: Fields) -> "Totals":
        return cls(
            fields.get("contributions", 0),
            fields.get("points", 0),
            fields.get("compute_ns", 0) / 1e9,
            fields.get("wait_ns", 0) / 1e9,
            fields.get("transfer_ns", 0) / 1e9,
            fields.get("redone_ns", 0) / 1e9,
            fields.get("skipped", 0),
            fields.get("without_step", 0),
        )

    def since(self, before: "Totals") -> "Totals":
        return Totals(
            self.contributions - before.contributions,
            self.points - before.points,
            self.compute_s - before.compute_s,
            self.wait_s - before.wait_s,
            self.transfer_s - before.transfer_s,
            self.redone_s - before.redone_s,
            self.skipped - before.skipped,
            self.without_step - before.without_step,
        )

    @property
    def busy_s(self) -> float:
        return self.compute_s + self.wait_s + self.transfer_s

    @property
    def shares(self) -> tuple[float, float, float] | None:
        """The shares of time spent on computing, waiting and transferring. None if no time was
        measured."""
        whole = self.busy_s
        if whole <= 0:
            return None
        return self.compute_s / whole, self.wait_s / whole, self.transfer_s / whole


@dataclass(slots=True)
class ObservedWorker:
    """One worker of a run: its work, its speed, and whether it is in the job."""

    worker: int
    name: str
    joined_s: float
    incarnation: int | None = None
    clock: int | None = None
    device: str = ""
    """The device on which the worker computes; empty if the journal does not name the device."""
    measured: Fields = field(default_factory=dict)
    """The fields of this worker in the last line about rounds. `before`: the fields in a line that
    is `recent_s` seconds older."""
    before: Fields = field(default_factory=dict)
    recent_s: float = 0.0
    reports: dict[str, float] = field(default_factory=dict)
    waited_for_s: float = 0.0
    """How long the job waited for this worker. Only waits of more than a second are counted,
    because shorter ones have no `waiting` line."""
    joins: int = 1
    joined_late: bool = False
    """Whether the worker last joined after round 1 had opened."""
    contributed_before: int = 0
    """The number of its contributions when it last joined."""
    no_points: bool = False
    """Whether the worker is idle because it has never had points to visit."""
    left_s: float | None = None
    left: Reason | None = None
    """Why the worker left; None while it is in the job."""

    @property
    def totals(self) -> Totals:
        return Totals.of(self.measured)

    @property
    def passes(self) -> float | None:
        """How many passes the worker has made over its points; None if the passes do not differ
        between workers, or are not known."""
        return self.measured.get("passes")

    @property
    def recent(self) -> Totals:
        """The work of the last `recent_s` seconds."""
        return self.totals.since(Totals.of(self.before))

    @property
    def present(self) -> bool:
        return self.left is None

    @property
    def starting(self) -> bool:
        """Whether the worker has joined a running job and contributed nothing since."""
        contributed = self.measured.get("contributions", 0)
        return self.present and self.joined_late and contributed <= self.contributed_before

    @property
    def contributions_per_s(self) -> float:
        return self._per_s("contributions")

    @property
    def points_per_s(self) -> float:
        return self._per_s("points")

    def _per_s(self, field: str) -> float:
        """How much this field has grown per second in the last `recent_s` seconds."""
        grown = self.measured.get(field, 0) - self.before.get(field, 0)
        return float(grown / self.recent_s) if self.recent_s else 0.0


_RECENT_S = 10.0


@dataclass(slots=True)
class RecentWork:
    """The work of all workers in the last ten seconds of the journal, from which their speeds are
    computed."""

    _samples: deque[tuple[float, dict[Any, Fields]]] = field(default_factory=deque)
    """The `rounds` lines of the last ten seconds: the time of each, and its fields per worker."""

    def take(
        self, measured: dict[Any, Fields], at_s: float, workers: Mapping[int, ObservedWorker]
    ) -> None:
        """Read the fields per worker of a `rounds` line that was written at `at_s`, and update
        `workers`. The fields are not converted, because there may be thousands of workers in
        thousands of lines."""
        self._samples.append((at_s, measured))
        while len(self._samples) > 2 and self._samples[1][0] <= at_s - _RECENT_S:
            self._samples.popleft()
        before_s, before = self._samples[0]
        for number, fields in measured.items():
            state = workers.get(int(number))
            if state is None:
                continue
            state.measured, state.before = fields, before.get(number, {})
            if state.no_points and fields.get("contributions"):
                state.no_points = False
            state.recent_s = at_s - max(before_s, state.joined_s)
            state.clock = fields.get("clock", state.clock)


@dataclass(slots=True)
class MeanOverRounds:
    """A mean over the rounds of a run. Each line of the journal summarises several rounds."""

    value: float | None = None
    """The mean so far; None if no line of the journal has had a value."""
    _rounds: int = 0

    def take(self, value: float | None, rounds: int) -> None:
        if value is not None:
            whole = (self.value or 0.0) * self._rounds + value * rounds
            self._rounds += rounds
            self.value = whole / max(1, self._rounds)


@dataclass(slots=True)
class MedianOverRounds:
    """An approximate median: each line of the journal has only the median of the rounds that it
    covers."""

    _lines: list[tuple[float, int]] = field(default_factory=list)

    def take(self, value: float | None, rounds: int) -> None:
        if value is not None and rounds:
            self._lines.append((value, rounds))

    @property
    def value(self) -> float | None:
        half, seen = sum(rounds for _, rounds in self._lines) / 2, 0
        for value, rounds in sorted(self._lines):
            seen += rounds
            if seen >= half:
                return value
        return None


@dataclass(slots=True)
class Extremes:
    """The times at which a changing value was higher or lower than ever before. They show when the
    value first reached a bound, and need little memory even if the value changes often."""

    _highs: list[tuple[float, float]] = field(default_factory=list)
    _lows: list[tuple[float, float]] = field(default_factory=list)

    def take(self, at_s: float, value: float) -> None:
        if not self._highs or value > self._highs[-1][1]:
            self._highs.append((at_s, value))
        if not self._lows or value < self._lows[-1][1]:
            self._lows.append((at_s, value))

    def first_s(self, met: Callable[[float], bool]) -> float | None:
        """The first time at which the value met a bound from above or from below; None if it never
        did."""
        found = [at_s for at_s, value in (*self._highs, *self._lows) if met(value)]
        return min(found, default=None)


@dataclass(slots=True)
class Pushed:
    """The contributions that differed from the whole model, and their size, as their workers have
    measured it."""

    contributions: int = 0
    _nbytes: int = 0

    def take(self, fields: Mapping[str, int]) -> None:
        """Read the fields `pushed` of a line about rounds."""
        self.contributions += fields.get("contributions", 0)
        self._nbytes += fields.get("nbytes", 0)

    def nbytes(self, contributions: int, whole: float) -> int:
        """The size of this many contributions in bytes. Those that did not report a size have the
        size `whole`."""
        return self._nbytes + round((contributions - self.contributions) * whole)


@dataclass(slots=True)
class RunMetrics:
    """The last values of all metrics, and when they first reached a bound. Values of workers that
    have left still count, because at the end of a run all have left."""

    unreported: Reason | None = None
    """The lead's remark that a target is not among the reported metrics."""
    _reported: Reported = field(default_factory=Reported)
    _extremes: dict[str, Extremes] = field(default_factory=dict)

    def take(
        self, at_s: float, worker: int, metrics: Mapping[str, float], *, evaluated: bool
    ) -> None:
        self._reported.take(worker, metrics, evaluated=evaluated)
        for name in metrics:
            value = self._reported.value(name)
            assert value is not None
            self._extremes.setdefault(name, Extremes()).take(at_s, value)
        if self.unreported is not None:
            self._still_unreported(self.unreported)

    def _still_unreported(self, remark: Reason) -> None:
        """Update the lead's remark: it names only metrics that no worker has reported yet."""
        names = str(remark.fields["target"]).split(", ")
        missing = [name for name in names if name not in self._reported]
        fields = {**remark.fields, "target": ", ".join(missing)}
        self.unreported = Reason(remark.code, fields) if missing else None

    def value(self, name: str) -> float | None:
        """The last value of a metric: of the last evaluation, or the mean of the last reports of
        all workers. None if there is none."""
        return self._reported.value(name)

    def values(self) -> dict[str, float]:
        """The last value of every metric, by its name."""
        return self._reported.means()

    def first_s(self, target: Target) -> float | None:
        """When the target was first met; None if it never was."""
        extremes = self._extremes.get(target.metric)
        return None if extremes is None else extremes.first_s(target.met)
