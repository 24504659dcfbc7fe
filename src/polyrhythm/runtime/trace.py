"""A trace: every event that the machines of a process handled, with its time and its effects.

Replaying a trace into fresh machines must give the same effects, because machines are
deterministic.
"""

import threading
from collections.abc import Iterator, Sequence
from itertools import chain, count, islice
from pathlib import Path
from typing import IO, Any

import msgspec

from polyrhythm.core import effects as effects_module
from polyrhythm.core import events as events_module
from polyrhythm.core.effects import TRACE_ENDS, Note
from polyrhythm.core.lead.machine import LeadMachine
from polyrhythm.core.machine import Effect, Event, Machine
from polyrhythm.core.server.machine import ServerMachine
from polyrhythm.core.worker.machine import WorkerMachine
from polyrhythm.errors import InvariantBroken, UsageError
from polyrhythm.runtime.options import Report
from polyrhythm.wire import messages
from polyrhythm.wire.messages import JobSpec, Message

_encode = msgspec.msgpack.Encoder().encode
_KINDS: dict[str, type[Any]] = {
    name: kind
    for module in (messages, events_module, effects_module)
    for name, kind in vars(module).items()
    if isinstance(kind, type) and issubclass(kind, Message | Event | Effect)
}


class Origin(msgspec.Struct, frozen=True):
    """The arguments that a machine was built from."""

    machine: str
    role: str
    number: int
    name: str
    job: JobSpec

    def build(self) -> Machine:
        match self.role:
            case "lead":
                return LeadMachine(self.job)
            case "server":
                return ServerMachine(self.number, self.job)
            case _:
                return WorkerMachine(self.name)


class Step(msgspec.Struct, frozen=True, array_like=True):
    machine: str
    now_ns: int
    event: str
    body: bytes
    effects: tuple[tuple[str, bytes], ...]


class Trace:
    """Writes the origins of a process's machines, then one step per event. *Recording never raises.
    If a step cannot be written, later steps are not written either, because a trace with a gap
    cannot be replayed.*"""

    def __init__(self, path: Path, origins: Sequence[Origin], report: Report) -> None:
        """`report` is called once, with a note, if the trace ends early."""
        self._report = report
        self._ended = False
        self._file = _open_fresh(path)
        self._lock = threading.Lock()
        self._put(tuple(origins))

    def record(self, machine: str, now_ns: int, event: Any, effects: Sequence[Effect]) -> None:
        self._put(Step(machine, now_ns, type(event).__name__, _encode(event), _flat(effects)))

    def _put(self, value: Any) -> None:
        body = _encode(value)
        with self._lock:
            if self._file.closed or self._ended:
                return
            try:
                self._file.write(len(body).to_bytes(4, "little") + body)
            except OSError as error:
                self._lose(error)

    def close(self) -> None:
        with self._lock:
            try:
                self._file.close()
            except OSError as error:
                self._lose(error)

    def _lose(self, error: OSError) -> None:
        if not self._ended:
            self._ended = True
            self._report(Note(TRACE_ENDS, {"detail": str(error.strerror)}))


def _open_fresh(path: Path) -> IO[bytes]:
    """Open a new file. If a process of this name ran before, its trace is kept, and the new one
    gets the next free name: a.trace, a.2.trace, a.3.trace."""
    lives = chain((path,), (path.with_stem(f"{path.stem}.{life}") for life in count(2)))
    for place in lives:
        try:
            return place.open("xb")
        except FileExistsError:
            continue
        except OSError as error:
            raise UsageError(f"cannot write {place}: {error.strerror}") from None
    raise AssertionError("unreachable: the loop ends only when it has opened a file")


def _flat(effects: Sequence[Effect]) -> tuple[tuple[str, bytes], ...]:
    """The effects as (type, encoded effect). If the effect has a message, the type is followed by
    the type of the message, as in `Send:Fold`."""
    return tuple(
        (
            type(effect).__name__
            + (f":{type(effect.message).__name__}" if hasattr(effect, "message") else ""),
            _encode(effect),
        )
        for effect in effects
    )


def _records(path: Path) -> Iterator[bytes]:
    data = path.read_bytes()
    at = 0
    while at + 4 <= len(data):
        size = int.from_bytes(data[at : at + 4], "little")
        if at + 4 + size > len(data):
            # the last step is incomplete, because the process was killed while it wrote this step
            return
        yield data[at + 4 : at + 4 + size]
        at += 4 + size


def replay(path: Path, most: int | None = None) -> int:
    """Replay a trace, or its first `most` steps, into fresh machines, and return the number of
    steps. Raise InvariantBroken at the first step whose effects differ from the recorded ones."""
    records = _records(path)
    origins = msgspec.msgpack.decode(next(records), type=tuple[Origin, ...])
    machines = {origin.machine: origin.build() for origin in origins}
    steps = 0
    for record in islice(records, most):
        step = msgspec.msgpack.decode(record, type=Step)
        event = msgspec.msgpack.decode(step.body, type=_KINDS[step.event])
        effects = _flat(machines[step.machine].handle(event, step.now_ns))
        machines[step.machine].check()
        if effects != step.effects:
            raise InvariantBroken(
                f"step {steps} of {path.name}: {step.machine} answered {step.event} with"
                f" {[kind for kind, _ in effects]}, but the trace has"
                f" {[kind for kind, _ in step.effects]}"
            )
        steps += 1
    return steps
