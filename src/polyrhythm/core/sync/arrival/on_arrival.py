"""Policies without rounds: servers fold each contribution when it arrives.

The lead only decides which workers may begin their next step. `OnArrival` keeps the members and
their clocks; a `Gate` makes that decision.
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
        """A worker has contributed, so its clock has advanced, and it asks to continue."""

    def leave(self, worker: int) -> None: ...

    def open(self, clocks: Clocks, now_ns: int) -> tuple[frozenset[int], Reason]:
        """Which of the workers that asked may continue, and why. Called after every event."""

    def why(self, clocks: Clocks) -> Waiting: ...


class OnArrival:
    def __init__(self, gate: Gate, traits: sync.Traits = GATED) -> None:
        self.traits = traits
        self.clocks = Clocks()
        self._gate = gate
        self._view_change = ViewChange()

    def on(self, event: sync.PolicyEvent, now_ns: int) -> sync.Decision:
        clocks, returned = self.clocks, sync.NO_WORKERS
        match event:
            case sync.MemberContributed():
                if event.worker in clocks:
                    clocks.advance(event.worker)
                    self._gate.arrive(event.worker, clocks, now_ns)
            case sync.Joined(worker):
                self._view_change.join(worker)
            case sync.Left(worker):
                self._view_change.leave(worker)
                clocks.leave(worker)
                self._gate.leave(worker)
            case sync.MemberAbstained(worker):
                clocks.rest(worker)
            case sync.Returned(worker):
                if clocks.resume(worker):
                    returned = frozenset((worker,))
            case sync.Opened(_):
                clocks.enter(self._view_change.confirmed())
            case sync.TimePassed() | sync.Asked():
                pass
        passed, reason = self._gate.open(clocks, now_ns)
        released = returned | passed if returned else passed
        entering = self._view_change.begin()
        if entering is None:
            return sync.Decision(False, released, None, reason)
        clocks.enter(entering)
        change = Reason("turn", {"members": clocks.members})
        return sync.Decision(True, released | entering, None, change)

    def terms(self, worker: int) -> sync.RoundTerms:
        return sync.USER_PACE

    def why(self) -> Waiting:
        return self._gate.why(self.clocks)
