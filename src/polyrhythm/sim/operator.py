"""A simulated operator: it asks the lead to stop the job, and keeps the answers."""

from collections.abc import Sequence

from polyrhythm.sim.model.link import Channel
from polyrhythm.wire import messages as m
from polyrhythm.wire.messages.operator import STOP


class OperatorProcess:
    def __init__(self, name: str, job: str) -> None:
        self.answers: list[m.Message] = []
        self._hello = m.OperatorHello(name=name, job=job)

    def ask(self, lead: Channel) -> None:
        lead.send(self._hello)
        lead.send(m.OperatorRequest(what=STOP))

    def receive(self, channel: Channel, batch: Sequence[m.Message]) -> None:
        self.answers += [message for message in batch if not isinstance(message, m.Alive)]

    def closed(self, channel: Channel, reason: str) -> None:
        """Nothing to do: the operator has all answers when its link ends."""
