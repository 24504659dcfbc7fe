"""How far the job has come, and whether it can come to its goal.

*Without rounds, as many contributions as there are members are worth one. Rounds that can never
complete a pass end the job: better an end with a reason than none.*
"""

from polyrhythm.core.course import Course
from polyrhythm.core.data.sharing import Sharing
from polyrhythm.core.dispatch import Dispatch
from polyrhythm.core.goals import Goals
from polyrhythm.core.machine import Reason
from polyrhythm.core.rounds import Rounds
from polyrhythm.core.tally import Tally
from polyrhythm.wire.messages import JobSpec, Trailer

IDLE_ROUNDS = 3
"""So many rounds in which everybody abstains: chunks have been shared again, and it did not help."""


class Outlook:
    """`by_rounds`: the policy has rounds."""

    def __init__(
        self, job: JobSpec, by_rounds: bool, rounds: Rounds, sharing: Sharing, dispatch: Dispatch
    ) -> None:
        self.goals = Goals(job)
        self.tally = Tally()
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
        """Passes are counted, and nobody visits points."""
        job = self._job
        return job.epochs is not None and job.rounds is None and not self._sharing.begun

    def count(self, trailer: Trailer, now_ns: int) -> None:
        """A contribution is complete."""
        self.tally.count(trailer, self._sharing.commit(trailer), now_ns)

    def folded(self, now_ns: int) -> Reason | None:
        """A round is: the goal that is reached, if any."""
        return self._look(self._rounds.round, self._rounds.reason.code, now_ns)

    def advance(self, members: int, now_ns: int) -> Reason | None:
        """The same of one contribution, without rounds."""
        self._course.advance(members)
        return self._look(self._course.round, "on-arrival", now_ns)

    def _look(self, round_: int, why: str, now_ns: int) -> Reason | None:
        passes = self._sharing.passes
        self.goals.folded(round_, passes)
        goal = self.goals.reached(now_ns)
        line = self.tally.close(round_, why, passes, now_ns, goal is not None)
        if line is None:
            return goal
        if why == "timer":
            line["missing"] = self._rounds.reason.fields["missing"]
        self._dispatch.note("rounds", **line)
        self.goals.measured(line["objective"])
        return goal or self.goals.reached(now_ns)

    def break_off(self, why: str, now_ns: int) -> None:
        """The job ends in the middle of a round."""
        line = self.tally.line(self.at, why, self._sharing.passes, now_ns)
        self._dispatch.note("rounds", **line)

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
