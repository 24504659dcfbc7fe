"""The lead's door: who may come in at all, and who waits outside.

*Whoever knocks must speak this protocol and belong to this job; who names no job takes whichever is
here. Workers wait until every server is here, because they are told of all of them when they are
admitted.*
"""

from polyrhythm.core.text import name_fault
from polyrhythm.wire.messages import PROTOCOL, ServerHello, WorkerHello


class Admission:
    def __init__(self, job: str) -> None:
        self.job = job
        self.waiting: list[tuple[str, WorkerHello]] = []
        """The links of processes that wait, with their hellos."""

    def fault(self, hello: WorkerHello | ServerHello) -> str | None:
        """Why this stranger cannot come in, whatever goes on inside."""
        if (fault := name_fault(hello.name)) is not None:
            return fault
        if hello.protocol != PROTOCOL:
            return f"it speaks protocol {hello.protocol}, this job speaks {PROTOCOL}"
        if hello.job and hello.job != self.job:
            return "it belongs to another job"
        return None

    def wait(self, link: str, hello: WorkerHello) -> None:
        self.waiting.append((link, hello))

    def leave(self, link: str) -> None:
        self.waiting = [knock for knock in self.waiting if knock[0] != link]

    def open(self) -> list[tuple[str, WorkerHello]]:
        """The hellos that waited, in the order of their arrival."""
        waiting, self.waiting = self.waiting, []
        return waiting
