"""Whether a job that has lost slices goes back to its newest checkpoint and continues from there.

*With `--on-loss resume`, a job that has lost slices or its lead continues from its newest
checkpoint. It ends after three resumes in a row without a new checkpoint, because the same fault
would probably stop it again.* The job continues without the servers that died, unless `--respawn`
starts them again.
"""

from dataclasses import dataclass

import msgspec

from polyrhythm.core.machine import Reason
from polyrhythm.wire.messages import JobSpec

ON_LOSS = ("end", "resume")
_LOSSES = frozenset({"server-died", "slices-lost"})
"""A job that has ended for one of these reasons has lost parameters."""
_MOST_IN_VAIN = 3


@dataclass(frozen=True, slots=True)
class Loss:
    """How a job ended before it reached a goal."""

    reason: str | None
    """The code of the lead's reason for the end; None if the lead gave none, because the command that
    runs the job noticed the loss of the lead or of slices itself."""
    servers: int
    """How many dead servers the command that runs the job knows of."""
    rounds: int
    """How many rounds were folded."""


@dataclass(frozen=True, slots=True)
class NewestCheckpoint:
    """The newest complete checkpoint."""

    number: int
    round: int


class Resuming:
    def __init__(self, job: JobSpec) -> None:
        self._job = job
        self._last = 0
        self._in_vain = 0

    def applies(self, loss: Loss) -> bool:
        """Whether a job that has ended in this way may resume from a checkpoint."""
        lost = loss.reason is None or loss.reason in _LOSSES
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
        # notice it first. So at least one server counts as dead.
        servers = job.servers if job.respawn else max(1, job.servers - max(1, loss.servers))
        fields = {
            "number": found.number,
            "round": found.round,
            "lost": max(0, loss.rounds - found.round),
            "left": servers,
        }
        replicas = min(job.replicas, servers - 1)
        changed = msgspec.structs.replace(job, servers=servers, replicas=replicas)
        return changed, Reason("rolled-back", fields)
