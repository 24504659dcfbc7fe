"""Decides whether and when a process that died is started again, and whether a job that has lost
slices continues from its newest checkpoint.
"""

from dataclasses import dataclass
from enum import Enum, auto

import msgspec

from polyrhythm.core.machine import Reason
from polyrhythm.core.seat import FIRST_SEAT
from polyrhythm.wire.messages import JobSpec

_FIRST_NS = 500_000_000
_MOST_NS = 30 * 10**9
_QUICK_NS = 10 * 10**9
"""A death within this time after the start counts as quick. A process is not started again after
five quick deaths in a row."""
_LONG_NS = 60 * 10**9
_QUICK_DEATHS = 5


class Started(msgspec.Struct, frozen=True):
    name: str


class Trained(msgspec.Struct, frozen=True):
    """A contribution of this worker has been acknowledged, the first since its start."""

    name: str


class Died(msgspec.Struct, frozen=True):
    name: str
    how: str


class RespawnDecision(msgspec.Struct, frozen=True):
    """`at_ns` is when to start the process again; None if it is not started again."""

    at_ns: int | None
    reason: Reason


@dataclass(slots=True)
class _Past:
    since_ns: int
    deaths: int = 0
    """The number of deaths since the process last contributed or ran for a minute."""
    quick: int = 0


class Respawn:
    """Decides when to start a process again that has died.

    *The delay is half a second after the first death, and doubles with each further death, up to 30
    s. It begins at half a second again when a worker has contributed, or when the process has run
    for a minute. A process that dies five times in a row within ten seconds of its start is not
    started again, even if it contributed. Otherwise a worker that always fails at the same point
    would be started for ever.*

    Workers, and servers that held slices, are started again only with `--respawn`. A server that
    dies before all servers of the job have joined holds no slices, so it is always started again.
    """

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
    """The lead ran in this process, so the job ends."""
    NOTHING = auto()
    """The server held no slices: start it again, with or without `--respawn`."""
    PERHAPS_SLICES = auto()
    """The server may have held the only copy of a slice: the lead decides whether the job
    continues."""


def loss_of(server: int, *, reported: bool, gathered: bool) -> ProcessLoss:
    """Decide what the death of this server means. `reported`: the server has reported its address.
    `gathered`: all servers of the job have joined at some time, so this server may hold slices."""
    if server == FIRST_SEAT.server and reported:
        return ProcessLoss.LEAD
    return ProcessLoss.PERHAPS_SLICES if gathered else ProcessLoss.NOTHING


ON_LOSS = ("end", "resume")
LOSSES = frozenset({"server-died", "slices-lost", "state-lost"})
"""A job that has ended for one of these reasons has lost parameters."""
_MOST_IN_VAIN = 3


class Loss(msgspec.Struct, frozen=True):
    """How a job ended before it reached a goal."""

    reason: str | None
    """The lead's reason for the end, as a code. None if the lead gave none: the command that runs
    the job has noticed the loss of the lead itself."""
    servers: int
    """How many dead servers the command that runs the job knows of."""
    rounds: int
    """How many rounds were folded."""
    server: int | None = None
    """The server with which the last copy of a slice was lost; None if that is not known."""


class NewestCheckpoint(msgspec.Struct, frozen=True):
    """The newest complete checkpoint."""

    number: int
    round: int


class Resuming:
    """Decides whether a job that has ended early continues from a checkpoint.

    *With `--on-loss resume`, a job that has lost slices or its lead continues from its newest
    checkpoint. After three consecutive resumes without a new checkpoint it ends, because the same
    fault would probably end it again.* The job continues without the servers that died, unless
    `--respawn` starts them again.
    """

    def __init__(self, job: JobSpec) -> None:
        self._job = job
        self._last = 0
        self._in_vain = 0

    def applies(self, loss: Loss) -> bool:
        """Whether a job that has ended in this way may resume from a checkpoint."""
        lost = loss.reason is None or loss.reason in LOSSES
        return lost and self._job.on_loss == "resume"

    def decide(
        self, loss: Loss, found: NewestCheckpoint, job: JobSpec
    ) -> tuple[JobSpec | None, Reason]:
        """Returns the job that continues from this checkpoint (None if the job ends), and the reason."""
        self._in_vain = self._in_vain + 1 if found.number == self._last else 0
        self._last = found.number
        if self._in_vain >= _MOST_IN_VAIN:
            return None, Reason("resumed-in-vain", {"times": self._in_vain, "number": found.number})
        # The command that runs the job may not know of a dead server yet, because the lead can
        # notice it first. So at least one server counts as dead, unless it joined a running job.
        joined = loss.server is not None and loss.server >= job.servers
        dead = loss.servers if joined else max(1, loss.servers)
        servers = job.servers if job.respawn else max(1, job.servers - dead)
        fields = {
            "number": found.number,
            "round": found.round,
            "lost": max(0, loss.rounds - found.round),
            "left": servers,
        }
        replicas = min(job.replicas, servers - 1)
        changed = msgspec.structs.replace(job, servers=servers, replicas=replicas)
        return changed, Reason("rolled-back", fields)
