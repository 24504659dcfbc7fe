"""The targets of a job: whether a metric has reached its value, and whether any worker reports the
metric.

*A target whose metric no worker reports can never end the job. When an evaluation lacks the metric
for the first time, the lead says so in one line, with the names that are reported. If the job has no
other goal, it ends as failed after a worker has reported some other metric `PATIENCE` times and two
full passes of the data are over. So a metric that is reported once per pass, or every few passes,
has time to appear.*
"""

from collections import Counter
from collections.abc import Mapping

from polyrhythm.core.machine import Reason
from polyrhythm.core.metrics import MOST_NAMES, OBJECTIVE, Reported
from polyrhythm.wire.messages import JobSpec
from polyrhythm.wire.messages.reasons import Field

PATIENCE = 20
_SAID_AFTER = 3
"""If no worker evaluates, the lead says that a metric is missing after a worker has reported
another metric this many times."""
_PASSES = 2
_SILENT_NS = 30 * 10**9
"""If no worker has reported anything for this long, the lead says so in a line."""
_MOST_SHOWN = 10
"""The most names of metrics that a sentence in the journal lists."""


class Targets:
    def __init__(self, job: JobSpec) -> None:
        self._targets = job.targets
        others = (job.rounds, job.epochs, job.points, job.max_seconds, job.target_change)
        self._alone = all(goal is None for goal in others)
        """Whether the targets are the only goals of the job."""
        self._reported = Reported()
        self._objective: float | None = None
        self._missing = {target.metric for target in job.targets}
        """The metrics of targets that no worker has reported yet."""
        self._counts: Counter[tuple[int, str]] = Counter()
        """How often each worker has reported each metric. Counted while the metric of a target is
        missing."""
        self._said = False

    # -- values --------------------------------------------------------------------------------

    def fault(self, metrics: Mapping[str, float]) -> Reason | None:
        """Why a report with these metrics is refused; None if it is accepted."""
        if self._reported.fits(metrics):
            return None
        return Reason("too-many-metrics", {"most": MOST_NAMES})

    def take(self, worker: int, metrics: Mapping[str, float], *, evaluated: bool) -> Reason | None:
        """A worker reports values. Returns a reason to write to the journal if the metric of a target
        is missing from the reports; else None."""
        self._reported.take(worker, metrics, evaluated=evaluated)
        if not self._missing:
            return None
        self._missing -= metrics.keys()
        self._counts.update((worker, name) for name in metrics)
        often = any(self._counts[worker, name] >= _SAID_AFTER for name in metrics)
        return self._say() if evaluated or often else None

    def left(self, worker: int) -> None:
        self._reported.left(worker)

    def measured(self, objective: float | None) -> None:
        """Take the objective of the last rounds as the value of the metric `objective`. It is None if
        no worker reported a loss."""
        if objective is not None:
            self._objective = objective
            self._missing.discard(OBJECTIVE)
        elif OBJECTIVE in self._missing:
            self._counts[-1, OBJECTIVE] += 1

    # -- decisions -----------------------------------------------------------------------------

    def reached(self) -> dict[str, Field] | None:
        """The first target that is reached, or None."""
        for target in self._targets:
            name = target.metric
            value = self._objective if name == OBJECTIVE else self._reported.value(name)
            if value is not None and target.met(value):
                fields: dict[str, Field] = {"metric": name, "value": value, "wanted": target.value}
                return {"goal": "target", **fields, "at_least": target.at_least}
        return None

    def silent(self, open_ns: int) -> Reason | None:
        """Returns a reason to write to the journal if no worker has reported anything, `open_ns`
        after round 1 opened; else None."""
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
