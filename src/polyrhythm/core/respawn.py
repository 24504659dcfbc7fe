"""Whether and when a worker that died is started again.

*Half a second after its first death, twice as long after each further one, never more than 30 s; a
life of a minute makes the past forgotten. Who dies quickly five times in a row is given up, because
a sixth life would not be longer.*
"""

from dataclasses import dataclass

from polyrhythm.core.machine import Reason

_FIRST_NS = 500_000_000
_MOST_NS = 30 * 10**9
_QUICK_NS = 10 * 10**9
"""A shorter life got nowhere."""
_LONG_NS = 60 * 10**9
_QUICK_DEATHS = 5


@dataclass(frozen=True, slots=True)
class Started:
    worker: str


@dataclass(frozen=True, slots=True)
class Died:
    worker: str
    how: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """`at_ns` is when to start it again; None: not any more."""

    at_ns: int | None
    reason: Reason


@dataclass(slots=True)
class _Past:
    since_ns: int
    deaths: int = 0
    """In a row, without a long life between them."""
    quick: int = 0


class Respawn:
    def __init__(self) -> None:
        self._past: dict[str, _Past] = {}

    def on(self, event: Started | Died, now_ns: int) -> Verdict | None:
        past = self._past.setdefault(event.worker, _Past(now_ns))
        if isinstance(event, Started):
            past.since_ns = now_ns
            return None
        lived_ns = now_ns - past.since_ns
        past.deaths = 1 if lived_ns >= _LONG_NS else past.deaths + 1
        past.quick = past.quick + 1 if lived_ns < _QUICK_NS else 0
        fields = {"worker": event.worker, "detail": event.how}
        if past.quick >= _QUICK_DEATHS:
            return Verdict(None, Reason("given-up", fields))
        after_ns = min(_MOST_NS, _FIRST_NS << min(past.deaths - 1, 8))
        return Verdict(now_ns + after_ns, Reason("respawn", {**fields, "after_s": after_ns / 1e9}))
