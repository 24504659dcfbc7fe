"""`ssp-restart`: PSP's reading of SSP, for its tables (PSP §3.1).

*A worker that is `bound` steps ahead of the slowest stops, and from then on so does everybody who
arrives. When all have stopped there is one common pull, and clocks restart.*
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


class Restart:
    kinds = frozenset({"gradient", "local"})
    rounds = False

    def __init__(self, bound: int) -> None:
        self.bound = bound
        self.clocks: Slowest[int] = Slowest()
        self._resting: set[int] = set()
        self._stopped: set[int] = set()
        self._turning = Turning()
        self._since_ns = 0

    def on(self, event: PolicyEvent, now_ns: int) -> Decision:
        released = NOBODY
        match event:
            case Joined(worker):
                self._turning.join(worker)
            case Left(worker):
                self._turning.leave(worker)
                self.clocks.drop(worker)
                self._resting.discard(worker)
                self._stopped.discard(worker)
            case Arrived(worker, _, _):
                released = self._arrive(worker, now_ns)
            case Abstained(worker):
                if worker in self.clocks:
                    self.clocks.drop(worker)
                    self._resting.add(worker)
            case Returned(worker):
                if worker in self._resting:
                    self._resting.remove(worker)
                    self.clocks.put(worker, self.clocks.least)
                    released = frozenset((worker,))
            case Opened(_):
                self._enter(self._turning.opened())
            case Tick() | Asked():
                pass
        reason = _GOING
        if self._stopped and len(self._stopped) == len(self.clocks):
            released |= self._restart()
            reason = Reason("restart", {"members": len(self.clocks)})
        entering = self._turning.turn()
        if entering is None:
            return Decision(False, released, None, reason)
        self._enter(entering)
        fields = {"members": len(self.clocks) + len(self._resting)}
        return Decision(True, released | entering, None, Reason("turn", fields))

    def _arrive(self, worker: int, now_ns: int) -> frozenset[int]:
        if worker not in self.clocks:
            return NOBODY
        self.clocks.put(worker, self.clocks[worker] + 1)
        if not self._stopped:
            if self.clocks[worker] - self.clocks.least < self.bound:
                return frozenset((worker,))
            self._since_ns = now_ns
        self._stopped.add(worker)
        return NOBODY

    def _restart(self) -> frozenset[int]:
        released, self._stopped = frozenset(self._stopped), set()
        for worker in self.clocks.everybody():
            self.clocks.put(worker, 0)
        return released

    def _enter(self, workers: frozenset[int]) -> None:
        least = self.clocks.least
        for worker in workers:
            self.clocks.put(worker, least)

    def terms(self, worker: int) -> Terms:
        return AS_IT_LIKES

    def why(self) -> Waiting:
        if not self._stopped:
            return Waiting(_GOING, self._since_ns)
        missing = sorted(set(self.clocks.everybody()) - self._stopped)
        fields = {
            "held": ", ".join(f"w{worker}" for worker in sorted(self._stopped)),
            "missing": ", ".join(f"w{worker}" for worker in missing),
            "bound": self.bound,
        }
        return Waiting(Reason("restarting", fields), self._since_ns)
