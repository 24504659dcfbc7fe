"""The values that the user's code reports: checks them, sends them to the lead, and writes them to
the user's log. Also decides when a worker evaluates the model while it trains."""

import functools
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from types import CodeType
from typing import Any, Protocol, TypeAlias

import torch

from polyrhythm.core.metrics import MOST_NAMES, OBJECTIVE, RESERVED, name_fault
from polyrhythm.core.values import parse_duration
from polyrhythm.errors import UsageError
from polyrhythm.learn.exchange import Exchange
from polyrhythm.learn.models import Models
from polyrhythm.runtime.worker.node import WorkerNode
from polyrhythm.wire.messages import MOST_METRICS, MOST_NUMBER, JobSpec


def checked(metrics: Mapping[Any, Any], call: str, known: set[str]) -> dict[str, float]:
    """Convert the values to numbers. `call`: the function that the user called, for error messages.
    `known`: the names that this worker has reported so far; new ones are added. Raises UsageError
    if a name or a value is not accepted."""
    if len(metrics) > MOST_METRICS:
        raise UsageError(f"{call} got {len(metrics)} values: it accepts at most {MOST_METRICS}")
    for name in metrics:
        _check_name(name, call)
    known |= metrics.keys()
    if len(known) > MOST_NAMES:
        raise UsageError(
            f"{call}: this worker has reported {len(known)} different names, and a job has at most"
            f" {MOST_NAMES}; do not put a step or a number into a name"
        )
    return {name: number_of(name, value, call) for name, value in metrics.items()}


def _check_name(name: object, call: str) -> None:
    if not isinstance(name, str):
        raise UsageError(f"{call}: {name!r} is not the name of a metric: a name is a text")
    if (fault := name_fault(name)) is not None:
        raise UsageError(f"{call}: {name[:80]!r} is not the name of a metric: {fault}")
    if name in RESERVED:
        raise UsageError(
            f"{call}: the name {name!r} is taken by a column of the history; choose another, such as"
            f" my_{name}"
        )


def number_of(name: str, value: Any, call: str) -> float:
    """The value of a metric as a number. It may be a Python or NumPy number, or a tensor with one
    element."""
    if isinstance(value, torch.Tensor):
        what = f"a tensor of shape {tuple(value.shape)}"
        value = value.detach().cpu().item() if value.numel() == 1 else None
    else:
        what = f"of type {type(value).__name__}"
        # a NumPy array with one element
        if getattr(value, "size", 0) == 1 and hasattr(value, "item"):
            value = value.item()
    if not isinstance(value, Real):
        raise UsageError(
            f"{call}: the value of {name} is {what}: give a number, or a tensor with one element"
        )
    try:
        return float(value)
    except OverflowError:
        return math.inf


PASS = "pass"
_DECIDING = (250_000_000, 9)
_SHOWN = (1_000_000_000, 49)


class EvaluationSchedule(Protocol):
    """Decides whether a call of `evaluate` in the user's loop evaluates the model or returns at
    once.

    *Without `every`, evaluations take at most a tenth of the worker's time: the next one comes
    after at least nine times the duration of the last one, and at least a quarter of a second. If
    no goal of the job depends on the result, they take at most a fiftieth of the time, and the
    pause is at least one second. With `every`, the user chooses when to evaluate: after each pass
    of this worker over its points, after a number of calls, or after a time.*
    """

    def due(self, now_ns: int, passes: int) -> bool:
        """Whether to evaluate now. Called once for every call of `evaluate`. `passes`: how often
        this worker has visited its points."""
        ...

    def done(self, began_ns: int, now_ns: int, passes: int) -> None:
        """Note an evaluation that began at `began_ns` and ends now."""
        ...


class Evaluations:
    """Evaluations at times that this module chooses. `decides`: the result may end the job."""

    def __init__(self, now_ns: int, *, decides: bool) -> None:
        self._least_ns, self._share = _DECIDING if decides else _SHOWN
        self._due_ns = now_ns + _DECIDING[0]

    def due(self, now_ns: int, passes: int = 0) -> bool:
        return now_ns >= self._due_ns

    def done(self, began_ns: int, now_ns: int, passes: int = 0) -> None:
        self._due_ns = now_ns + max(self._least_ns, self._share * (now_ns - began_ns))


class EveryPass:
    """An evaluation after every pass. `passes`: how many passes are over at the beginning."""

    def __init__(self, passes: int) -> None:
        self._done = passes

    def due(self, now_ns: int, passes: int) -> bool:
        return passes > self._done

    def done(self, began_ns: int, now_ns: int, passes: int) -> None:
        self._done = passes


class EveryCalls:
    """An evaluation at every n-th call."""

    def __init__(self, calls: int) -> None:
        self._every, self._calls = calls, 0

    def due(self, now_ns: int, passes: int) -> bool:
        self._calls += 1
        return self._calls >= self._every

    def done(self, began_ns: int, now_ns: int, passes: int) -> None:
        self._calls = 0


class EveryTime:
    """An evaluation when this much time has passed since the last one."""

    def __init__(self, now_ns: int, every_ns: int) -> None:
        self._every_ns = every_ns
        self._due_ns = now_ns + every_ns

    def due(self, now_ns: int, passes: int) -> bool:
        return now_ns >= self._due_ns

    def done(self, began_ns: int, now_ns: int, passes: int) -> None:
        self._due_ns = now_ns + self._every_ns


def schedule_of(
    every: str | int | None, now_ns: int, first_pass: int, *, decides: bool
) -> EvaluationSchedule:
    """The schedule that the argument `every` of `worker.evaluate` asks for."""
    if every is None:
        return Evaluations(now_ns, decides=decides)
    if every == PASS:
        return EveryPass(first_pass)
    if isinstance(every, int) and not isinstance(every, bool) and every >= 1:
        return EveryCalls(every)
    if isinstance(every, str):
        try:
            return EveryTime(now_ns, parse_duration(every))
        except ValueError:
            pass
    raise UsageError(
        f"worker.evaluate: every={every!r} is not understood: give 'pass', a number of calls such as"
        " 100, or a time such as '30s'"
    )


def call_key(
    every: object, function: Callable[[], Any] | None, names: Sequence[str]
) -> tuple[object, ...]:
    """A key that distinguishes the calls of `worker.evaluate` in the user's code: the interval, the
    names of the measures and the code of the function. A function that is defined again in every
    iteration has the same code."""
    return every, _code(function), *names


def _code(function: object) -> CodeType | type | None:
    while isinstance(function, functools.partial):
        function = function.func
    if function is None:
        return None
    function = getattr(function, "__func__", function)
    return getattr(function, "__code__", type(function))


class ScalarWriter(Protocol):
    """A writer such as TensorBoard's `SummaryWriter`."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int, /) -> object: ...


class DictLogger(Protocol):
    """A writer such as a run of Weights & Biases."""

    def log(self, data: dict[str, Any], /, *, step: int) -> object: ...


Writer: TypeAlias = ScalarWriter | DictLogger
AnyWriter: TypeAlias = Writer | Callable[[], Writer]
"""A writer, or a function that makes one."""


class Writers:
    """Writes metrics to the user's own log, such as TensorBoard or Weights & Biases.

    *Only the worker that evaluates writes. A failing writer never ends the job: the first failure
    prints one line, and later values are tried again.*
    """

    def __init__(self, worker: str) -> None:
        """`worker`: the name of this worker, for messages."""
        self._worker = worker
        self._given: list[AnyWriter] = []
        self._open: list[tuple[Any, bool]] = []
        """The writers in use, and for each whether a function of the user's code made it. Such a
        writer is closed at the end."""
        self._warned: set[str] = set()

    def add(self, writer: AnyWriter) -> None:
        if not (_writes(writer) or callable(writer)):
            raise UsageError(
                f"worker.log_to: {type(writer).__name__} has neither add_scalar(name, value, step)"
                " nor log(values, step=...); give a SummaryWriter, a run of wandb, or a function"
                " that makes one"
            )
        self._given.append(writer)

    def write(self, metrics: Mapping[str, float], step: int) -> None:
        for given in self._given:
            make: Any = given
            made = given if _writes(given) else self._attempt(given, make)
            if made is not None:
                self._open.append((made, made is not given))
        self._given.clear()
        for writer, _ in self._open:
            self._attempt(writer, functools.partial(_write, writer, metrics, step))

    def close(self) -> None:
        """Flush all writers. Also close those that a function of the user's code made."""
        for writer, own in self._open:
            names = ("finish", "close") if own else ()
            for name in ("flush", *names):
                if callable(method := getattr(writer, name, None)):
                    self._attempt(writer, method)
        self._open.clear()

    def _attempt(self, writer: Any, act: Callable[[], Any]) -> Any:
        try:
            return act()
        except Exception as error:  # an error of the user's logger must not end the training
            name = getattr(writer, "__name__", type(writer).__name__)
            if name not in self._warned:
                self._warned.add(name)
                detail = f"{type(error).__name__}: {error}".partition("\n")[0]
                said = f"{self._worker} could not write metrics with {name}: {detail}; training goes on"
                print(f"polyrhythm: {said}", file=sys.stderr, flush=True)
            return None


def _writes(writer: object) -> bool:
    """Whether this is a writer. A class of writers is not a writer, but a function that makes
    one."""
    names = ("add_scalar", "log")
    return not isinstance(writer, type) and any(
        callable(getattr(writer, name, None)) for name in names
    )


def _write(writer: Any, metrics: Mapping[str, float], step: int) -> None:
    if callable(getattr(writer, "add_scalar", None)):
        for name, value in metrics.items():
            writer.add_scalar(name, value, step)
    else:
        writer.log(dict(metrics), step=step)


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
        """Whether the model may be evaluated now. `at_end`: even after the end of the job."""
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
