"""Policies without rounds: servers fold each contribution when it arrives.

The lead only decides which workers may begin their next step. `OnArrival` keeps the members and
their clocks; a `Gate` makes that decision.
"""

from typing import ClassVar, Generic, Protocol, TypeVar

import msgspec

from polyrhythm.core.machine import Reason, Waiting
from polyrhythm.core.minimum_tracker import MinimumTracker
from polyrhythm.core.sync import policy as sync


class Clocks(msgspec.Struct):
    """The clocks of members under policies without rounds: how many steps each has contributed.

    The clock of a worker that joins starts at the minimum over all members. The clock of a resting
    worker, which has no points to visit, does not run, so no other worker waits for it. When the
    worker returns, its clock continues, at the minimum or above.
    """

    _at: MinimumTracker[int] = msgspec.field(default_factory=MinimumTracker)
    _floor: int = 0
    """The minimum of the running clocks; while no clock runs, the last known minimum."""
    _resting: dict[int, int] = {}

    def __contains__(self, worker: int) -> bool:
        return worker in self._at

    def __getitem__(self, worker: int) -> int:
        return self._at[worker]

    @property
    def least(self) -> int:
        return self._at.least

    @property
    def running(self) -> int:
        """The number of running clocks."""
        return len(self._at)

    @property
    def members(self) -> int:
        return len(self._at) + len(self._resting)

    def workers(self) -> list[int]:
        """All workers with a running clock."""
        return self._at.all_keys()

    def slowest(self) -> list[int]:
        """All workers whose clock is at the minimum."""
        least = self._at.least
        return sorted(worker for worker in self._at.all_keys() if self._at[worker] == least)

    def enter(self, workers: frozenset[int]) -> None:
        for worker in workers:
            self._at.put(worker, self._floor)

    def leave(self, worker: int) -> None:
        self._at.drop(worker)
        self._resting.pop(worker, None)
        self._raise_floor()

    def advance(self, worker: int) -> None:
        self._at.put(worker, self._at[worker] + 1)
        self._raise_floor()

    def rest(self, worker: int) -> None:
        if worker in self._at:
            self._resting[worker] = self._at[worker]
            self._at.drop(worker)
            self._raise_floor()

    def resume(self, worker: int) -> bool:
        """Let the clock of a resting worker run again; False if the worker did not rest."""
        if worker not in self._resting:
            return False
        self._at.put(worker, max(self._resting.pop(worker), self._floor))
        return True

    def restart(self) -> None:
        """Set all clocks to zero."""
        self._floor = 0
        self._resting = dict.fromkeys(self._resting, 0)
        for worker in self._at.all_keys():
            self._at.put(worker, 0)

    def _raise_floor(self) -> None:
        self._floor = max(self._floor, self._at.least)


class ViewChange(msgspec.Struct):
    """View changes of jobs without rounds: the lead tells the servers who the members are, and the
    servers confirm.

    A worker that joins may begin when every server knows of it. One view change runs at a time.
    Workers that join or leave meanwhile are part of the next one.
    """

    _started: bool = False
    """Whether the first view change is complete."""
    _joining: set[int] = set()
    _outdated: bool = False
    """Whether a worker has joined or left since the last view change began."""
    _running: bool = False

    def join(self, worker: int) -> None:
        self._joining.add(worker)
        self._outdated = True

    def leave(self, worker: int) -> None:
        self._joining.discard(worker)
        self._outdated = True

    def on_confirmed(self) -> frozenset[int]:
        """Note that every server knows the view. The first call returns the first members, which
        can be released now."""
        self._running = False
        if self._started:
            return frozenset()
        self._started = True
        return self._take()

    def begin(self) -> frozenset[int] | None:
        """The workers that enter with the view change that begins now; None if no view change is
        due."""
        if not self._started or self._running or not self._outdated:
            return None
        self._running = True
        return self._take()

    def _take(self) -> frozenset[int]:
        entering, self._joining = frozenset(self._joining), set()
        self._outdated = False
        return entering


GOING = Reason("going")
GATED = sync.Traits(rounds=False, kinds=frozenset({"gradient", "local"}))


class Gate(Protocol):
    def on_arrived(self, worker: int, clocks: Clocks, now_ns: int) -> None:
        """Note that a worker has contributed. Its clock has advanced, and it asks to continue."""

    def leave(self, worker: int) -> None: ...

    def open(self, clocks: Clocks, now_ns: int) -> tuple[frozenset[int], Reason]:
        """Which of the workers that asked may continue, and why. Called after every event."""

    def why(self, clocks: Clocks) -> Waiting: ...


AnyGate = TypeVar("AnyGate", bound=Gate)


class OnArrival(msgspec.Struct, Generic[AnyGate]):
    """The base of the policies without rounds. A subclass names its gate, so that a snapshot can
    restore the policy."""

    traits: ClassVar[sync.Traits] = GATED
    _gate: AnyGate
    clocks: Clocks = msgspec.field(default_factory=Clocks)
    _view_change: ViewChange = msgspec.field(default_factory=ViewChange)

    def on(self, event: sync.PolicyEvent, now_ns: int) -> sync.Decision:
        clocks, returned = self.clocks, sync.NO_WORKERS
        match event:
            case sync.MemberContributed():
                if event.worker in clocks:
                    clocks.advance(event.worker)
                    self._gate.on_arrived(event.worker, clocks, now_ns)
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
                clocks.enter(self._view_change.on_confirmed())
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
