"""What a worker says, to the lead and to servers, and what it must do, gathered per event in order.

*Every word carries who says it, in which incarnation, and the term and epochs that it goes by.*
"""

from collections.abc import Callable
from typing import Any

from polyrhythm.core.effects import LEAD, Send, server_name
from polyrhythm.core.machine import Effect
from polyrhythm.wire import messages as m


class WorkerOutbox:
    def __init__(self) -> None:
        self.do: Callable[[Effect], None]
        """Gather an effect."""
        self.begin()
        self.nobody()

    def nobody(self) -> None:
        """As yet: the lead has not said who this is."""
        self.worker = -1
        self.incarnation = 0
        self.term = self.view = self.routing = 0

    def begin(self) -> list[Effect]:
        """An event has come: where its effects are gathered."""
        effects: list[Effect] = []
        self.do = effects.append
        return effects

    def heed(self, message: m.Message) -> None:
        """The lead speaks: its term and view are this worker's."""
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
