"""The effects of one event of a worker, collected in order: messages to the lead and to servers, and
what its process must do.

*Every message carries the worker's number and incarnation, and the term and epochs that it follows.*
"""

from collections.abc import Callable
from typing import Any

from polyrhythm.core.effects import LEAD, Send, server_name
from polyrhythm.core.machine import Effect
from polyrhythm.wire import messages as m


class WorkerOutbox:
    def __init__(self) -> None:
        self.do: Callable[[Effect], None]
        """Add an effect."""
        self.begin()
        self.forget_identity()

    def forget_identity(self) -> None:
        """The lead has not given this worker a number yet."""
        self.worker = -1
        self.incarnation = 0
        self.term = self.view = self.routing = 0

    def begin(self) -> list[Effect]:
        """An event has come: return the list that its effects will be added to."""
        effects: list[Effect] = []
        self.do = effects.append
        return effects

    def follow(self, message: m.Message) -> None:
        """Follow the term and view of a message of the lead."""
        self.term, self.view = message.term, message.view

    def identity(self) -> dict[str, Any]:
        return {
            "term": self.term,
            "view": self.view,
            "routing": self.routing,
            "worker": self.worker,
            "incarnation": self.incarnation,
        }

    def tell_lead(self, message: m.Message) -> None:
        self.do(Send(LEAD, message))

    def tell_server(self, server: int, message: m.Message) -> None:
        self.do(Send(server_name(server), message))
