"""Collects the effects of one event of a worker, in order: messages to the lead and to servers, and
other instructions to its process.

*Every message contains the worker's number and incarnation, and the term and the epochs that the
worker follows.*
"""

from typing import Any

from polyrhythm.core.effects import Send
from polyrhythm.core.machine import Effect
from polyrhythm.core.names import LEAD, server_name
from polyrhythm.core.seat import UNKNOWN_SEAT, Seating
from polyrhythm.wire import messages as m


class WorkerOutbox:
    __slots__ = ("incarnation", "out", "routing", "seat", "view", "worker")

    def __init__(self) -> None:
        self.out: list[Effect] = []
        """The effects of the event that is being handled."""
        self.seat = UNKNOWN_SEAT
        """Where the lead runs, as far as this worker knows."""
        self.forget_identity()

    def forget_identity(self) -> None:
        """Forget the worker's number and incarnation: the lead has not assigned new ones yet."""
        self.worker = -1
        self.incarnation = 0
        self.view = self.routing = 0

    def follow(self, message: Seating) -> None:
        """From now on, use the seat and the view in this message of the lead."""
        self.seat, self.view = self.seat.after(message), message.view

    def identity(self) -> dict[str, Any]:
        return {
            "term": self.seat.term,
            "view": self.view,
            "routing": self.routing,
            "worker": self.worker,
            "incarnation": self.incarnation,
        }

    def tell_lead(self, message: m.Message) -> None:
        self.out.append(Send(LEAD, message))

    def tell_server(self, server: int, message: m.Message) -> None:
        self.out.append(Send(server_name(server), message))
