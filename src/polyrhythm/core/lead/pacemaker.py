"""The lead's heartbeat to every worker and server that is linked to it.

It is a machine of its own with a driver of its own: *a lead that is busy, because it makes room for a
large model or writes to a slow disk, still sends heartbeats.* A heartbeat therefore says that the lead's
process runs, and not that the lead makes progress.
"""

from collections.abc import Sequence
from typing import Any

from polyrhythm.core.effects import BeatAll
from polyrhythm.core.events import Tick
from polyrhythm.core.heartbeat import Heartbeat
from polyrhythm.core.lead.outbox import TERM
from polyrhythm.core.machine import Effect, Reason, Waiting
from polyrhythm.wire import messages as m

PACEMAKER = "pacemaker"
"""The machine's name in its process."""


class Pacemaker:
    def __init__(self, job: m.JobSpec) -> None:
        self._every_s = job.heartbeat_s
        self._heartbeat = Heartbeat()

    def handle(self, event: Any, now_ns: int) -> Sequence[Effect]:
        """The first `Tick` starts the heartbeat."""
        if not isinstance(event, Tick):
            return ()
        if self._heartbeat.next_ns is None:
            self._heartbeat.begin(self._every_s, now_ns)
        elif not self._heartbeat.due(now_ns):
            return ()
        return (BeatAll(m.Alive(term=TERM)),)

    def wake_at(self) -> int | None:
        return self._heartbeat.next_ns

    def why(self) -> Waiting:
        return Waiting(Reason("none"), 0)

    def check(self) -> None:
        pass
