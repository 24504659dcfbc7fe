"""How far the job has come: its goals, whether it learns, and whether it can still reach a goal."""

from dataclasses import dataclass
from typing import Any

import msgspec

from polyrhythm.core.kinds import keeps_rows
from polyrhythm.core.lead.data.migration import Migration
from polyrhythm.core.lead.data.plan import DataPlan
from polyrhythm.core.lead.members.view import Member
from polyrhythm.core.lead.outbox import LeadOutbox
from polyrhythm.core.lead.progress.accounting import Accounting
from polyrhythm.core.lead.progress.goals import Targets, TimeLimit
from polyrhythm.core.lead.progress.learning import Learning, Passes, PassObjective
from polyrhythm.core.machine import Reason
from polyrhythm.core.record import Record
from polyrhythm.core.sync.registry import traits_of
from polyrhythm.wire.messages import (
    MOST_COUNT,
    Abstained,
    ContributionReport,
    JobSpec,
    Progress,
    Report,
    Trailer,
)
from polyrhythm.wire.messages.reasons import NO_STEP, Field

NOT_FINITE = "goal-not-finite"
"""The code of the reason when a goal is reached while the objective is not finite. The job then
counts as failed."""
STOPPED = Reason("stopped")
"""The reason for an end that Ctrl-C or SIGTERM requested."""
IDLE_ROUNDS = 3
"""After this many rounds without a contribution the job ends. If any points were left to visit, the
lead would have distributed the chunks again by then, and a worker would have contributed."""
MOST_SKIPPED = 100
"""After this many consecutive contributions that workers left out, the job ends. If they were not
finite, the model itself is probably not finite."""


def stopped(by: str) -> Reason:
    """The reason for an end that was requested: by the operator `by`, or by a signal if `by` is
    empty."""
    return Reason(STOPPED.code, {"by": by}) if by else STOPPED


@dataclass(slots=True)
class CountedSteps:
    """How many steps the job has made since it first began (`core/worker/job_steps.py`)."""

    workers: int
    """How many workers the job had when it first began."""
    _made: float = 0.0
    """The steps that all workers have made together over whole batches."""

    @property
    def now(self) -> float:
        return self._made / self.workers

    def resume(self, record: Record) -> None:
        """Continue from this checkpoint. *A step still counts as many batches as before, even if
        the resumed job has another number of workers: the learning-rate schedule was written for
        that number.*"""
        self.workers = record.step_workers or self.workers
        steps = record.round + record.part if record.steps < 0 else record.steps
        self._made = steps * self.workers

    def count(self, report: ContributionReport) -> None:
        whole = report.whole_steps
        self._made += report.steps if whole < 0 else min(whole, report.steps)

    def skip(self) -> None:
        """Count a step that a worker leaves out. The training loop has made it, and goes on."""
        self._made += 1


class RoundEquivalents(msgspec.Struct):
    """Counts round equivalents where contributions are folded on arrival.

    *P contributions count as one round, where P is the number of members: each is folded with 1/P
    of the learning rate.*
    """

    done: int = 0
    part: float = 0.0

    def advance(self, members: int) -> None:
        """Count a complete contribution, in a view with this many members."""
        self.part += 1 / max(1, members)
        if self.part >= 1 - 1e-9:
            self.part -= 1
            self.done += 1


class GoalsState(msgspec.Struct):
    targets: Targets
    limit: TimeLimit
    rounds: int = 0
    passes: int = 0
    points: int = 0
    seconds: float = 0.0
    """How long round 1 had been open at the last fold."""
    opened_ns: int | None = None
    change: float | None = None
    stopped: Reason | None = None

    @classmethod
    def begin(cls, job: JobSpec) -> "GoalsState":
        return cls(Targets.begin(job), TimeLimit.begin(job.max_seconds))


class Goals:
    """The goals of a job; the first goal that is reached ends the job.

    *Seconds count from the opening of round 1. A metric that several workers report is the mean of
    their last reports, so that one lucky report does not end the job. The objective is a mean over
    many points, so that one lucky batch does not end it either. The change of the objective is
    checked once per full pass of the slowest worker (`learning.py`), because over a short time any
    change is small (FSP §5.3).*
    """

    def __init__(self, state: GoalsState, job: JobSpec) -> None:
        self._state = state
        self._job = job
        self.targets = state.targets
        self.limit = state.limit

    # -- measurements --------------------------------------------------------------------------

    def on_opened(self, now_ns: int) -> None:
        """Begin to count seconds: round 1 opens."""
        self._state.opened_ns = now_ns
        self.limit.open(now_ns)

    def open_ns(self, now_ns: int) -> int:
        """How long round 1 has been open."""
        return 0 if self._state.opened_ns is None else now_ns - self._state.opened_ns

    def on_folded(self, rounds: int, passes: int, points: int = 0, now_ns: int = 0) -> None:
        """Check the goals after a fold. `points`: the number of points that have counted."""
        state = self._state
        state.rounds, state.passes, state.points = rounds, passes, points
        state.seconds = self.open_ns(now_ns) / 1e9

    def on_pass(self, change: float | None) -> None:
        """Take the change of the objective in a full pass; None if it is not known."""
        self._state.change = change

    def stop(self, reason: Reason) -> None:
        """Treat a requested stop as a reached goal."""
        self._state.stopped = reason

    # -- goals ---------------------------------------------------------------------------------

    def share(self, points: int, data_set: int) -> float:
        """The progress of the job towards its goal, from 0 to 1. *The nearest goal counts, because
        it will end the job. Targets of a metric or of a change do not count: nobody knows how far
        away they are.* `points`: how many points have counted. `data_set`: the number of points in
        the data set; 0 if passes are not counted."""
        job = self._job
        shares = [0.0]
        if job.rounds:
            shares.append(self._state.rounds / job.rounds)
        if job.epochs and data_set:
            shares.append(points / (job.epochs * data_set))
        if job.points:
            shares.append(points / job.points)
        if job.max_seconds:
            shares.append(self._state.seconds / job.max_seconds)
        return min(1.0, max(shares))

    def holds(self, goal: Reason | None) -> bool:
        """Whether a goal that was reached is still reached. *With kind statistics the number of
        full passes falls if a member leaves in the last pass, because the statistics of its points
        leave with it.*"""
        by_passes = goal is not None and goal.fields.get("goal") == "passes"
        return not by_passes or self._by_passes()

    def _by_passes(self) -> bool:
        return self._job.epochs is not None and self._state.passes >= self._job.epochs

    def reached(self, now_ns: int) -> Reason | None:
        """The goal that is reached, or the stop that was requested, or None."""
        goal = self._by_training() or self._by_quality() or self._by_time(now_ns)
        if goal is not None:
            return Reason("goal", goal)
        return self._state.stopped

    def _by_training(self) -> dict[str, Field] | None:
        job = self._job
        if job.rounds is not None and self._state.rounds >= job.rounds:
            return {"goal": "rounds", "rounds": self._state.rounds}
        if self._by_passes():
            return {"goal": "passes", "passes": self._state.passes}
        if job.points is not None and self._state.points >= job.points:
            return {"goal": "points", "points": self._state.points}
        return None

    def _by_quality(self) -> dict[str, Field] | None:
        if (target := self.targets.reached()) is not None:
            return target
        bound = self._job.target_change
        if bound is not None and self._state.change is not None and self._state.change < bound:
            return {"goal": "change", "change": self._state.change, "bound": bound}
        return None

    def _by_time(self, now_ns: int) -> dict[str, Field] | None:
        if not self.limit.is_passed(now_ns):
            return None
        return {"goal": "seconds", "seconds": self._job.max_seconds}


class ProgressState(msgspec.Struct):
    goals: GoalsState
    accounting: Accounting
    learning: Learning
    steps: CountedSteps
    passes: Passes = msgspec.field(default_factory=Passes)
    points: int = 0
    """How many points have counted since the job first began, including those before a resume."""
    told: Progress = Progress()
    """The progress that workers were last told."""
    counted: int = 0
    idle: int = 0
    empty: int = 0
    """The number of rounds that were empty because workers waited for moving points."""
    made: int = 0
    """How many contributions were made before the last fold."""
    skipped: int = 0
    """How many contributions workers have left out since the last contribution that counts."""
    all_without_step: bool = False
    """Whether workers left out all contributions in `skipped` because the training loop had made no
    step."""

    @classmethod
    def begin(cls, job: JobSpec) -> "ProgressState":
        rows = keeps_rows(job.kind)
        return cls(
            GoalsState.begin(job),
            Accounting(job.resume_round, whole_objectives=rows),
            Learning.begin(resumed=bool(job.resume), small_gains=rows or bool(job.init)),
            CountedSteps(max(1, job.workers)),
        )


class JobProgress:
    def __init__(
        self,
        state: ProgressState,
        job: JobSpec,
        plan: DataPlan,
        migration: Migration,
        outbox: LeadOutbox,
    ) -> None:
        self._state = state
        self.goals = Goals(state.goals, job)
        self.accounting = state.accounting
        self.learning = state.learning
        self.steps = state.steps
        self._passes = state.passes
        self._job = job
        self._plan = plan
        self._migration = migration
        self._outbox = outbox
        self._has_rounds = traits_of(job.sync).rounds
        self._passes_differ = migration.balances or job.data_private or traits_of(job.sync).timed
        """Whether fast members may visit their points more often than slow ones."""

    @property
    def no_batches(self) -> bool:
        """Whether the goal needs passes, but no worker uses `worker.batches()`."""
        job = self._job
        needed = job.epochs is not None or job.target_change is not None
        others = job.rounds is not None or job.points is not None
        return needed and not others and not self._plan.begun

    @property
    def hopeless(self) -> Reason | None:
        """Why the job can never reach its goal, whatever workers contribute; None if it can reach
        it."""
        if self.no_batches:
            return Reason("no-batches")
        passes = self._plan.passes if self._plan.begun else None
        return self.goals.targets.hopeless(passes)

    @property
    def visited(self) -> int:
        """How many points were visited since the job began."""
        return self._passes.visited

    def resume(self, record: Record) -> None:
        """Continue from this checkpoint. The points and steps that had counted in it still count,
        and gains are measured from the objective before training."""
        self._state.points = record.counted
        self.accounting.passes = record.passes
        self.steps.resume(record)
        self.learning.resume(record)

    def told(self) -> Progress:
        """The job's progress, as workers are told it."""
        points, data_set, steps = self._state.points, self._plan.points, self.steps.now
        share = self.goals.share(points, data_set)
        last = self._state.told
        same = last.points == points and last.share == share and last.steps == steps
        if not same or last.data_set != data_set:
            self._state.told = last = Progress(points, data_set, share, steps)
        return last

    def report(self, member: Member, message: Report) -> Reason | None:
        """Take values of metrics that a member reports. Returns why the report is refused; None if
        it is accepted."""
        metrics, evaluated, targets = dict(message.metrics), message.evaluated, self.goals.targets
        if (fault := targets.fault(metrics)) is not None:
            return fault
        fields = {"worker": member.worker, "name": member.name, "evaluated": evaluated}
        fields |= {"passes": self._plan.passes, "points": self.accounting.points}
        if message.round >= 0 and self._has_rounds:
            fields["round"] = self._job.resume_round + message.round
        self._outbox.note("reported", **fields, metrics=metrics)
        self._note_unreported(targets.take(member.worker, metrics, evaluated=evaluated))
        return None

    def _note_unreported(self, news: Reason | None) -> None:
        if news is not None:
            self._outbox.note("unreported", **news.noted())

    def count(self, trailer: Trailer, points: int, now_ns: int) -> None:
        """Count a complete contribution, with this many points that count as visited."""
        worker, report = trailer.worker, trailer.report
        # a message to workers cannot contain a larger number
        self._state.points = min(MOST_COUNT, self._state.points + points)
        self.steps.count(report)
        self._state.skipped = 0
        self.goals.limit.on_contributed(worker, now_ns)
        self.accounting.count(trailer, points, now_ns)
        self._passes.count(report, points)
        if report.objective is not None:
            self.learning.count(worker, report.objective, report.weight)

    def skip(self, message: Abstained, points: int) -> tuple[int, Reason | None]:
        """Count a contribution that a member leaves out, because it is not finite, or because the
        training loop has made no step. Its points count as visited, or a pass would never end.
        Returns how many contributions the member has left out for this reason, and the reason why
        the job must end (None if it continues)."""
        self._state.points += points
        self._state.skipped += 1
        without_step = message.skipped is not None and message.skipped.code == NO_STEP
        if not without_step:
            self.steps.skip()
        self._state.all_without_step = without_step and (
            self._state.skipped == 1 or self._state.all_without_step
        )
        count = self.accounting.skip(message.worker, without_step=without_step)
        code = "no-steps" if self._state.all_without_step else "all-skipped"
        in_vain = Reason(code, {"contributions": self._state.skipped})
        return count, in_vain if self._state.skipped >= MOST_SKIPPED else None

    def visit(self, worker: int, points: int) -> None:
        """Count the points of the last batch of a member without points left. It has contributed
        all steps that it made with these points."""
        self._state.points += points
        self.accounting.visit(worker, points)
        self._passes.visit(points)

    def on_folded(
        self, rounds: int, why: Reason, now_ns: int, passes: int | None = None
    ) -> Reason | None:
        """Check the goals after a fold. `rounds` rounds (on arrival: round equivalents) are folded,
        the last one for the reason `why`. `passes`: the full passes in the folded version; None if
        that version contains all progress. Returns the goal that is reached, if any."""
        passes = self._plan.passes if passes is None else passes
        made, self._state.made = self._state.made, self.accounting.made
        if self._state.made == made and self._migration.stops:
            self._state.empty += 1
        self.goals.on_folded(rounds - self._state.empty, passes, self._state.points, now_ns)
        if rounds > 0:
            self.learning.on_folded(now_ns)
        self._check(self._passes.on_folded(passes, self._plan.points))
        goal = self.goals.reached(now_ns)
        if (passed := self.accounting.passed(rounds, passes, now_ns, goal is not None)) is not None:
            self._outbox.note("passed", **passed)
        line = self.accounting.close(rounds, why.code, passes, now_ns, goal is not None)
        if line is None:
            self._note_learning(now_ns)
            return None
        self._add_passes(line)
        if why.code == "timer":
            line["missing"] = why.fields["missing"]
        self._outbox.note("rounds", **line)
        self.goals.targets.on_measured(line["objective"])
        self._note_unreported(self.goals.targets.find_silence(self.goals.open_ns(now_ns)))
        self._note_learning(now_ns)
        goal = goal or self.goals.reached(now_ns)
        return None if goal is None else self._concluded(goal, now_ns)

    def _add_passes(self, line: dict[str, Any]) -> None:
        """Add to a journal entry how many passes each worker has made over its own chunks, if the
        job balances passes."""
        if not self._passes_differ:
            return
        for worker, passes in self._plan.passes_of().items():
            if worker in line["workers"]:
                line["workers"][worker]["passes"] = passes

    def _concluded(self, goal: Reason, now_ns: int) -> Reason:
        """The reason with which the job ends at this goal. Before that, a last check decides
        whether the job learns."""
        self._conclude(now_ns)
        return self.judged(goal)

    def judged(self, goal: Reason) -> Reason:
        """The reason with which the job ends at this goal. A goal that is reached while the
        objective is not finite counts as a failure."""
        failed = self.learning.unfinished and goal.code != STOPPED.code
        return Reason(NOT_FINITE, goal.fields) if failed else goal

    def _conclude(self, now_ns: int) -> None:
        rest = self._passes.rest(self._plan.passes, self._plan.points)
        if rest is not None:
            self.learning.on_pass(rest.passes, rest.loss)
        self._note_learning(now_ns, last=True)

    def _check(self, measured: PassObjective | None) -> None:
        if measured is not None:
            self.goals.on_pass(measured.change)
            self.learning.on_pass(measured.passes, measured.loss)

    def _note_learning(self, now_ns: int, *, last: bool = False) -> None:
        if (finding := self.learning.news(now_ns, last=last)) is not None:
            self._outbox.note("learning", **finding.fields())

    def remaining_s(self, rounds: int, round_s: float, now_ns: int) -> float | None:
        """The time until the job ends by its number of rounds or seconds; None if it has no such
        goal. `rounds`: the number of folded rounds. `round_s`: the time of a round."""
        found = []
        if self._job.rounds is not None:
            found.append((self._job.rounds - rounds + self._state.empty) * round_s)
        if self._job.max_seconds is not None:
            found.append(self._job.max_seconds - self.goals.open_ns(now_ns) / 1e9)
        return max(0.0, min(found)) if found else None

    def break_off(self, rounds: int, why: str, now_ns: int) -> None:
        """Close the accounts in the middle of a round, because the job ends without reaching a
        goal."""
        line = self.accounting.line(rounds, why, self._plan.passes, now_ns)
        self._add_passes(line)
        self._outbox.note("rounds", **line)
        self._conclude(now_ns)

    def note_moves(self, *, last: bool = False) -> None:
        """Write to the journal which moves have ended since the last call. `last`: the job is over,
        so moves that are not complete have ended too."""
        for ended in self._migration.take_ended(last=last):
            numbers = {"chunks": ended.chunks, "points": ended.points, "free": ended.free}
            pair = {"worker": ended.source, "target": ended.target}
            if ended.reason is None:
                self._outbox.note("points-moved", **pair, **numbers)
            else:
                self._outbox.note("points-kept", **pair, **numbers, **ended.reason.noted())

    def stuck(self, round_: int, why: Reason) -> Reason | None:
        """Why the job can never reach its goal; None if it can. Call this after the fold of this
        round, which was ordered for the reason `why`."""
        if round_ == 0 or self._job.rounds is not None:
            return None
        before, self._state.counted = self._state.counted, self.accounting.made
        contributed = self._state.counted > before
        if contributed and (trouble := self.hopeless) is not None:
            return trouble
        routine = why.code == "all-arrived" and not self._plan.moves
        self._state.idle = self._state.idle + 1 if routine and not contributed else 0
        return (
            Reason("idle", {"rounds": self._state.idle})
            if self._state.idle >= IDLE_ROUNDS
            else None
        )
