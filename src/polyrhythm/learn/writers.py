"""Writes metrics to a user's own log, such as TensorBoard or Weights & Biases.

*Only the worker that evaluates writes. A writer that fails never ends the job: the first failure is
one line of output, and later values are tried again.*
"""

import functools
import sys
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias

from polyrhythm.errors import UsageError


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
    def __init__(self, worker: str) -> None:
        """`worker`: the name of this worker, for messages."""
        self._worker = worker
        self._given: list[AnyWriter] = []
        self._open: list[tuple[Any, bool]] = []
        """The writers in use. For each: whether a function of the user's code made it. Such a writer is
        closed at the end."""
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
    """Whether this is a writer. A class of writers is not: it is a function that makes one."""
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
