"""The end of the job: a goal is reached, a user requests it, or the job cannot continue.

*After a goal or a requested stop, members read the final version and leave. In all other cases the
lead stops every worker at once. In both cases, if round 1 has opened and every slice still has a
copy, the lead saves the model before the servers stop.*
"""

from collections.abc import Collection

import msgspec

from polyrhythm.core import events as ev
from polyrhythm.core.effects import End
from polyrhythm.core.lead.members.joining import Admission
from polyrhythm.core.lead.operators import Operators
from polyrhythm.core.lead.outbox import LeadOutbox
from polyrhythm.core.lead.progress.progress import STOPPED, JobProgress
from polyrhythm.core.lead.rounds.folds import Rounds
from polyrhythm.core.lead.saving import KeepBest, Saving
from polyrhythm.core.machine import Deadline, Reason
from polyrhythm.core.model import MODEL
from polyrhythm.wire.messages.operator import STOP


class Outcome(msgspec.Struct, frozen=True):
    """How the job ended. `rounds`: how many rounds were folded."""

    reason: Reason
    rounds: int
    failed: bool


class EndingState(msgspec.Struct):
    saves: bool
    """Whether the job saves its model."""
    goal: Reason | None = None
    begun: bool = False
    """Whether the job has begun to end: a goal was reached, or the outcome is known."""
    decided: bool = False
    """Whether the outcome is known. Workers were told to stop, but the model may not be saved
    yet."""
    outcome: Outcome | None = None
    """How the job ended; None until that is known. Once it is known, the servers stop as soon as
    the model is saved."""
    over: bool = False
    """Whether every process was told to stop."""


class Ending:
    def __init__(
        self,
        state: EndingState,
        admission: Admission,
        rounds: Rounds,
        progress: JobProgress,
        operators: Operators,
        outbox: LeadOutbox,
        saving: Saving,
        best: KeepBest,
    ) -> None:
        self._state = state
        self._admission = admission
        self._rounds = rounds
        self._progress = progress
        self._operators = operators
        self._outbox = outbox
        self._saving = saving
        self._best = best

    @property
    def begun(self) -> bool:
        """Whether the job has begun to end: a goal was reached, or the outcome is known."""
        return self._state.begun

    @property
    def decided(self) -> bool:
        """Whether the outcome is known. Workers were told to stop, but the model may not be saved
        yet."""
        return self._state.decided

    @property
    def over(self) -> bool:
        """Whether every process was told to stop."""
        return self._state.over

    @property
    def goal(self) -> Reason | None:
        """The goal that was reached; None if none was. Once a goal is reached, members leave."""
        return self._state.goal

    @goal.setter
    def goal(self, goal: Reason) -> None:
        self._state.goal = goal
        self._state.begun = True

    def finish(
        self, reason: Reason, rounds: int, now_ns: int, *, failed: bool, lost: bool = False
    ) -> None:
        """End the job: stop the workers, save the model, then stop the servers. `rounds`: how many
        rounds were folded. `lost`: a slice has no copy any more, so no model can be saved. The
        first call decides the outcome. A later call with `lost` only ends the attempt to save the
        model."""
        if self._state.outcome is not None:
            if lost and not self._saving.active:
                self._best.lose(reason)
                self._end_if_written()
            elif lost:
                self._outbox.note("not-saved", **self._saving.abandon(reason).noted())
                self._not_saved(reason)
            return
        if self.goal is None and self._rounds.open:
            self._progress.break_off(rounds, reason.code, now_ns)
        self._progress.note_moves(last=True)
        self._state.outcome = Outcome(reason, rounds, failed)
        self._state.begun = self._state.decided = True
        self._outbox.stop_members(reason, failed=failed)
        for link, _ in self._admission.open():
            self._outbox.refuse(link, reason)
        if self._state.saves and self._rounds.unshared and not lost:
            self._not_written(Reason("state-lost", {"round": self._rounds.round}))
        elif self._state.saves and self._rounds.open and not lost:
            self._outbox.note("saving")
            self._operators.tell(STOP, Reason("saving"))
            self._saving.begin(MODEL, rounds, now_ns)
        else:
            self._end()

    # -- the model -----------------------------------------------------------------------------
    # In the methods below, `rounds` is the number of rounds that were folded.

    def on_stored(self, event: ev.SliceStored, now_ns: int) -> None:
        self._saving.on_stored(event, now_ns)
        self._best.on_stored(event, now_ns)

    def on_saved(self, event: ev.ModelSaved, rounds: int, now_ns: int) -> None:
        if (seconds := self._saving.on_saved(event, now_ns)) is not None:
            where = {"store": True} if self._saving.to_store else {}
            self._outbox.note(
                "saved", path=event.path, nbytes=event.nbytes, seconds=seconds, **where
            )
            self._end_if_written()
        elif self._best.on_saved(event, rounds, now_ns, last=self.begun):
            self._end_if_written()

    def on_saving_failed(self, event: ev.SavingFailed, rounds: int, now_ns: int) -> None:
        if (fault := self._saving.on_failed(event, now_ns)) is not None:
            self._not_written(fault)
        elif self._saving.held is not None:
            self._operators.tell(STOP, self._saving.held)
        elif self._best.on_failed(event, rounds, now_ns, last=self.begun):
            self._end_if_written()

    def on_time(self, rounds: int, now_ns: int) -> None:
        self._best.tick(rounds, now_ns, last=self.begun)
        if (fault := self._saving.overdue(now_ns)) is not None:
            self._not_written(fault)
        else:
            self._end_if_written()

    def on_rerouted(self, rounds: int, now_ns: int) -> None:
        """Continue to save the model: every server now applies the new routes."""
        self._best.on_rerouted(rounds, now_ns, last=self.begun)
        self._saving.ask()
        self._end_if_written()

    def lose_parameters(self, lost: Reason, promoted: Collection[int]) -> None:
        """Give up the model if these servers have become the primaries of slices that the file
        lacks. With `--optimizer-on workers` the servers did not get the parameters of these
        slices."""
        if self._saving.lacks_slices_of(promoted):
            self._not_written(self._saving.abandon(lost))

    def _end_if_written(self) -> None:
        """End the job once no model file is being written."""
        if self.decided and not self.over and not self._saving.active and not self._best.active:
            self._end()

    def give_up_held(self) -> bool:
        """Handle a stop: if the servers hold a model that cannot be written, give that model up.
        Returns whether there was such a model."""
        held = self._saving.held
        if held is None or not self._saving.active:
            return False
        self._not_written(self._saving.abandon(Reason("not-written", held.fields)))
        return True

    def _not_written(self, fault: Reason) -> None:
        self._outbox.note("not-saved", **fault.noted())
        self._not_saved(Reason("not-saved").because(fault))

    def _not_saved(self, reason: Reason) -> None:
        """Write to the journal why the model cannot be saved. *A job whose model is lost has
        failed, even if it reached its goal.*"""
        outcome = self._state.outcome
        assert outcome is not None
        if not outcome.failed:
            self._state.outcome = Outcome(reason, outcome.rounds, True)
        self._end()

    def _end(self) -> None:
        outcome = self._state.outcome
        assert outcome is not None
        self._outbox.stop_servers(outcome.reason, failed=outcome.failed)
        self._outbox.note(
            "ended",
            **outcome.reason.noted(),
            failed=outcome.failed,
            rounds=outcome.rounds,
            folds=self._rounds.folds,
            learning=self._progress.learning.finding.fields(),
        )
        self._operators.close(outcome.reason, failed=outcome.failed)
        self._outbox.do(End(outcome.reason, outcome.failed))
        self._state.over = True


PATIENCE_NS = 10 * 10**9
"""How long a requested stop waits for the contributions to the open round."""


class Stopping(msgspec.Struct):
    """A stop that was requested in a job with rounds.

    *The job stops at the next fold. The lead tells workers to contribute what they have computed,
    so their work in the open round counts. After `PATIENCE_NS` it folds the round without the other
    workers; these get the final version at their next step.*
    """

    asked: bool = False
    reason: Reason = STOPPED
    """The reason for the end. If an operator requested the stop, the reason names the
    operator."""
    goal: Reason | None = None
    """Kind statistics: the goal that was reached, or the stop that was requested. The job ends once
    workers have computed its parameters from a sum without missing points."""
    at_once: bool = False
    """Kind statistics: whether the next fold ends the job even if points are missing from the
    sum."""
    deadline: Deadline = msgspec.field(default_factory=Deadline)
    """The latest time at which the open round is folded."""

    def on_stop_asked(self, now_ns: int) -> None:
        """Begin to stop, at a request while a round is open."""
        self.asked = True
        self.deadline.wake_ns = now_ns + PATIENCE_NS

    def overdue(self, now_ns: int) -> bool:
        return self.deadline.is_over(now_ns)

    def on_last_fold(self) -> None:
        """Forget the deadline: the last fold is ordered, or a fold is under way."""
        self.deadline.wake_ns = None
