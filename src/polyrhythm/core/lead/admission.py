"""Which processes may join the job, and when round 1 opens."""

from polyrhythm.core.machine import Reason
from polyrhythm.core.text import name_fault
from polyrhythm.wire.messages import PROTOCOL, OperatorHello, ServerHello, WorkerHello


class Admission:
    """Checks hellos, and keeps the workers that wait for admission.

    *A process must use this protocol version and belong to this job; a process that names no job
    may join any. Workers wait until every server has joined, because a worker is told the addresses
    of all servers when it is admitted.*
    """

    def __init__(self, job: str) -> None:
        self.job = job
        self.waiting: list[tuple[str, WorkerHello]] = []
        """The links of workers that wait, with their hellos."""

    def fault(self, hello: WorkerHello | ServerHello | OperatorHello) -> Reason | None:
        """Why this process is refused, whatever the state of the job is; None if it is not
        refused."""
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

    def leave(self, link: str) -> None:
        """The link has ended: remove its worker from the waiting ones."""
        self.waiting = [hello for hello in self.waiting if hello[0] != link]

    def open(self) -> list[tuple[str, WorkerHello]]:
        """Remove and return all waiting workers, in the order of their arrival."""
        waiting, self.waiting = self.waiting, []
        return waiting


class Opening:
    """When round 1 opens.

    *Round 1 opens when as many workers have attached as the job wants; workers that joined and left
    again are subtracted from that number. After the start timeout it opens with the workers that
    have attached by then, at least one. The timeout runs from the admission of the first worker.*
    """

    def __init__(self, workers: int, start_timeout_s: float) -> None:
        self.since_ns = 0
        self.until_ns: int | None = None
        self._workers = workers
        self._timeout_ns = round(start_timeout_s * 1e9)
        self._overdue = False

    def admitted(self, now_ns: int) -> None:
        if self.until_ns is None:
            self.since_ns, self.until_ns = now_ns, now_ns + self._timeout_ns

    def exclude_time(self, paused_ns: int) -> None:
        """Extend the start timeout by the time in which the lead was paused."""
        if self.until_ns is not None:
            self.until_ns += paused_ns

    def lost(self) -> None:
        """A worker has left before round 1: do not wait for it any more."""
        self._workers = max(1, self._workers - 1)

    def tick(self, now_ns: int) -> None:
        self._overdue = self.until_ns is not None and now_ns >= self.until_ns

    def wake_at(self) -> int | None:
        return None if self._overdue else self.until_ns

    def missing(self, attached: int) -> int:
        """How many more workers round 1 waits for."""
        return self._workers - attached

    def due(self, attached: int) -> bool:
        return attached > 0 and (attached >= self._workers or self._overdue)
