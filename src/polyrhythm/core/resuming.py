"""Whether a job that has lost slices rolls back to its newest checkpoint and goes on.

*With `--on-loss resume` a job whose slices or lead are lost continues from its newest checkpoint. It
ends after three resumes in a row without a new checkpoint: what has stopped it three times will
probably stop it again.* Servers that died are missing in the job that continues, unless `--respawn`
starts them again.
"""

from dataclasses import dataclass

import msgspec

from polyrhythm.core.machine import Reason
from polyrhythm.wire.messages import JobSpec

ON_LOSS = ("end", "resume")
_LOSSES = frozenset({"server-died", "slices-lost"})
"""The ends of a job in which parameters were lost."""
_MOST_IN_VAIN = 3


@dataclass(frozen=True, slots=True)
class Loss:
    """How a job ended without its goal."""

    reason: str | None
    """The code of the reason that the lead gave; None if the lead was lost."""
    servers: int
    """How many dead servers the command knows of."""
    rounds: int
    """How many rounds were folded."""


@dataclass(frozen=True, slots=True)
class Found:
    """The newest checkpoint that is whole."""

    number: int
    round: int


class Resuming:
    def __init__(self, job: JobSpec) -> None:
        self._job = job
        self._last = 0
        self._in_vain = 0

    def applies(self, loss: Loss) -> bool:
        """Whether a checkpoint is looked for after this end of the job."""
        lost = loss.reason is None or loss.reason in _LOSSES
        return lost and self._job.on_loss == "resume"

    def decide(self, loss: Loss, found: Found, job: JobSpec) -> tuple[JobSpec | None, Reason]:
        """How the job continues from this checkpoint, or None if it ends; and why."""
        self._in_vain = self._in_vain + 1 if found.number == self._last else 0
        self._last = found.number
        if self._in_vain >= _MOST_IN_VAIN:
            return None, Reason("resumed-in-vain", {"times": self._in_vain, "number": found.number})
        # the lead may end the job before the command notices which server died
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
