"""The end of the job: at a goal, on request, or at once.

*When a goal is reached, or a stop was requested, members read the final version and leave, and then the
job is over. Any other end stops every process at once.*
"""

from polyrhythm.core.effects import End
from polyrhythm.core.lead.admission import Admission
from polyrhythm.core.lead.operators import Operators
from polyrhythm.core.lead.outbox import LeadOutbox
from polyrhythm.core.lead.progress import STOPPED, JobProgress
from polyrhythm.core.lead.rounds import Rounds
from polyrhythm.core.machine import Reason


class Ending:
    def __init__(
        self,
        admission: Admission,
        rounds: Rounds,
        progress: JobProgress,
        operators: Operators,
        outbox: LeadOutbox,
    ) -> None:
        self._admission = admission
        self._rounds = rounds
        self._progress = progress
        self._operators = operators
        self._outbox = outbox
        self.goal: Reason | None = None
        """The goal that is reached: members are about to leave."""
        self.over = False
        """Whether every process was told to stop."""

    @property
    def begun(self) -> bool:
        return self.goal is not None or self.over

    def finish(self, reason: Reason, rounds: int, now_ns: int, *, failed: bool) -> None:
        """Stop every process of the job. `rounds`: how many were folded."""
        if self.goal is None and self._rounds.open:
            self._progress.break_off(rounds, reason.code, now_ns)
        self._outbox.stop(reason, failed=failed)
        for link, _ in self._admission.open():
            self._outbox.refuse(link, reason)
        self._outbox.note(
            "ended",
            **reason.noted(),
            failed=failed,
            rounds=rounds,
            folds=self._rounds.folds,
            learning=self._progress.learning.finding.fields(),
        )
        self._operators.close(reason, failed=failed)
        self._outbox.do(End(reason, failed))
        self.over = True


PATIENCE_NS = 10 * 10**9
"""How long a requested stop waits for the open round."""


class Stopping:
    """A stop that was requested in a job with rounds.

    *The job stops at the next fold: the workers are told to contribute what they have, so the open round
    counts. A worker that does not contribute within `PATIENCE_NS` is not waited for: the round is folded
    without it, and the worker gets the final version at its next step.*
    """

    def __init__(self) -> None:
        self.asked = False
        self.reason = STOPPED
        """The reason of the end, which names the operator that requested the stop, if one did."""
        self.wake_ns: int | None = None
        """When the open round is folded at the latest."""

    def begin(self, now_ns: int) -> None:
        """A stop was requested while a round is open."""
        self.asked = True
        self.wake_ns = now_ns + PATIENCE_NS

    def overdue(self, now_ns: int) -> bool:
        return self.wake_ns is not None and now_ns >= self.wake_ns

    def settled(self) -> None:
        """The last fold is ordered, or another one is under way."""
        self.wake_ns = None

    def exclude_time(self, paused_ns: int) -> None:
        """Extend the deadline by the time in which the lead was paused."""
        if self.wake_ns is not None:
            self.wake_ns += paused_ns
