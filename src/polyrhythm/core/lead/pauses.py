"""Pauses of the lead's own process.

*A lead that was paused has read no message meanwhile. So the time of the pause counts neither as
silence of a peer nor towards any deadline.*
"""

from polyrhythm.core.lead.cuts import Cuts
from polyrhythm.core.lead.parts import Parts
from polyrhythm.core.liveness import PauseDetector, Suspicion


class LeadPauses:
    def __init__(self, parts: Parts, members: Suspicion, cuts: Cuts) -> None:
        """`members`: the heartbeats of the members."""
        self.detector = PauseDetector(parts.job.heartbeat_s)
        self._suspicions = (members, parts.servers.suspicion)
        self._deadlines = (
            parts.removals,
            parts.stopping,
            parts.saving,
            parts.best,
            parts.opening,
            parts.sharing,
            parts.broken,
            cuts,
        )
        self._limit = parts.progress.goals.limit
        self._outbox = parts.outbox

    def begin(self, now_ns: int) -> None:
        """Look for pauses of this process from now on, because a worker has joined."""
        self.detector.begin(now_ns)

    def exclude(self, now_ns: int) -> None:
        """If the lead was paused, extend all deadlines by that time."""
        paused_ns = self.detector.paused_ns(now_ns)
        if paused_ns:
            for suspicion in self._suspicions:
                suspicion.exclude_time(paused_ns, now_ns)
            for part in self._deadlines:
                part.exclude_time(paused_ns)
            self._limit.resumed(now_ns)
            self._outbox.note("lead-paused", seconds=paused_ns / 1e9)
