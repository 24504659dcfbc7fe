"""The targets of a job (`--target`), and its time limit (`--max-seconds`)."""

from collections.abc import Mapping

import msgspec

from polyrhythm.core.machine import Deadline, Reason
from polyrhythm.core.metrics import MOST_NAMES, OBJECTIVE, Reported
from polyrhythm.wire.messages import JobSpec, Target
from polyrhythm.wire.messages.reasons import Field

PATIENCE = 20
_SAID_AFTER = 3
"""If no worker evaluates, the lead says that a metric is missing after a worker has reported
another metric this many times."""
_PASSES = 2
_SILENT_NS = 30 * 10**9
"""If no worker has reported any metric for this long, the lead writes that to the journal."""
_MOST_SHOWN = 10
"""The most names of metrics in a sentence of the journal."""


class Targets(msgspec.Struct):
    """Whether a metric has reached its target, and whether any worker reports the metric.

    *A target whose metric no worker reports can never end the job. The first evaluation without the
    metric makes the lead write the reported names to the journal. A job without another goal ends
    as failed when a worker has reported some other metric `PATIENCE` times and two full passes are
    over.* So a metric that is reported once per pass, or every few passes, has time to appear.
    """

    _targets: tuple[Target, ...]
    _alone: bool
    """Whether the job has no other goals than targets."""
    _missing: set[str]
    """The metrics of targets that no worker has reported yet."""
    _reported: Reported = msgspec.field(default_factory=Reported)
    _objective: float | None = None
    _counts: dict[tuple[int, str], int] = {}
    """How often each worker has reported each metric, while the metric of a target is missing."""
    _said: bool = False

    @classmethod
    def begin(cls, job: JobSpec) -> "Targets":
        others = (job.rounds, job.epochs, job.points, job.max_seconds, job.target_change)
        alone = all(goal is None for goal in others)
        return cls(job.targets, alone, {target.metric for target in job.targets})

    # -- values --------------------------------------------------------------------------------

    def fault(self, metrics: Mapping[str, float]) -> Reason | None:
        """Why a report with these metrics is refused; None if the lead accepts it."""
        if self._reported.has_room_for(metrics):
            return None
        return Reason("too-many-metrics", {"most": MOST_NAMES})

    def take(self, worker: int, metrics: Mapping[str, float], *, evaluated: bool) -> Reason | None:
        """Handle values that a worker reports. Returns a reason to write to the journal if the metric
        of a target is missing from the reports; else None."""
        self._reported.take(worker, metrics, evaluated=evaluated)
        if not self._missing:
            return None
        self._missing -= metrics.keys()
        for name in metrics:
            self._count(worker, name)
        often = any(self._counts[worker, name] >= _SAID_AFTER for name in metrics)
        return self._say() if evaluated or often else None

    def _count(self, worker: int, name: str) -> None:
        self._counts[worker, name] = self._counts.get((worker, name), 0) + 1

    def left(self, worker: int) -> None:
        self._reported.left(worker)

    def on_measured(self, objective: float | None) -> None:
        """Take the objective of the last rounds as the value of the metric `objective`. It is None if
        no worker reported a loss."""
        if objective is not None:
            self._objective = objective
            self._missing.discard(OBJECTIVE)
        elif OBJECTIVE in self._missing:
            self._count(-1, OBJECTIVE)

    # -- decisions -----------------------------------------------------------------------------

    def reached(self) -> dict[str, Field] | None:
        """The first target that is reached; None if none is."""
        for target in self._targets:
            name = target.metric
            value = self._objective if name == OBJECTIVE else self._reported.value(name)
            if value is not None and target.met(value):
                fields: dict[str, Field] = {"metric": name, "value": value, "wanted": target.value}
                return {"goal": "target", **fields, "at_least": target.at_least}
        return None

    def find_silence(self, open_ns: int) -> Reason | None:
        """The reason for an entry in the journal, if no worker has reported any metric within
        `open_ns` after round 1 opened; else None."""
        waits = self._missing and not self._reported.names and open_ns >= _SILENT_NS
        return self._say() if waits else None

    def hopeless(self, passes: int | None) -> Reason | None:
        """Why the job can never reach its goal; None if it can. `passes`: how many passes are over;
        None if passes are not counted."""
        missing = self._missing
        if not missing or not self._alone or len(missing) < len(self._metrics()):
            return None
        if passes is not None and passes < _PASSES:
            return None
        if max(self._counts.values(), default=0) < PATIENCE:
            return None
        return Reason("target-missing", self._fields())

    def _metrics(self) -> set[str]:
        return {target.metric for target in self._targets}

    def _say(self) -> Reason | None:
        if self._said or not self._missing:
            return None
        self._said = True
        return Reason("target-unreported", self._fields())

    def _fields(self) -> dict[str, Field]:
        names = self._reported.names
        more = f" and {len(names) - _MOST_SHOWN} more" if len(names) > _MOST_SHOWN else ""
        return {
            "target": ", ".join(sorted(self._missing)),
            "names": ", ".join(names[:_MOST_SHOWN]) + more or "nothing",
        }


LEAST_NS = 10 * 10**9
MOST_NS = 60 * 10**9


def patience_ns(limit_ns: int, longest_ns: int) -> int:
    """The patience of a job: how long it waits for a fold after its time limit. `longest_ns`: the
    longest time before the limit between two contributions of a worker."""
    return min(max(limit_ns // 10, LEAST_NS), MOST_NS) + longest_ns


class TimeLimit(msgspec.Struct):
    """The time limit of a job, and how long the job may go on after it.

    *The limit is a goal like others: the job ends with the first fold after it. If no fold comes,
    the job waits for `patience_ns` and then ends without one (`overtime.py`).* A worker that
    computes at the limit has begun its step before, so it contributes within the time of a step.
    Therefore the patience includes the longest step that the job has seen (decision 105).

    The limit counts from the opening of round 1. *If round 1 does not open within the start
    timeout, the limit counts from the end of that timeout. So a job ends even if its workers hang
    before they attach a model.*
    """

    _limit_ns: int | None
    """None if the job has no limit."""
    _until_ns: int | None = None
    """When the job reaches its limit; None if there is no limit, or if round 1 has not opened."""
    _since_ns: int = 0
    """The time from which the patience (`patience_ns`) counts."""
    _began_ns: dict[int, int] = {}
    """Per worker, when it entered or last contributed."""
    _longest_ns: int = 0
    deadline: Deadline = msgspec.field(default_factory=Deadline)
    """When to call `overdue`: the end of the patience. None if the lead is not waiting for it."""
    leaving: bool = False
    """Whether the lead now waits for workers to leave their loops, and no longer for a fold."""

    @classmethod
    def begin(cls, seconds: float | None) -> "TimeLimit":
        """`seconds`: the limit; None if the job has none."""
        return cls(None if seconds is None else round(seconds * 1e9))

    @property
    def patience_ns(self) -> int:
        return patience_ns(self._limit_ns or 0, self._longest_ns)

    @property
    def waits(self) -> bool:
        """Whether the lead waits for the end of the patience."""
        return self.deadline.wake_ns is not None

    def expect(self, until_ns: int) -> None:
        """Note that a worker has joined. Round 1 should open before this time."""
        if self._limit_ns is not None and self._until_ns is None and not self.waits:
            self.wait_from(until_ns + self._limit_ns)

    def open(self, now_ns: int) -> None:
        """Begin to count the time: round 1 opens."""
        if self._limit_ns is not None:
            self._until_ns = now_ns + self._limit_ns
            self.wait_from(self._until_ns)

    def is_passed(self, now_ns: int) -> bool:
        return self._until_ns is not None and now_ns >= self._until_ns

    def on_entered(self, worker: int, now_ns: int) -> None:
        """Note that a worker has become a member and begins its first step."""
        if self._limit_ns is not None:
            self._began_ns[worker] = now_ns

    def on_contributed(self, worker: int, now_ns: int) -> None:
        """Measure the step that ends with a complete contribution. *Steps that end after the limit
        are not measured, so the patience is never longer than the limit and a minute.*"""
        if self._limit_ns is not None and not self.is_passed(now_ns):
            took_ns = now_ns - self._began_ns.get(worker, now_ns)
            self._began_ns[worker] = now_ns
            if took_ns > self._longest_ns:
                self._longest_ns = took_ns

    def after_s(self, now_ns: int) -> float:
        """The seconds since the limit was reached."""
        return 0.0 if self._until_ns is None else (now_ns - self._until_ns) / 1e9

    # -- after the limit -----------------------------------------------------------------------

    def wait_from(self, since_ns: int) -> None:
        """Begin to wait for a fold, until the patience is over."""
        self._since_ns = since_ns
        self.deadline.wake_ns = since_ns + self.patience_ns

    def overdue(self, now_ns: int) -> bool:
        """Whether the patience is over."""
        if not self.deadline.is_over(now_ns):
            return False
        # workers may have made longer steps since the deadline was computed
        self.deadline.wake_ns = self._since_ns + self.patience_ns
        return self.deadline.is_over(now_ns)

    def on_settled(self) -> None:
        """Stop waiting."""
        self.deadline.wake_ns = None

    def exclude_time(self, paused_ns: int, now_ns: int) -> None:
        """Begin the patience again: the lead was paused, and has read no message meanwhile."""
        if self.deadline.wake_ns is not None:
            self.wait_from(max(self._since_ns, now_ns))
