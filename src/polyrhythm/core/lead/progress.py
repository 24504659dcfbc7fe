"""How far the job has come, whether it learns, and whether it can reach its goal.

*Without rounds, P contributions count as one round. Rounds that can never complete a pass end the job:
an end with a reason is better than none.*
"""

from polyrhythm.core.lead.accounting import Accounting
from polyrhythm.core.lead.course import Course
from polyrhythm.core.lead.goals import STOPPED, Goals
from polyrhythm.core.lead.learning import Learning
from polyrhythm.core.lead.outbox import LeadOutbox
from polyrhythm.core.lead.passes import Passes, PassObjective
from polyrhythm.core.lead.rounds import Rounds
from polyrhythm.core.lead.sharing import Sharing
from polyrhythm.core.machine import Reason
from polyrhythm.wire.messages import JobSpec, Trailer

NOT_FINITE = "goal-not-finite"
"""The code of an end at the goal, with an objective that is not finite: the job has failed."""
IDLE_ROUNDS = 3
"""So many rounds in which everybody abstains: chunks have been shared again, and it did not help."""


class JobProgress:
    """`by_rounds`: the policy has rounds."""

    def __init__(
        self, job: JobSpec, by_rounds: bool, rounds: Rounds, sharing: Sharing, dispatch: LeadOutbox
    ) -> None:
        self.goals = Goals(job)
        self.learning = Learning()
        self.tally = Accounting()
        self._passes = Passes()
        self._job = job
        self._by_rounds = by_rounds
        self._rounds = rounds
        self._sharing = sharing
        self._dispatch = dispatch
        self._course = Course()
        self._counted = 0
        self._idle = 0

    @property
    def at(self) -> int:
        """How many rounds were folded, or how much that is worth it."""
        return max(0, self._rounds.round) if self._by_rounds else self._course.round

    @property
    def no_batches(self) -> bool:
        """The goal needs passes, and no worker visits points."""
        job = self._job
        needed = job.epochs is not None or job.target_change is not None
        return needed and job.rounds is None and not self._sharing.begun

    def count(self, trailer: Trailer, now_ns: int) -> None:
        """A contribution is complete."""
        points = self._sharing.commit(trailer)
        self.tally.count(trailer, points, now_ns)
        self._passes.count(trailer, points)
        if trailer.objective is not None:
            self.learning.count(trailer.worker, trailer.objective, trailer.weight)

    def folded(self, now_ns: int) -> Reason | None:
        """A round is folded: the goal that is reached, if any."""
        return self._look(self._rounds.round, self._rounds.reason.code, now_ns)

    def advance(self, members: int, now_ns: int) -> Reason | None:
        """The same for one contribution, without rounds."""
        self._course.advance(members)
        return self._look(self._course.round, "on-arrival", now_ns)

    def _look(self, round_: int, why: str, now_ns: int) -> Reason | None:
        passes = self._sharing.passes
        self.goals.folded(round_, passes)
        if round_ > 0:
            self.learning.folded()
        self._check(self._passes.folded(passes, self._sharing.points))
        goal = self.goals.reached(now_ns)
        line = self.tally.close(round_, why, passes, now_ns, goal is not None)
        if line is None:
            self._note_learning()
            return None
        if why == "timer":
            line["missing"] = self._rounds.reason.fields["missing"]
        self._dispatch.note("rounds", **line)
        self.goals.measured(line["objective"])
        self._note_learning()
        goal = goal or self.goals.reached(now_ns)
        return None if goal is None else self._concluded(goal)

    def _concluded(self, goal: Reason) -> Reason:
        """The goal is reached: how the job ends, after a last look at what it learned."""
        self._conclude()
        failed = self.learning.unfinished and goal is not STOPPED
        return Reason(NOT_FINITE, goal.fields) if failed else goal

    def _conclude(self) -> None:
        rest = self._passes.rest(self._sharing.passes, self._sharing.points)
        if rest is not None:
            self.learning.passed(rest.passes, rest.loss)
        self._note_learning()

    def _check(self, measured: PassObjective | None) -> None:
        if measured is not None:
            self.goals.checked(measured.change)
            self.learning.passed(measured.passes, measured.loss)

    def _note_learning(self) -> None:
        if (finding := self.learning.news()) is not None:
            self._dispatch.note("learning", **finding.fields())

    def break_off(self, why: str, now_ns: int) -> None:
        """The job ends in the middle of a round."""
        line = self.tally.line(self.at, why, self._sharing.passes, now_ns)
        self._dispatch.note("rounds", **line)
        self._conclude()

    def no_way_on(self) -> Reason | None:
        """After a round: why no other can help, if so."""
        if self._rounds.round == 0 or self._job.rounds is not None:
            return None
        before, self._counted = self._counted, self.tally.contributions
        contributed = self._counted > before
        if contributed and self.no_batches:
            return Reason("no-batches")
        routine = self._rounds.reason.code == "all-arrived" and not self._sharing.moving
        self._idle = self._idle + 1 if routine and not contributed else 0
        return Reason("idle", {"rounds": self._idle}) if self._idle >= IDLE_ROUNDS else None
