"""Whether the lead itself was away: its process stopped, its machine asleep.

*Who was away suspects nobody for that time.* One server runs in the lead's own process, so that its
heartbeat fails only together with the lead.
"""

_BEATS = 2
"""Its own heartbeat may be late by one."""


class Wakefulness:
    def __init__(self, heartbeat_s: float) -> None:
        self._beat_ns = round(heartbeat_s * 1e9)
        self._heard_ns: int | None = None

    def beat(self, now_ns: int) -> None:
        """Its own server beats."""
        self._heard_ns = now_ns

    def away_ns(self, now_ns: int) -> int:
        """For how long it was away, said once: to be asked before anybody is suspected, or heard, for
        what was missed is no gap between heartbeats either."""
        if self._heard_ns is None or now_ns - self._heard_ns <= _BEATS * self._beat_ns:
            return 0
        expected_ns = self._heard_ns + self._beat_ns
        self._heard_ns = now_ns
        return now_ns - expected_ns
