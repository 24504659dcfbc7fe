"""Whether and when a process that died is started again.

*A process is started again half a second after its first death. The delay doubles with each further
death, up to 30 s. It is half a second again after a life in which a worker contributed, or that
lasted for a minute. A process that dies five times in a row within ten seconds of its start is not
started again, even if it contributed: otherwise a worker that always fails at the same point would
be started for ever.*

Workers, and servers that held slices, are started again only with `--respawn`. A server that dies
before all servers of the job have joined holds no slices, so it is always started again.
"""

from dataclasses import dataclass
from enum import Enum, auto

from polyrhythm.core.machine import Reason
from polyrhythm.core.peers import SEAT

_FIRST_NS = 500_000_000
_MOST_NS = 30 * 10**9
_QUICK_NS = 10 * 10**9
"""A death within this time after the start is quick: after five quick deaths in a row the process
is given up."""
_LONG_NS = 60 * 10**9
_QUICK_DEATHS = 5


@dataclass(frozen=True, slots=True)
class Started:
    name: str


@dataclass(frozen=True, slots=True)
class Trained:
    """A contribution of this worker has been acknowledged, the first since its start."""

    name: str


@dataclass(frozen=True, slots=True)
class Died:
    name: str
    how: str


@dataclass(frozen=True, slots=True)
class RespawnDecision:
    """`at_ns` is when to start the process again; None if it is not started again."""

    at_ns: int | None
    reason: Reason


@dataclass(slots=True)
class _Past:
    since_ns: int
    deaths: int = 0
    """The number of deaths since the process last contributed or lived for a minute."""
    quick: int = 0


class Respawn:
    def __init__(self) -> None:
        self._past: dict[str, _Past] = {}

    def on(self, event: Started | Trained | Died, now_ns: int) -> RespawnDecision | None:
        past = self._past.setdefault(event.name, _Past(now_ns))
        if isinstance(event, Started):
            past.since_ns = now_ns
            return None
        if isinstance(event, Trained):
            past.deaths = 0
            return None
        lived_ns = now_ns - past.since_ns
        past.deaths = 1 if lived_ns >= _LONG_NS else past.deaths + 1
        past.quick = past.quick + 1 if lived_ns < _QUICK_NS else 0
        fields = {"name": event.name, "detail": event.how}
        if past.quick >= _QUICK_DEATHS:
            quick = {"deaths": past.quick, "within_s": _QUICK_NS / 1e9}
            return RespawnDecision(None, Reason("given-up", {**fields, **quick}))
        after_ns = min(_MOST_NS, _FIRST_NS << min(past.deaths - 1, 8))
        return RespawnDecision(
            now_ns + after_ns, Reason("respawn", {**fields, "after_s": after_ns / 1e9})
        )


class ProcessLoss(Enum):
    """What the death of a server process means for the job."""

    LEAD = auto()
    """The lead ran in this process: the job ends."""
    NOTHING = auto()
    """The server held no slices: start it again, with or without `--respawn`."""
    SLICES = auto()
    """No other server has copies of the dead server's slices: the job ends."""
    COPIES = auto()
    """Other servers may have copies of the dead server's slices: the lead decides whether the job
    continues."""


def loss_of(server: int, *, reported: bool, gathered: bool, replicas: int) -> ProcessLoss:
    """`reported`: the server has reported its address. `gathered`: all servers of the job have
    joined at some time, so this server may hold slices."""
    if server == SEAT.server and reported:
        return ProcessLoss.LEAD
    if not gathered:
        return ProcessLoss.NOTHING
    return ProcessLoss.COPIES if replicas else ProcessLoss.SLICES
