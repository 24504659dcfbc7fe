"""When a worker evaluates the model while it trains.

*Without an interval, evaluations are rare, so that they cost little: after an evaluation, the
worker waits for at least a quarter of a second and for at least nine times the duration of that
evaluation. So evaluations take at most a tenth of the worker's time. If no goal of the job depends
on the result, the worker waits for at least one second, and evaluations take at most a fiftieth of
its time. With `every`, the user chooses when to evaluate: after each pass of this worker over its
points, after a number of calls, or after a time.*
"""

import functools
from collections.abc import Callable, Sequence
from types import CodeType
from typing import Any, Protocol

from polyrhythm.core.values import parse_duration
from polyrhythm.errors import UsageError

PASS = "pass"
_DECIDING = (250_000_000, 9)
_SHOWN = (1_000_000_000, 49)


class EvaluationSchedule(Protocol):
    """Decides when a call of `evaluate` in the user's loop really evaluates."""

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
    """A key that distinguishes one call of `worker.evaluate` in the user's loop from the others:
    its interval, the names of its measures and the code of its function. A function that is made
    anew in every iteration has the same code."""
    return every, _code(function), *names


def _code(function: object) -> CodeType | type | None:
    while isinstance(function, functools.partial):
        function = function.func
    if function is None:
        return None
    function = getattr(function, "__func__", function)
    return getattr(function, "__code__", type(function))
