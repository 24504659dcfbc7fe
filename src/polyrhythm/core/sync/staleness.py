"""SSP and ASP: one gate, two bounds. Servers fold each contribution as it comes.

*A worker may begin a step while its clock is at most `bound` ahead of the slowest member's, so the
gap of clocks never exceeds bound + 1. A joiner starts at the members' minimum; who has nothing to
contribute holds nobody back, and comes back at the minimum too.* Without a bound nobody asks the
lead before a step: that is ASP.
"""

from polyrhythm.core.machine import Reason, Waiting
from polyrhythm.core.slowest import Slowest
from polyrhythm.core.sync.policy import (
    AS_IT_LIKES,
    NOBODY,
    Abstained,
    Arrived,
    Asked,
    Decision,
    Joined,
    Left,
    Opened,
    PolicyEvent,
    Returned,
    Terms,
    Tick,
)
from polyrhythm.core.sync.turning import Turning

_GOING = Reason("going")


class Staleness:
    kinds = frozenset({"gradient", "local"})
    rounds = False

    def __init__(self, bound: int | None) -> None:
        self.bound = bound
        self.clocks: Slowest[int] = Slowest()
        self._floor = 0
        """The members' minimum, and what it was when the last of them went to rest."""
        self._resting: dict[int, int] = {}
        self._held: set[int] = set()
        self._turning = Turning()
        self._since_ns = 0

    def on(self, event: PolicyEvent, now_ns: int) -> Decision:
        released = NOBODY
        least = self.clocks.least
        match event:
            case Joined(worker):
                self._turning.join(worker)
            case Left(worker):
                self._turning.leave(worker)
                self.clocks.drop(worker)
                self._resting.pop(worker, None)
                self._held.discard(worker)
            case Arrived(worker, _, _):
                if worker in self.clocks:
                    self.clocks.put(worker, self.clocks[worker] + 1)
                    if self.bound is not None:
                        self._held.add(worker)
                        released = self._pass_gate((worker,), now_ns)
            case Abstained(worker):
                if worker in self.clocks:
                    self._resting[worker] = self.clocks[worker]
                    self.clocks.drop(worker)
            case Returned(worker):
                if worker in self._resting:
                    self.clocks.put(worker, max(self._resting.pop(worker), self._floor))
                    released = frozenset((worker,))
            case Opened(_):
                self._enter(self._turning.opened())
            case Tick() | Asked():
                pass
        self._floor = max(self._floor, self.clocks.least)
        if self.clocks.least != least:
            released |= self._pass_gate(tuple(self._held), now_ns)
        entering = self._turning.turn()
        if entering is None:
            return Decision(False, released, None, _GOING)
        self._enter(entering)
        fields = {"members": len(self.clocks) + len(self._resting)}
        return Decision(True, released | entering, None, Reason("turn", fields))

    def _enter(self, workers: frozenset[int]) -> None:
        for worker in workers:
            self.clocks.put(worker, self._floor)

    def _pass_gate(self, workers: tuple[int, ...], now_ns: int) -> frozenset[int]:
        if self.bound is None:
            return NOBODY
        least = self.clocks.least
        passed = frozenset(w for w in workers if self.clocks[w] - least <= self.bound)
        self._held -= passed
        if not self._held or passed:
            self._since_ns = now_ns
        return passed

    def terms(self, worker: int) -> Terms:
        return AS_IT_LIKES

    def why(self) -> Waiting:
        if not self._held:
            return Waiting(_GOING, self._since_ns)
        least = self.clocks.least
        slowest = sorted(w for w in self.clocks.everybody() if self.clocks[w] == least)
        fields = {
            "held": ", ".join(f"w{worker}" for worker in sorted(self._held)),
            "bound": self.bound,
            "missing": ", ".join(f"w{worker}" for worker in slowest),
            "clock": least,
        }
        return Waiting(Reason("stale", fields), self._since_ns)
