"""Policies without rounds: servers fold each contribution as it comes, and the lead only says who
may begin a step. What they share is who takes part; who may go on is a gate's to say.
"""

from typing import Protocol

from polyrhythm.core.machine import Reason, Waiting
from polyrhythm.core.sync import policy as sync
from polyrhythm.core.sync.arrival.clocks import Clocks
from polyrhythm.core.sync.arrival.view_change import ViewChange

GOING = Reason("going")
GATED = sync.Traits(rounds=False, kinds=frozenset({"gradient", "local"}))


class Gate(Protocol):
    def arrive(self, worker: int, clocks: Clocks, now_ns: int) -> None:
        """It has contributed, its clock has grown, and it wants to go on."""

    def leave(self, worker: int) -> None: ...

    def open(self, clocks: Clocks, now_ns: int) -> tuple[frozenset[int], Reason]:
        """Something has changed: who of those that want to go on may, and why."""

    def why(self, clocks: Clocks) -> Waiting: ...


class OnArrival:
    def __init__(self, gate: Gate, traits: sync.Traits = GATED) -> None:
        self.traits = traits
        self.clocks = Clocks()
        self._gate = gate
        self._turning = ViewChange()

    def on(self, event: sync.PolicyEvent, now_ns: int) -> sync.Decision:
        clocks, back = self.clocks, sync.NO_WORKERS
        match event:
            case sync.MemberContributed():
                if event.worker in clocks:
                    clocks.advance(event.worker)
                    self._gate.arrive(event.worker, clocks, now_ns)
            case sync.Joined(worker):
                self._turning.join(worker)
            case sync.Left(worker):
                self._turning.leave(worker)
                clocks.leave(worker)
                self._gate.leave(worker)
            case sync.MemberAbstained(worker):
                clocks.rest(worker)
            case sync.Returned(worker):
                if clocks.come_back(worker):
                    back = frozenset((worker,))
            case sync.Opened(_):
                clocks.enter(self._turning.opened())
            case sync.TimePassed() | sync.Asked():
                pass
        passed, reason = self._gate.open(clocks, now_ns)
        released = back | passed if back else passed
        entering = self._turning.turn()
        if entering is None:
            return sync.Decision(False, released, None, reason)
        clocks.enter(entering)
        turn = Reason("turn", {"members": clocks.members})
        return sync.Decision(True, released | entering, None, turn)

    def terms(self, worker: int) -> sync.RoundTerms:
        return sync.USER_PACE

    def why(self) -> Waiting:
        return self._gate.why(self.clocks)
