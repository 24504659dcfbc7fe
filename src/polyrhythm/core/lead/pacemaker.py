"""The heartbeat that the lead sends to every worker and server that is linked to it.

The pacemaker is a separate machine with its own driver. *So heartbeats are sent even while the lead
is busy, for example with cutting a large model into slices or with writing to a slow disk.* A
heartbeat therefore shows only that the lead's process runs; the lead may make no progress.
"""

from collections.abc import Sequence
from typing import Any

from polyrhythm.core.effects import BeatAll
from polyrhythm.core.events import Tick
from polyrhythm.core.liveness import Heartbeat
from polyrhythm.core.machine import Effect, Reason, Waiting
from polyrhythm.core.seat import FIRST_SEAT, Seat
from polyrhythm.wire import messages as m

PACEMAKER = "pacemaker"
"""The name of this machine within its process."""


class Pacemaker:
    def __init__(self, job: m.JobSpec, seat: Seat = FIRST_SEAT) -> None:
        self._term = seat.term
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
        return (BeatAll(m.Alive(term=self._term)),)

    def wake_at(self) -> int | None:
        return self._heartbeat.next_ns

    def why(self) -> Waiting:
        return Waiting(Reason("none"), 0)

    def check(self) -> None:
        pass
