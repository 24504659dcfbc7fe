"""The deadlines of the lead: when it must be woken, which part it calls then, and how a pause of
its process extends the deadlines.

Each part with a deadline is registered once. The registry then wakes the lead at the deadline,
calls the part with every tick, and extends the deadline after a pause. *A lead that was paused has
read no messages meanwhile. So the time of the pause does not count as silence of a peer, nor
towards any deadline.* The time at which the policy wants to be asked is not a deadline, because the
policy gives a new one with every decision (`rounds/folds.py`).
"""

from collections.abc import Callable
from typing import Protocol

from polyrhythm.core.lead.outbox import LeadOutbox
from polyrhythm.core.liveness import PauseDetector


class Timed(Protocol):
    """A part of the lead that has a deadline, or the state of such a part. *The lead reads all
    deadlines after every event. So a part must store its deadline instead of computing it when it
    is read.*"""

    @property
    def wake_ns(self) -> int | None:
        """When the lead must be woken for this part; None if the part waits for no time."""

    def exclude_time(self, paused_ns: int, now_ns: int) -> None:
        """Extend the deadline by this time, during which the lead's process was paused."""


class Deadlines:
    def __init__(self, detector: PauseDetector, outbox: LeadOutbox) -> None:
        self._detector = detector
        self._outbox = outbox
        self._parts: list[Timed] = []
        self._on_time: list[Callable[[int], None]] = []

    def register(self, part: Timed, on_time: Callable[[int], None] | None = None) -> None:
        """Register a part with a deadline. `on_time` is called with every tick, so it must check
        whether the deadline has passed. Parts are called in the order in which they were
        registered. A part without `on_time` checks its deadline while it handles an event."""
        self._parts.append(part)
        if on_time is not None:
            self._on_time.append(on_time)

    @property
    def wake_ns(self) -> int | None:
        """The earliest deadline; None if there is none."""
        earliest_ns = self._detector.wake_ns
        for part in self._parts:
            wake_ns = part.wake_ns
            if wake_ns is not None and (earliest_ns is None or wake_ns < earliest_ns):
                earliest_ns = wake_ns
        return earliest_ns

    def watch_for_pauses(self, now_ns: int) -> None:
        """Look for pauses of this process from now on, because a worker has joined."""
        self._detector.begin(now_ns)

    def exclude_pause(self, now_ns: int) -> None:
        """If the lead was paused, extend all deadlines by that time."""
        paused_ns = self._detector.paused_ns(now_ns)
        if paused_ns:
            for part in self._parts:
                part.exclude_time(paused_ns, now_ns)
            self._outbox.note("lead-paused", seconds=paused_ns / 1e9)

    def on_tick(self, now_ns: int) -> None:
        self.exclude_pause(now_ns)
        for on_time in self._on_time:
            on_time(now_ns)
