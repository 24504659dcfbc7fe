"""`ssp-restart`: SSP as the PSP paper describes it, so that the paper's tables can be reproduced
(PSP §3.1).

A worker that is `bound` steps ahead of the slowest worker stops. After that, every other worker
stops at its next contribution. When all have stopped, all pull the parameters, and the clocks
restart at zero.
"""

import msgspec

from polyrhythm.core.machine import Reason, Waiting
from polyrhythm.core.sync.arrival.on_arrival import GATED, GOING, Clocks, OnArrival
from polyrhythm.core.sync.policy import NO_WORKERS, PolicyEntry, sync_argument
from polyrhythm.wire.messages import JobSpec
from polyrhythm.wire.messages.reasons import Field


class Restart(msgspec.Struct):
    bound: int
    _stopped: set[int] = set()
    _passing: frozenset[int] = NO_WORKERS
    """The worker that has just arrived, if it may continue; otherwise an empty set."""
    _since_ns: int = 0

    def on_arrived(self, worker: int, clocks: Clocks, now_ns: int) -> None:
        if self._stopped or clocks[worker] - clocks.least >= self.bound:
            if not self._stopped:
                self._since_ns = now_ns
            self._stopped.add(worker)
        else:
            self._passing = frozenset((worker,))

    def leave(self, worker: int) -> None:
        self._stopped.discard(worker)

    def open(self, clocks: Clocks, now_ns: int) -> tuple[frozenset[int], Reason]:
        if self._stopped and len(self._stopped) == clocks.running:
            clocks.restart()
            released, self._stopped = frozenset(self._stopped), set()
            return released, Reason("restart", {"members": clocks.running})
        released, self._passing = self._passing, NO_WORKERS
        return released, GOING

    def why(self, clocks: Clocks) -> Waiting:
        if not self._stopped:
            return Waiting(GOING, self._since_ns)
        missing = sorted(set(clocks.workers()) - self._stopped)
        fields: dict[str, Field] = {
            "held": sorted(self._stopped),
            "missing": missing,
            "bound": self.bound,
        }
        return Waiting(Reason("restarting", fields), self._since_ns)


class SspRestart(OnArrival[Restart]):
    pass


def _build(job: JobSpec) -> SspRestart:
    return SspRestart(Restart(sync_argument(job)))


SSP_RESTART = PolicyEntry(
    "ssp-restart",
    "all workers wait when one is S steps ahead of the slowest",
    GATED,
    _build,
    argument="S",
)
