"""Signs of life: decides when a silent peer becomes suspect, and detects pauses of this process.

A peer whose link ends counts as dead at once, so suspicion is needed only for a peer that is
silent. *The limit of silence has three parts: the mean gap between the peer's heartbeats; twice
this gap or four standard deviations, whichever is more; and half a second for the network.* Mean
and deviation are computed from the last 20 gaps, so an irregular peer gets more time than a regular
one.
"""

from collections import deque
from dataclasses import dataclass, field
from math import sqrt
from operator import mul

import msgspec

from polyrhythm.core.effects import Note
from polyrhythm.core.machine import Deadline, Reason, Waiting
from polyrhythm.core.values import keep_last

_GAPS = 20
_DEVIATIONS = 4
_NETWORK_NS = 500_000_000
_UNKNOWN_FACTOR = 20
"""The limit of silence, in heartbeat intervals, while fewer than three gaps are known: a new worker
may still be importing its libraries."""
_FEW = 3
_PAUSE_SLACK_NS = 250_000_000
"""A late wake-up counts as a pause only if it is later than one heartbeat interval plus this time.
That is shorter than any limit of silence."""


_SILENT_LINK_S, _SILENT_LINK_BEATS = 3.0, 6
_JUDGED_AFTER_S, _JUDGED_AFTER_BEATS = 1.0, 2


def silent_link_s(heartbeat_s: float) -> float:
    """How long nothing may arrive over a link before the link counts as silent.

    *The limit is three seconds, or six heartbeat intervals if that is longer. The lead acts one
    second later (or two intervals, if that is longer). By then it also knows which other links fell
    silent at the same time.* The limit for a process is measured; the limit for a link is fixed.
    That is enough, because the silence of a link counts only if the lead has meanwhile heard from
    the process at the other end.
    """
    return max(_SILENT_LINK_S, _SILENT_LINK_BEATS * heartbeat_s)


def judged_link_s(heartbeat_s: float) -> float:
    """How long a link must have been silent before the lead acts."""
    return silent_link_s(heartbeat_s) + max(_JUDGED_AFTER_S, _JUDGED_AFTER_BEATS * heartbeat_s)


@dataclass(slots=True)
class Pulse:
    """The heartbeats of one peer. The limit of silence is computed when a heartbeat arrives,
    because it is read far more often than it changes."""

    beat_ns: int
    heard_ns: int
    """When the last message arrived. A message that is not a heartbeat shows that the peer is
    alive, but does not change its mean gap."""
    limit_ns: int
    """How long the peer may be silent before it becomes suspect."""
    last_beat_ns: int | None = None
    _gaps: list[int] = field(default_factory=list)

    @classmethod
    def begin(cls, beat_ns: int, heard_ns: int, unknown_factor: int = _UNKNOWN_FACTOR) -> "Pulse":
        """`unknown_factor`: the limit of silence, in heartbeat intervals, until enough gaps are
        known."""
        return cls(beat_ns, heard_ns, unknown_factor * beat_ns)

    def beat(self, now_ns: int) -> None:
        if self.last_beat_ns is not None:
            # A peer never sends heartbeats more often than agreed. A shorter gap means that two
            # heartbeats were read together.
            self._add_gap(max(self.beat_ns, now_ns - self.last_beat_ns))
        self.last_beat_ns = self.heard_ns = now_ns

    def _add_gap(self, gap_ns: int) -> None:
        gaps = self._gaps
        same = len(gaps) == _GAPS and gap_ns == gaps[0]
        keep_last(gaps, gap_ns, _GAPS)
        # If the new gap equals the gap that it replaces, mean and deviation stay the same.
        if len(gaps) >= _FEW and not same:
            mean = self.mean_gap_ns()
            usual_ns = mean + max(2 * mean, _DEVIATIONS * self.deviation_ns())
            self.limit_ns = round(usual_ns) + _NETWORK_NS

    def exclude_time(self, paused_ns: int, now_ns: int) -> None:
        """Do not count the time in which the listener was paused as silence."""
        self.heard_ns = min(now_ns, self.heard_ns + paused_ns)
        if self.last_beat_ns is not None:
            self.last_beat_ns = min(now_ns, self.last_beat_ns + paused_ns)

    def mean_gap_ns(self) -> float:
        return sum(self._gaps) / len(self._gaps) if self._gaps else float(self.beat_ns)

    def deviation_ns(self) -> float:
        count = len(self._gaps)
        squares = sum(map(mul, self._gaps, self._gaps))
        return sqrt(count * squares - sum(self._gaps) ** 2) / count if count else 0.0

    def deadline_ns(self) -> int:
        """When the peer becomes suspect if it stays silent."""
        return self.heard_ns + self.limit_ns

    def silence(self, now_ns: int) -> dict[str, float]:
        """How long the peer has been silent, the limit, and the numbers from which the limit
        follows."""
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


class Suspicion(msgspec.Struct):
    """The heartbeats of all peers that should send some, and which of these peers have been silent
    for too long."""

    _heartbeat_s: float
    _unknown_factor: int = _UNKNOWN_FACTOR
    _pulses: dict[int, Pulse] = {}
    deadline: Deadline = msgspec.field(default_factory=Deadline)
    """No peer can become suspect before this time. Messages move the deadlines, but not this value.
    Once it has passed, it is computed again."""

    def __contains__(self, peer: int) -> bool:
        return peer in self._pulses

    def expect(self, peer: int, now_ns: int, patience: int = 1) -> None:
        """Listen to this peer from now on. `patience`: a factor by which the limit of silence is
        longer as long as the peer's heartbeats are unknown."""
        factor = patience * self._unknown_factor
        pulse = Pulse.begin(round(self._heartbeat_s * 1e9), now_ns, factor)
        self._pulses[peer] = pulse
        self._wake_by(pulse.deadline_ns())

    def _wake_by(self, deadline_ns: int) -> None:
        wake_ns = self.deadline.wake_ns
        if wake_ns is None or deadline_ns < wake_ns:
            self.deadline.wake_ns = deadline_ns

    def forget(self, peer: int) -> None:
        self._pulses.pop(peer, None)
        if not self._pulses:
            self.deadline.wake_ns = None

    def beat(self, peer: int, now_ns: int) -> None:
        if (pulse := self._pulses.get(peer)) is not None:
            pulse.beat(now_ns)
            # The limit of silence may be shorter now, because enough gaps are known.
            self._wake_by(pulse.deadline_ns())

    def hear(self, peer: int, now_ns: int) -> None:
        """Note a message other than a heartbeat."""
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
        if not self.deadline.is_over(now_ns):
            return []
        deadlines = {peer: pulse.deadline_ns() for peer, pulse in self._pulses.items()}
        found = [peer for peer, deadline_ns in deadlines.items() if deadline_ns <= now_ns]
        self.deadline.wake_ns = min((d for d in deadlines.values() if d > now_ns), default=None)
        return found


@dataclass(slots=True)
class PauseDetector:
    """Detects that this process was paused (SIGSTOP, a frozen container): it then wakes much later
    than it asked for. Messages that arrived during a pause may still be unread, so a pause must not
    count as silence of any peer."""

    _heartbeat_s: float
    wake_ns: int | None = None
    """The next time at which the process should look at the clock; None until `begin`."""
    _beat_ns: int = 0

    def begin(self, now_ns: int) -> None:
        if self.wake_ns is None:
            self._beat_ns = round(self._heartbeat_s * 1e9)
            self.wake_ns = now_ns + self._beat_ns

    def paused_ns(self, now_ns: int) -> int:
        """How long the process was paused since the last call; 0 if it was not. Call this before
        judging the silence of a peer and before counting its message. Otherwise a pause would count
        as a gap between heartbeats."""
        if self.wake_ns is None or now_ns < self.wake_ns:
            return 0
        late_ns = now_ns - self.wake_ns
        self.wake_ns = now_ns + self._beat_ns
        return late_ns if late_ns > self._beat_ns + _PAUSE_SLACK_NS else 0


class Heartbeat:
    """When the next heartbeat of a process is due."""

    __slots__ = ("_every_ns", "next_ns")

    def __init__(self) -> None:
        self._every_ns = 0
        self.next_ns: int | None = None
        """When the next heartbeat is due; None before `begin`."""

    def begin(self, every_s: float, now_ns: int) -> None:
        self._every_ns = round(every_s * 1e9)
        self.next_ns = now_ns + self._every_ns

    def due(self, now_ns: int) -> bool:
        """Whether a heartbeat is due now; if so, the next one is scheduled."""
        if self.next_ns is None or now_ns < self.next_ns:
            return False
        self.next_ns = now_ns + self._every_ns
        return True


_LEAST_LINK_TIMEOUT_S = 60.0
"""The shortest timeout of a link: a peer that is stopped only for a while must not lose its
links."""
_AFTER_LEAD_TIMEOUT_S = 10.0
_MOST_LINK_TIMEOUT_S = 86_400.0


def link_timeout_s(lead_timeout_s: float) -> float:
    """The time without an acknowledgement after which the network layer may end a link. *This is
    later than `--lead-timeout`, so a process that is cut off from the lead always ends because of
    the lead timeout.*"""
    later_s = max(_LEAST_LINK_TIMEOUT_S, lead_timeout_s + _AFTER_LEAD_TIMEOUT_S)
    return min(later_s, _MOST_LINK_TIMEOUT_S)


SILENT, HEARD = "lead-silent", "lead-heard"
"""The names of two events in the journal: the lead becomes suspect; a suspect lead has sent a
message."""


_LEAST_HEARD_EVERY_S = 0.25


class HeardThrottle:
    """Limits how often a node tells its machine that the lead has sent bytes. Twice per heartbeat
    interval is enough for `LeadWatch`, which suspects the lead only after more than one interval.
    With a short lead timeout, the node tells its machine more often."""

    __slots__ = ("_every_ns", "_last_ns", "next_ns")

    def __init__(self, heartbeat_s: float = 0.0, lead_timeout_s: float = 0.0) -> None:
        self._last_ns = 0
        self._every_ns = 0
        self.next_ns = 0
        """`due` returns False until this time."""
        self.follow(heartbeat_s, lead_timeout_s)

    def follow(self, heartbeat_s: float, lead_timeout_s: float) -> None:
        """Use the heartbeat interval and the lead timeout of the job from now on."""
        every_s = max(_LEAST_HEARD_EVERY_S, min(heartbeat_s / 2, lead_timeout_s / 8))
        self._every_ns = round(every_s * 1e9)
        self.next_ns = self._last_ns + self._every_ns

    def due(self, now_ns: int) -> bool:
        if now_ns < self.next_ns:
            return False
        self._last_ns = now_ns
        self.next_ns = now_ns + self._every_ns
        return True


class LeadWatch:
    """Whether the lead is alive, as a worker or a server sees it.

    The lead sends heartbeats to every process that is linked to it, and these processes send
    heartbeats to the lead (dSyncPS has heartbeats in both directions). *A process applies to a
    silent lead the same rule that the lead applies to silent peers. Time in which the process
    itself was paused does not count. After `--lead-timeout` without a message, the process treats
    the lead as lost.*
    """

    __slots__ = ("_pauses", "_pulse", "_suspected", "_timeout_ns", "beats", "wake_ns")

    def __init__(self) -> None:
        self._pulse: Pulse | None = None
        """The lead's heartbeats; None until there is a link to the lead."""
        self._pauses = PauseDetector(0.0)
        self._timeout_ns = 0
        self._suspected = False
        self.beats = 0
        """How many heartbeats have come over the present link."""
        self.wake_ns: int | None = None
        """The latest time at which `look` must be called. A message of the lead moves the real
        deadline, but not this value, so most messages need no computation. `look` sets the value
        again."""

    def begin(self, heartbeat_s: float, timeout_s: float, now_ns: int) -> Note | None:
        """Begin to watch the lead: the link to it is open, for the first time or again. Returns a
        line for the journal if the lead was suspect."""
        note = self.hear(now_ns)
        self._pulse = Pulse.begin(round(heartbeat_s * 1e9), now_ns)
        self._pauses = PauseDetector(heartbeat_s)
        self._pauses.begin(now_ns)
        self._timeout_ns = round(timeout_s * 1e9)
        self.beats = 0
        self._schedule(self._pulse)
        return note

    def _schedule(self, pulse: Pulse) -> None:
        wake_ns = pulse.heard_ns + self._timeout_ns
        if self._pauses.wake_ns is not None:
            wake_ns = min(wake_ns, self._pauses.wake_ns)
        self.wake_ns = wake_ns if self._suspected else min(wake_ns, pulse.deadline_ns())

    def hear(self, now_ns: int, *, beat: bool = False) -> Note | None:
        """Note a message of the lead; only heartbeats (`beat`) update the mean gap. Returns a line
        for the journal if the lead was suspect."""
        self.beats += beat
        pulse = self._pulse
        if pulse is None:
            return None
        look_ns = self._pauses.wake_ns
        if look_ns is not None and now_ns >= look_ns:
            self._exclude_pause(pulse, now_ns)
        if self._suspected:
            self._suspected = False
            silent_s = (now_ns - pulse.heard_ns) / 1e9
            # Begin a new `Pulse`: the silence that is over must not count as a gap between two
            # heartbeats.
            self._pulse = Pulse.begin(pulse.beat_ns, now_ns)
            self._schedule(self._pulse)
            return Note(HEARD, {"silent_s": silent_s})
        if beat:
            pulse.beat(now_ns)
            self._schedule(pulse)
        else:
            pulse.heard_ns = now_ns
        return None

    def look(self, now_ns: int) -> Note | None:
        """Check whether the lead has been silent for too long. Returns a line for the journal if it
        becomes suspect now."""
        pulse = self._pulse
        if pulse is None:
            return None
        self._exclude_pause(pulse, now_ns)
        late = pulse.deadline_ns() <= now_ns or self._given_up(pulse, now_ns)
        suspected, self._suspected = self._suspected, self._suspected or late
        self._schedule(pulse)
        if suspected or not late:
            return None
        return Note(SILENT, self._fields(pulse, now_ns))

    def lost(self, now_ns: int) -> Reason | None:
        """Why the lead counts as lost; None while this process still waits for it."""
        pulse = self._pulse
        if pulse is None or not self._given_up(pulse, now_ns):
            return None
        return Reason("lead-lost", self._fields(pulse, now_ns))

    def waiting(self) -> Waiting | None:
        """What a machine waits for while it suspects the lead."""
        pulse = self._pulse
        if pulse is None or not self._suspected:
            return None
        until_ns = pulse.heard_ns + self._timeout_ns
        return Waiting(Reason("lead-suspect"), pulse.heard_ns, until_ns)

    def _given_up(self, pulse: Pulse, now_ns: int) -> bool:
        return now_ns >= pulse.heard_ns + self._timeout_ns

    def _exclude_pause(self, pulse: Pulse, now_ns: int) -> None:
        paused_ns = self._pauses.paused_ns(now_ns)
        if paused_ns:
            pulse.exclude_time(paused_ns, now_ns)

    def _fields(self, pulse: Pulse, now_ns: int) -> dict[str, float]:
        return {**pulse.silence(now_ns), "timeout_s": self._timeout_ns / 1e9}


_SLACK_NS = 500_000_000
"""A reading of the clock counts as late only beyond this delay, because a thread may have to wait
on a busy host."""
_REMEMBERED = 64


def stopped_ns(gap_ns: int, every_ns: int, ran_ns: int) -> int:
    """How long the process was stopped between two readings of the clock. `every_ns`: the time
    between readings that are on time. `ran_ns`: a lower bound of the CPU time that the process used
    between them."""
    missing_ns = gap_ns - min(max(ran_ns, 0), gap_ns)
    return missing_ns if missing_ns > every_ns + _SLACK_NS else 0


class Pauses:
    """The pauses of this process: when it was stopped (SIGSTOP, a debugger, a frozen container),
    and for how long. In all methods `ran_ns` is the CPU time that the process has used since it
    began.

    The process reads the clock at regular intervals. *If a reading is late and the process used no
    CPU time meanwhile, the process was stopped. If it used CPU time, it was not stopped: it was in
    a call that lets no other thread run.* A stop that is shorter than the interval plus half a
    second is not detected.
    """

    def __init__(self, every_ns: int, now_ns: int, ran_ns: int) -> None:
        self.every_ns = every_ns
        self.total_ns = 0
        self._looked_ns = now_ns
        self._ran_ns = ran_ns
        self._found: deque[tuple[int, int]] = deque(maxlen=_REMEMBERED)
        """For each pause, the time at which it ended, and its length."""

    def look(self, now_ns: int, ran_ns: int) -> None:
        stopped = stopped_ns(now_ns - self._looked_ns, self.every_ns, ran_ns - self._ran_ns)
        if stopped:
            self.total_ns += stopped
            self._found.append((now_ns, stopped))
        self._looked_ns, self._ran_ns = now_ns, ran_ns

    def since(self, began_ns: int) -> int:
        """The total length of the pauses that ended after `began_ns`."""
        return sum(stopped for ended_ns, stopped in self._found if ended_ns > began_ns)
