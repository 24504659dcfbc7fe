"""The lead's door: who may come in at all, and who waits outside.

*Whoever knocks must speak this protocol and belong to this job; who names no job takes whichever is
here. Workers wait until every server is here, because they are told of all of them when they are
admitted.*
"""

from polyrhythm.core.text import name_fault
from polyrhythm.wire.messages import PROTOCOL, ServerBonjour, WorkerBonjour


class Door:
    def __init__(self, job: str) -> None:
        self.job = job
        self.waiting: list[tuple[str, WorkerBonjour]] = []
        """Links that knocked, with what they said."""

    def fault(self, bonjour: WorkerBonjour | ServerBonjour) -> str | None:
        """Why this stranger cannot come in, whatever goes on inside."""
        if (fault := name_fault(bonjour.name)) is not None:
            return fault
        if bonjour.protocol != PROTOCOL:
            return f"it speaks protocol {bonjour.protocol}, this job speaks {PROTOCOL}"
        if bonjour.job and bonjour.job != self.job:
            return "it belongs to another job"
        return None

    def wait(self, link: str, bonjour: WorkerBonjour) -> None:
        self.waiting.append((link, bonjour))

    def leave(self, link: str) -> None:
        self.waiting = [knock for knock in self.waiting if knock[0] != link]

    def open(self) -> list[tuple[str, WorkerBonjour]]:
        """Those who waited, in the order in which they knocked."""
        waiting, self.waiting = self.waiting, []
        return waiting
