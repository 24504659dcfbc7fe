"""The deadlines of the lead: when it must be woken, which part it calls then, and how a pause of
its process extends the deadlines.

Each part with a deadline is registered once. The registry then wakes the lead at the deadline,
calls the part with every tick, and extends the deadline after a pause. *A paused lead reads no
messages. So the time of the pause counts neither as silence of a peer nor towards any deadline.*
The time at which the policy wants to be asked is not a deadline: the policy gives a new time with
every decision (`rounds/folds.py`).
"""

from collections.abc import Callable
from typing import Protocol

from polyrhythm.core.lead.outbox import LeadOutbox
from polyrhythm.core.liveness import PauseDetector


class Timed(Protocol):
    """A `Deadline`, or a part that chooses between several."""

    @property
    def wake_ns(self) -> int | None:
        """When the lead must be woken; None if the part waits for no time."""

    def exclude_time(self, paused_ns: int, now_ns: int) -> None:
        """Extend the deadline by this time, during which the lead's process was paused."""


class Deadlines:
    def __init__(self, detector: PauseDetector, outbox: LeadOutbox) -> None:
        self._detector = detector
        self._outbox = outbox
        self._deadlines: list[Timed] = []
        self._excluding: list[Callable[[int, int], None]] = []
        self._on_time: list[Callable[[int], None]] = []

    def register(
        self,
        deadline: Timed,
        on_time: Callable[[int], None] | None = None,
        exclude_time: Callable[[int, int], None] | None = None,
    ) -> None:
        """Register the deadline of a part. `on_time` is called with every tick, so it must check
        whether the deadline has passed. Parts are called in the order in which they were
        registered. A part without `on_time` checks its deadline while it handles an event.
        `exclude_time`: how the part extends its deadline after a pause; by default by the length of
        the pause."""
        self._deadlines.append(deadline)
        self._excluding.append(exclude_time or deadline.exclude_time)
        if on_time is not None:
            self._on_time.append(on_time)

    def register_without_deadline(
        self, on_time: Callable[[int], None], exclude_time: Callable[[int, int], None]
    ) -> None:
        """Register a part that does not wake the lead, but is told of each tick and pause."""
        self._on_time.append(on_time)
        self._excluding.append(exclude_time)

    @property
    def wake_ns(self) -> int | None:
        """The earliest deadline; None if there is none."""
        earliest_ns = self._detector.wake_ns
        for deadline in self._deadlines:
            wake_ns = deadline.wake_ns
            if wake_ns is not None and (earliest_ns is None or wake_ns < earliest_ns):
                earliest_ns = wake_ns
        return earliest_ns

    def watch_for_pauses(self, now_ns: int) -> None:
        """Begin to look for pauses of this process: a worker has joined."""
        self._detector.begin(now_ns)

    def exclude_pause(self, now_ns: int) -> None:
        """If the lead was paused, extend all deadlines by that time."""
        paused_ns = self._detector.paused_ns(now_ns)
        if paused_ns:
            for exclude_time in self._excluding:
                exclude_time(paused_ns, now_ns)
            self._outbox.note("lead-paused", seconds=paused_ns / 1e9)

    def on_tick(self, now_ns: int) -> None:
        self.exclude_pause(now_ns)
        for on_time in self._on_time:
            on_time(now_ns)
