"""The metrics of a run: the values that workers reported or evaluated, from the journal's lines."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from polyrhythm.core.metrics import Reported
from polyrhythm.observe.work import Extremes
from polyrhythm.wire.messages import Target
from polyrhythm.wire.messages.reasons import Reason


@dataclass(slots=True)
class RunMetrics:
    """The last values of all metrics, and when they first reached a bound. Values of workers that
    have left still count, because at the end of a run all have left."""

    unreported: Reason | None = None
    """The lead's remark that a target is not among the metrics that are reported."""
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
        """Bring the lead's remark up to date: it names only what no worker has reported yet."""
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
