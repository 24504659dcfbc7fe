"""Whether somebody who is silent is still there.

The end of a link is death at once; suspicion exists only for silence. *Silence is suspect after
the usual gap between signs of life, twice that gap or four times its spread on top, whichever is
more, and half a second for the way.* The usual gap and its spread are those of the last 20
heartbeats, so a machine that is slow to speak is given time, and a regular one little.
"""

from collections import deque
from dataclasses import dataclass, field
from math import sqrt

_GAPS = 20
_SPREADS = 4
_WAY_NS = 500_000_000
_UNKNOWN_FACTOR = 20
"""Before three gaps are known: so many times the heartbeat that was agreed on. A worker may still be
importing half the world."""
_FEW = 3


@dataclass(slots=True)
class Pulse:
    """What is known of one peer's heartbeats."""

    beat_ns: int
    heard_ns: int
    gaps: deque[int] = field(default_factory=lambda: deque(maxlen=_GAPS))
    beaten_ns: int | None = None
    unknown_factor: int = _UNKNOWN_FACTOR

    def beat(self, now_ns: int) -> None:
        if self.beaten_ns is not None:
            # nobody beats sooner than was agreed: if it seems so, they were only read together
            self.gaps.append(max(self.beat_ns, now_ns - self.beaten_ns))
        self.beaten_ns = self.heard_ns = now_ns

    def spoke(self, now_ns: int) -> None:
        """Something else than a heartbeat came: it lives, but its rhythm is not learned from it."""
        self.heard_ns = now_ns

    def exclude_time(self, paused_ns: int, now_ns: int) -> None:
        """So long nobody could be heard."""
        self.heard_ns = min(now_ns, self.heard_ns + paused_ns)
        if self.beaten_ns is not None:
            self.beaten_ns = min(now_ns, self.beaten_ns + paused_ns)

    def usual_ns(self) -> float:
        return sum(self.gaps) / len(self.gaps) if self.gaps else float(self.beat_ns)

    def spread_ns(self) -> float:
        usual = self.usual_ns()
        return sqrt(sum((gap - usual) ** 2 for gap in self.gaps) / max(1, len(self.gaps)))

    def limit_ns(self) -> int:
        if len(self.gaps) < _FEW:
            return self.unknown_factor * self.beat_ns
        usual = self.usual_ns()
        return round(usual + max(2 * usual, _SPREADS * self.spread_ns())) + _WAY_NS

    def until_ns(self) -> int:
        return self.heard_ns + self.limit_ns()

    def derivation(self) -> str:
        """How the limit came about, in words."""
        limit_s = self.limit_ns() / 1e9
        if len(self.gaps) < _FEW:
            return (
                f"{limit_s:.2f} s = {self.unknown_factor} x the agreed {self.beat_ns / 1e9:.2f} s"
            )
        usual_s, spread_s = self.usual_ns() / 1e9, self.spread_ns() / 1e9
        more = (
            f"2 x {usual_s:.2f} s"
            if 2 * usual_s >= _SPREADS * spread_s
            else f"4 x {spread_s:.2f} s"
        )
        return (
            f"{limit_s:.2f} s = usual gap {usual_s:.2f} s (of the last {len(self.gaps)}) + {more}"
            f" (the larger of 2 gaps and 4 spreads) + {_WAY_NS / 1e9:.1f} s"
        )


class Suspicion:
    """The pulses of all who should be heard, and who has been silent for too long."""

    def __init__(self, heartbeat_s: float, unknown_factor: int = _UNKNOWN_FACTOR) -> None:
        self._unknown_factor = unknown_factor
        self._beat_ns = round(heartbeat_s * 1e9)
        self._pulses: dict[int, Pulse] = {}
        self.wake_ns: int | None = None
        """When the next could be suspect if it said nothing from now on. It is worked out anew when
        that time has come, for signs of life have moved it away by then."""

    def __contains__(self, who: int) -> bool:
        return who in self._pulses

    def expect(self, who: int, now_ns: int) -> None:
        pulse = Pulse(self._beat_ns, now_ns, unknown_factor=self._unknown_factor)
        self._pulses[who] = pulse
        self._look_by(pulse.until_ns())

    def _look_by(self, until_ns: int) -> None:
        if self.wake_ns is None or until_ns < self.wake_ns:
            self.wake_ns = until_ns

    def forget(self, who: int) -> None:
        self._pulses.pop(who, None)
        if not self._pulses:
            self.wake_ns = None

    def beat(self, who: int, now_ns: int) -> None:
        if (pulse := self._pulses.get(who)) is not None:
            pulse.beat(now_ns)
            self._look_by(pulse.until_ns())  # the limit shrinks as its rhythm is learned

    def spoke(self, who: int, now_ns: int) -> None:
        """Something else than a heartbeat came."""
        if (pulse := self._pulses.get(who)) is not None:
            pulse.spoke(now_ns)

    def exclude_time(self, paused_ns: int, now_ns: int) -> None:
        """Whoever listens was away for so long."""
        for pulse in self._pulses.values():
            pulse.exclude_time(paused_ns, now_ns)

    def pulse(self, who: int) -> Pulse:
        return self._pulses[who]

    def silent(self, now_ns: int) -> list[int]:
        """Who is suspect now."""
        if self.wake_ns is None or now_ns < self.wake_ns:
            return []
        ends = {who: pulse.until_ns() for who, pulse in self._pulses.items()}
        found = [who for who, until_ns in ends.items() if until_ns <= now_ns]
        self.wake_ns = min((u for u in ends.values() if u > now_ns), default=None)
        return found
