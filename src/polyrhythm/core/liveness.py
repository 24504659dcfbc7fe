"""Signs of life: when a silent peer becomes suspect, and whether this process was paused itself.

A peer whose link ends counts as dead at once; suspicion is needed only for a peer that is silent.
*A peer may be silent for the mean gap between its heartbeats, plus twice that gap or four standard
deviations, whichever is more, plus half a second for the network.* Mean and deviation are those of
the last 20 gaps, so a slow or irregular peer gets more time than a regular one.

*A link is silent if nothing has come over it for three seconds, or for six heartbeat intervals if that
is longer. It is judged one second later (or two intervals), when silence that began at the same time
on other links is known too.* Unlike a process, a link needs no measured limit, because its silence
counts only if the lead has heard from the process at the other end meanwhile.
"""

from collections import deque
from math import sqrt

_GAPS = 20
_DEVIATIONS = 4
_NETWORK_NS = 500_000_000
_UNKNOWN_FACTOR = 20
"""The limit of silence, in heartbeat intervals, while fewer than three gaps are known: a new worker
may still be importing its libraries."""
_FEW = 3
_PAUSE_SLACK_NS = 250_000_000
"""A late wake-up means a pause only if it is late by more than one heartbeat interval plus this
time. The sum of the two is shorter than any limit of silence."""


_SILENT_LINK_S, _SILENT_LINK_BEATS = 3.0, 6
_JUDGED_AFTER_S, _JUDGED_AFTER_BEATS = 1.0, 2


def silent_link_s(heartbeat_s: float) -> float:
    """How long nothing may come over a link before it is silent."""
    return max(_SILENT_LINK_S, _SILENT_LINK_BEATS * heartbeat_s)


def judged_link_s(heartbeat_s: float) -> float:
    """The duration of a link's silence at which the lead decides what follows."""
    return silent_link_s(heartbeat_s) + max(_JUDGED_AFTER_S, _JUDGED_AFTER_BEATS * heartbeat_s)


class Pulse:
    """The heartbeats of one peer. The limit of silence is calculated when a heartbeat comes, and
    not when the limit is read, because it is read far more often."""

    __slots__ = ("_gaps", "_squares", "_sum", "beat_ns", "heard_ns", "last_beat_ns", "limit_ns")

    def __init__(self, beat_ns: int, heard_ns: int, unknown_factor: int = _UNKNOWN_FACTOR) -> None:
        """`unknown_factor`: the limit of silence, in heartbeat intervals, until enough gaps are
        known."""
        self.beat_ns = beat_ns
        self.heard_ns = heard_ns
        """When the last message came. A message other than a heartbeat shows that the peer is alive,
        but does not change its mean gap."""
        self.last_beat_ns: int | None = None
        self.limit_ns = unknown_factor * beat_ns
        """How long the peer may be silent before it becomes suspect."""
        self._gaps: deque[int] = deque(maxlen=_GAPS)
        self._sum = self._squares = 0
        """The sums of the gaps and of their squares. They are integers, so adding and subtracting
        is exact."""

    def beat(self, now_ns: int) -> None:
        if self.last_beat_ns is not None:
            # peers do not send heartbeats more often than agreed: a shorter gap means that two
            # heartbeats were read together
            self._add_gap(max(self.beat_ns, now_ns - self.last_beat_ns))
        self.last_beat_ns = self.heard_ns = now_ns

    def _add_gap(self, gap_ns: int) -> None:
        gaps = self._gaps
        oldest_ns = gaps[0] if len(gaps) == _GAPS else 0
        if gap_ns == oldest_ns:
            gaps.append(gap_ns)
            return  # the mean and the deviation are the same as before
        gaps.append(gap_ns)
        self._sum += gap_ns - oldest_ns
        self._squares += gap_ns * gap_ns - oldest_ns * oldest_ns
        if len(gaps) >= _FEW:
            mean = self.mean_gap_ns()
            usual_ns = mean + max(2 * mean, _DEVIATIONS * self.deviation_ns())
            self.limit_ns = round(usual_ns) + _NETWORK_NS

    def exclude_time(self, paused_ns: int, now_ns: int) -> None:
        """Do not count the time in which the listener was paused as silence."""
        self.heard_ns = min(now_ns, self.heard_ns + paused_ns)
        if self.last_beat_ns is not None:
            self.last_beat_ns = min(now_ns, self.last_beat_ns + paused_ns)

    def mean_gap_ns(self) -> float:
        return self._sum / len(self._gaps) if self._gaps else float(self.beat_ns)

    def deviation_ns(self) -> float:
        count = len(self._gaps)
        return sqrt(count * self._squares - self._sum**2) / count if count else 0.0

    def deadline_ns(self) -> int:
        """When the peer becomes suspect if it stays silent."""
        return self.heard_ns + self.limit_ns

    def silence(self, now_ns: int) -> dict[str, float]:
        """How long the peer has been silent, the limit, and the numbers from which the limit was
        calculated."""
        fields = {
            "silent_s": (now_ns - self.heard_ns) / 1e9,
            "limit_s": self.limit_ns / 1e9,
            "gaps": len(self._gaps),
        }
        if len(self._gaps) < _FEW:
            heartbeats = self.limit_ns // max(1, self.beat_ns)
            return {**fields, "heartbeats": heartbeats, "heartbeat_s": self.beat_ns / 1e9}
        mean_s, deviation_s = self.mean_gap_ns() / 1e9, self.deviation_ns() / 1e9
        network_s = _NETWORK_NS / 1e9
        return {**fields, "mean_s": mean_s, "deviation_s": deviation_s, "network_s": network_s}


class Suspicion:
    """The heartbeats of all peers that should send some, and which peers have been silent for too
    long."""

    def __init__(self, heartbeat_s: float, unknown_factor: int = _UNKNOWN_FACTOR) -> None:
        self._unknown_factor = unknown_factor
        self._beat_ns = round(heartbeat_s * 1e9)
        self._pulses: dict[int, Pulse] = {}
        self.wake_ns: int | None = None
        """A time before which no peer can become suspect. Messages move the deadlines later without
        changing this value; it is calculated again when it has passed."""

    def __contains__(self, peer: int) -> bool:
        return peer in self._pulses

    def expect(self, peer: int, now_ns: int) -> None:
        """Listen for this peer from now on."""
        pulse = Pulse(self._beat_ns, now_ns, unknown_factor=self._unknown_factor)
        self._pulses[peer] = pulse
        self._wake_by(pulse.deadline_ns())

    def _wake_by(self, deadline_ns: int) -> None:
        if self.wake_ns is None or deadline_ns < self.wake_ns:
            self.wake_ns = deadline_ns

    def forget(self, peer: int) -> None:
        self._pulses.pop(peer, None)
        if not self._pulses:
            self.wake_ns = None

    def beat(self, peer: int, now_ns: int) -> None:
        if (pulse := self._pulses.get(peer)) is not None:
            pulse.beat(now_ns)
            # The limit of silence may be shorter now, because enough gaps are known.
            self._wake_by(pulse.deadline_ns())

    def hear(self, peer: int, now_ns: int) -> None:
        """A message other than a heartbeat came."""
        if (pulse := self._pulses.get(peer)) is not None:
            pulse.heard_ns = now_ns

    def exclude_time(self, paused_ns: int, now_ns: int) -> None:
        """Do not count the time in which this process was paused as silence of any peer."""
        for pulse in self._pulses.values():
            pulse.exclude_time(paused_ns, now_ns)

    def pulse(self, peer: int) -> Pulse:
        return self._pulses[peer]

    def silent(self, now_ns: int) -> list[int]:
        """The peers that are suspect now."""
        if self.wake_ns is None or now_ns < self.wake_ns:
            return []
        deadlines = {peer: pulse.deadline_ns() for peer, pulse in self._pulses.items()}
        found = [peer for peer, deadline_ns in deadlines.items() if deadline_ns <= now_ns]
        self.wake_ns = min((d for d in deadlines.values() if d > now_ns), default=None)
        return found


class PauseDetector:
    """Detects that this process was paused (SIGSTOP, a frozen container): it then wakes much later
    than it asked for. Messages that came during a pause may still be unread, so a pause must not
    count as silence of any peer."""

    __slots__ = ("_beat_ns", "wake_ns")

    def __init__(self, heartbeat_s: float) -> None:
        self._beat_ns = round(heartbeat_s * 1e9)
        self.wake_ns: int | None = None
        """When to look at the clock next; None until `begin`."""

    def begin(self, now_ns: int) -> None:
        if self.wake_ns is None:
            self.wake_ns = now_ns + self._beat_ns

    def paused_ns(self, now_ns: int) -> int:
        """How long the process was paused since the last call; 0 if it was not. Call this before
        judging a peer's silence and before counting its message, so that a pause does not count as
        a gap between heartbeats."""
        if self.wake_ns is None or now_ns < self.wake_ns:
            return 0
        late_ns = now_ns - self.wake_ns
        self.wake_ns = now_ns + self._beat_ns
        return late_ns if late_ns > self._beat_ns + _PAUSE_SLACK_NS else 0
