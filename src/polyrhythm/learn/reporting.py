"""The values that a user's code reports or evaluates: they are checked, sent to the lead, and written
to the user's own log."""

import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from polyrhythm.core.metrics import OBJECTIVE
from polyrhythm.errors import UsageError
from polyrhythm.learn.evaluation import PASS, EvaluationSchedule, call_key, schedule_of
from polyrhythm.learn.exchange import Exchange
from polyrhythm.learn.metrics import checked
from polyrhythm.learn.models import Models
from polyrhythm.learn.writers import AnyWriter, Writers
from polyrhythm.runtime.worker.node import WorkerNode
from polyrhythm.wire.messages import MOST_NUMBER, JobSpec


class CountsPasses(Protocol):
    """How often a worker has visited its points."""

    @property
    def first(self) -> int:
        """The number of passes when the worker began."""
        ...

    @property
    def now(self) -> int | None:
        """The number of passes now; None if they are not counted."""
        ...


class Reporter:
    def __init__(
        self, node: WorkerNode, job: JobSpec, passes: CountsPasses, models: Models
    ) -> None:
        self._models = models
        self.writers = Writers(node.name)
        self._node = node
        self._job = job
        self._passes = passes
        self._decides = any(target.metric != OBJECTIVE for target in job.targets)
        self._names: set[str] = set()
        self._left_out: set[str] = set()
        """The names of metrics about which this worker has warned because they were not finite."""
        self._schedules: dict[tuple[object, ...], EvaluationSchedule] = {}

    @property
    def exchange(self) -> Exchange | None:
        """The exchange of the worker; None until the worker has joined the job with its models."""
        return self._models.exchange

    def log_to(self, writer: AnyWriter) -> None:
        self.writers.add(writer)

    def report(self, metrics: Mapping[Any, Any], call: str = "worker.report") -> None:
        """`call`: the function of the worker that got these values."""
        measured = checked(metrics, call, self._names)
        finite = {name: value for name, value in measured.items() if abs(value) <= MOST_NUMBER}
        for name in sorted(measured.keys() - finite.keys() - self._left_out):
            self._left_out.add(name)
            worker, value = self._node.name, measured[name]
            said = f"{worker} does not report {name}={value}: it is not a finite number"
            print(f"polyrhythm: {said}", file=sys.stderr, flush=True)
        if not finite:
            return
        exact = self.exchange is None or self.exchange.has_version
        version = self._node.loop.version
        evaluated = call != "worker.report"
        self._node.report(finite, version if exact else -1, evaluated=evaluated)
        if self._node.evaluates:
            self.writers.write(finite, self._job.resume_round + version)

    def evaluate(
        self,
        function: Callable[[], Mapping[str, Any]] | None,
        every: str | int | None,
        measures: Mapping[str, Callable[[], Any]],
    ) -> None:
        began_ns = time.monotonic_ns()
        _check_functions(function, measures)
        key = call_key(every, function, tuple(measures))
        schedule = self._schedules.get(key)
        if schedule is None:
            schedule = schedule_of(every, began_ns, self._passes.first, decides=self._decides)
            self._schedules[key] = schedule
        passes = self._passes.now
        if passes is None and every == PASS:
            raise UsageError(
                "worker.evaluate(every='pass') counts the passes of worker.batches(), and this loop"
                " has none that are counted: give a number of calls such as 100, or a time such as"
                " '30s'"
            )
        passes = passes or 0
        if not schedule.due(began_ns, passes) or not self._ready(at_end=every == PASS):
            return
        if self._node.evaluates:
            self._evaluate(function, measures)
            if self.exchange is not None:
                self.exchange.exclude_time(time.monotonic_ns() - began_ns)
        schedule.done(began_ns, time.monotonic_ns(), passes)

    def _ready(self, *, at_end: bool) -> bool:
        """Whether the model may be evaluated now. `at_end`: also when the job has ended."""
        loop, exchange = self._node.loop, self.exchange
        if loop.asked:
            return False
        if loop.stopped:
            if at_end and exchange is not None:
                exchange.settle()  # wait for the final version
            return at_end
        # Do not evaluate in the middle of an interval: the evaluation could outlast it, and the
        # other workers would wait.
        return exchange is None or not (exchange.traits.timed and exchange.pending)

    def _evaluate(
        self,
        function: Callable[[], Mapping[str, Any]] | None,
        measures: Mapping[str, Callable[[], Any]],
    ) -> None:
        values: dict[Any, Any] = {}
        if function is not None:
            found = function()
            if not isinstance(found, Mapping):
                raise UsageError(
                    f"worker.evaluate: the function returned a {type(found).__name__}: it must return"
                    " a dict such as {'val_loss': 0.3}"
                )
            values.update(found)
        values.update({name: measure() for name, measure in measures.items()})
        self.report(values, "worker.evaluate")


def _check_functions(function: object, measures: Mapping[str, object]) -> None:
    given = {"the first argument": function} if function is not None else {}
    for what, measure in {**given, **measures}.items():
        if not callable(measure):
            raise UsageError(
                f"worker.evaluate: {what} is a {type(measure).__name__} and not a function; a value"
                " that is already known belongs to worker.report"
            )
    if function is None and not measures:
        raise UsageError(
            "worker.evaluate: give a function, such as accuracy=lambda: accuracy(model)"
        )
