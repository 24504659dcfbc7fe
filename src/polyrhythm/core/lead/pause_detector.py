"""Whether the lead itself was away: its process was stopped, and it was woken later than it had asked.

*Who was away suspects nobody for that time, and waits as much longer for those who were to come.* What
was said meanwhile may still be unread when it wakes.
"""

_SLACK_NS = 250_000_000
"""On top of a heartbeat: less is an ordinary delay. Both are less than anybody may be silent for."""


class PauseDetector:
    def __init__(self, heartbeat_s: float) -> None:
        self._beat_ns = round(heartbeat_s * 1e9)
        self.wake_ns: int | None = None
        """When it looks around next; None: there is nobody yet."""

    def begin(self, now_ns: int) -> None:
        if self.wake_ns is None:
            self.wake_ns = now_ns + self._beat_ns

    def paused_ns(self, now_ns: int) -> int:
        """For how long it was away, said once: to be asked before anybody is suspected, or heard, for
        what was missed is no gap between heartbeats either."""
        if self.wake_ns is None or now_ns < self.wake_ns:
            return 0
        late_ns = now_ns - self.wake_ns
        self.wake_ns = now_ns + self._beat_ns
        return late_ns if late_ns > self._beat_ns + _SLACK_NS else 0
