"""Whether the lead is alive, as a worker or a server sees it.

The lead sends heartbeats to every process that is linked to it, and these processes send heartbeats
to the lead (dSyncPS has heartbeats in both directions). *A process applies the same rule to a silent
lead that the lead applies to silent peers (`liveness`); time in which the process itself was paused does
not count. After `--lead-timeout` without a message, the process treats the lead as lost.*
"""

from polyrhythm.core.effects import Note
from polyrhythm.core.liveness import PauseDetector, Pulse
from polyrhythm.core.machine import Reason, Waiting

_LEAST_LINK_TIMEOUT_S = 60.0
"""The shortest timeout of a link: a peer that is only stopped for a while must not lose its
links."""
_AFTER_LEAD_TIMEOUT_S = 10.0
_MOST_LINK_TIMEOUT_S = 86_400.0


def link_timeout_s(lead_timeout_s: float) -> float:
    """After how long without an acknowledgement the network layer may end a link. *This is later
    than `--lead-timeout`, so a process that is cut off from the lead always ends because of the
    lead timeout.*"""
    later_s = max(_LEAST_LINK_TIMEOUT_S, lead_timeout_s + _AFTER_LEAD_TIMEOUT_S)
    return min(later_s, _MOST_LINK_TIMEOUT_S)


SILENT, HEARD = "lead-silent", "lead-heard"
"""The names of two journal events: the lead has become suspect; a suspect lead has sent a message
again."""


_LEAST_HEARD_EVERY_S = 0.25


class HeardThrottle:
    """Limits how often a node tells its machine that bytes came from the lead. Twice per heartbeat
    interval is enough for `LeadWatch`, because it suspects the lead only after more than one
    interval. If the lead timeout is short, the node tells its machine more often."""

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
    __slots__ = ("_pauses", "_pulse", "_suspected", "_timeout_ns", "beats", "wake_ns")

    def __init__(self) -> None:
        self._pulse: Pulse | None = None
        """The lead's heartbeats; None until there is a link to the lead."""
        self._pauses = PauseDetector(0.0)
        self._timeout_ns = 0
        self._suspected = False
        self.beats = 0
        """How many heartbeats came over the present link."""
        self.wake_ns: int | None = None
        """When to call `look` next, at the latest. Messages of the lead move the real deadline
        later without changing this value, so that most messages need no calculation; `look` then
        sets it again."""

    def begin(self, heartbeat_s: float, timeout_s: float, now_ns: int) -> Note | None:
        """The link to the lead is up, for the first time or again. Returns a line for the journal
        if the lead was suspect."""
        note = self.hear(now_ns)
        self._pulse = Pulse(round(heartbeat_s * 1e9), now_ns)
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
        """A message came from the lead; only heartbeats (`beat`) update the mean gap. Returns a
        line for the journal if the lead was suspect."""
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
            self._pulse = Pulse(pulse.beat_ns, now_ns)
            self._schedule(self._pulse)
            return Note(HEARD, {"silent_s": silent_s})
        if beat:
            pulse.beat(now_ns)
            self._schedule(pulse)
        else:
            pulse.heard_ns = now_ns
        return None

    def look(self, now_ns: int) -> Note | None:
        """Time has passed. Returns a line for the journal if the lead becomes suspect."""
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
