"""The order of the steps in a job with several models: the lead refuses a worker with another order
(`core/step_order.py`)."""

from polyrhythm.core.lead.routing import RoutingTable
from polyrhythm.core.machine import Reason
from polyrhythm.core.step_order import StepOrder, described
from polyrhythm.wire.messages import Abstained, Trailer


class Steps:
    def __init__(self, routing: RoutingTable) -> None:
        self._routing = routing
        self._order: StepOrder | None = None
        self._last: dict[tuple[int, int], int] = {}
        """Per member, the sequence of the last contribution whose step was checked."""

    def fault(self, name: str, message: Trailer | Abstained) -> Reason | None:
        """The message reports a step of one model. Returns why the member with this name must be
        removed; None if the step follows the order."""
        spec = self._routing.spec
        if spec is None:
            return None
        names = [part.name for part in spec.parts]
        if message.model >= len(names):
            return Reason("unknown-model", {"name": name, "model": message.model})
        member = message.worker, message.incarnation
        if isinstance(message, Trailer):
            if message.sequence <= self._last.get(member, 0):
                return None  # this contribution was checked before, and is sent again
            self._last[member] = message.sequence
        if self._order is None:
            self._order = StepOrder(len(names))
        broken = self._order.step(*member, message.model)
        if broken is None:
            return None
        seen, expected = described(broken.seen, names), described(broken.expected, names)
        return Reason("step-order", {"name": name, "seen": seen, "expected": expected})

    def forget(self, worker: int, incarnation: int) -> None:
        self._last.pop((worker, incarnation), None)
        if self._order is not None:
            self._order.forget(worker, incarnation)
