"""Decides which processes may join the job, when round 1 opens, and in which order a worker with
several models must make their steps.
"""

import msgspec

from polyrhythm.core.machine import Deadline, Reason
from polyrhythm.core.step_order import StepOrder, described
from polyrhythm.core.values import name_fault
from polyrhythm.wire.messages import (
    PROTOCOL,
    Abstained,
    ModelSpec,
    OperatorHello,
    ServerHello,
    Trailer,
    WorkerHello,
)


class Admission(msgspec.Struct):
    """Checks hellos, and keeps the workers that wait for admission.

    *A process must use this protocol version and belong to this job; a process that names no job
    may join any. Workers wait until every server has joined, because an admitted worker needs the
    addresses of all servers.*
    """

    job: str
    waiting: list[tuple[str, WorkerHello]] = []
    """The links of workers that wait, with their hellos."""

    def fault(self, hello: WorkerHello | ServerHello | OperatorHello) -> Reason | None:
        """Why this process may never join, whatever the state of the job is; None if it may."""
        if (fault := name_fault(hello.name)) is not None:
            return fault
        if hello.protocol != PROTOCOL:
            protocols = {"protocol": hello.protocol, "expected": PROTOCOL}
            return Reason("other-protocol", {"name": hello.name, **protocols})
        if hello.job and hello.job != self.job:
            return Reason("other-job", {"name": hello.name})
        return None

    def wait(self, link: str, hello: WorkerHello) -> None:
        self.waiting.append((link, hello))

    def on_link_closed(self, link: str) -> None:
        """Forget the worker that waits at the other end of this link, which has ended."""
        self.waiting = [hello for hello in self.waiting if hello[0] != link]

    def open(self) -> list[tuple[str, WorkerHello]]:
        """Remove and return all waiting workers, in the order of their arrival."""
        waiting, self.waiting = self.waiting, []
        return waiting


class Opening(msgspec.Struct):
    """When round 1 opens.

    *Round 1 opens when as many workers have attached as the job wants. Each worker that joins and
    leaves again lowers this number by one. When the start timeout ends, round 1 opens with the
    workers that have attached, if there is at least one. The timeout begins when the first worker
    is admitted.*
    """

    _workers: int
    _start_timeout_s: float
    since_ns: int = 0
    """When the first worker was admitted. Until then: when a resumed job began to wait for it."""
    deadline: Deadline = msgspec.field(default_factory=Deadline)
    """When the start timeout ends; None if it has not begun or has ended."""
    _begun: bool = False
    """Whether the start timeout has begun."""
    _overdue: bool = False

    def on_resumed(self, now_ns: int) -> None:
        """Begin to wait for workers: a resumed job knows its model before any worker joins."""
        self.since_ns = now_ns

    def on_admitted(self, now_ns: int) -> None:
        if not self._begun:
            self._begun, self.since_ns = True, now_ns
            self.deadline.wake_ns = now_ns + round(self._start_timeout_s * 1e9)

    def on_lost(self) -> None:
        """Stop waiting for a worker that left before round 1."""
        self._workers = max(1, self._workers - 1)

    def on_time(self, now_ns: int) -> None:
        if self.deadline.is_over(now_ns):
            self._overdue, self.deadline.wake_ns = True, None

    def on_opened(self) -> None:
        """Forget the start timeout: round 1 opens."""
        self.deadline.wake_ns = None

    def missing(self, attached: int) -> int:
        """How many more workers round 1 waits for."""
        return self._workers - attached

    def due(self, attached: int) -> bool:
        return attached > 0 and (attached >= self._workers or self._overdue)


class Steps(msgspec.Struct):
    """The order of the steps in a job with several models: the lead refuses a worker with another
    order (`core/step_order.py`)."""

    _order: StepOrder | None = None
    _last: dict[tuple[int, int], int] = {}
    """Per member, the sequence of the last contribution whose step was checked."""

    def fault(
        self, name: str, message: Trailer | Abstained, model: int, spec: ModelSpec | None
    ) -> Reason | None:
        """Check the step of this model that a message reports. Returns why the member with this
        name must be removed; None if the step follows the order. `spec`: the job's models."""
        if spec is None:
            return None
        names = [part.name for part in spec.parts]
        if model >= len(names):
            return Reason("unknown-model", {"name": name, "model": model})
        member = message.worker, message.incarnation
        if isinstance(message, Trailer):
            if message.sequence <= self._last.get(member, 0):
                return None  # this contribution was checked before; the worker has sent it again
            self._last[member] = message.sequence
        if self._order is None:
            self._order = StepOrder(len(names))
        broken = self._order.step(*member, model)
        if broken is None:
            return None
        seen, expected = described(broken.seen, names), described(broken.expected, names)
        return Reason("step-order", {"name": name, "seen": seen, "expected": expected})

    def forget(self, worker: int, incarnation: int) -> None:
        self._last.pop((worker, incarnation), None)
        if self._order is not None:
            self._order.forget(worker, incarnation)
