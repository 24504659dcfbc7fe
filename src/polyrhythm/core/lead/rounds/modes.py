"""The two modes in which contributions become part of the parameters: by rounds, or on arrival.

The policy's traits decide the mode of a job. The other parts of the lead call the mode through this
interface, and do not ask which of the two it is (decision 041).
"""

from collections.abc import Mapping
from typing import ClassVar, Protocol, TypeAlias

import msgspec

from polyrhythm.core.kinds import keeps_rows, steps_on_servers
from polyrhythm.core.lead.members.view import Member
from polyrhythm.core.lead.parts import Parts
from polyrhythm.core.lead.progress.progress import IDLE_ROUNDS, RoundEquivalents
from polyrhythm.core.lead.rounds.contributions import Complete, InFlight
from polyrhythm.core.machine import Reason, Waiting
from polyrhythm.core.sync import policy as sync
from polyrhythm.core.sync.policy import PolicyEvent
from polyrhythm.core.sync.registry import traits_of
from polyrhythm.wire.messages import (
    MOST_IN_FLIGHT,
    ContributionReport,
    Folded,
    JobSpec,
    Trailer,
)

_ON_ARRIVAL = Reason("on-arrival")
_TELL_EVERY_NS = 5 * 10**7
"""The shortest time between two progress messages to a worker that is not released after its
contributions."""


class ByArrivalState(msgspec.Struct, tag=True):
    equivalents: RoundEquivalents
    in_flight: InFlight
    told_ns: dict[int, int] = {}
    """Per worker, when it was last told the progress. Used only if workers are not released."""
    last: bool = False
    """Whether the last fold was ordered. Servers fold nothing after it."""


class ByArrival:
    """On arrival: each server folds a contribution when it arrives, and workers need not wait for
    others. Implements `modes.Mode`.

    *A `Fold` of the lead changes no parameters in this mode. The lead sends it when the view
    changes, so that every server knows the members. It sends the last one when a goal is reached,
    so that servers stop folding.*
    """

    withholds: ClassVar[bool] = True
    promotes_in_folds: ClassVar[bool] = False

    def __init__(self, state: ByArrivalState, parts: Parts) -> None:
        self._state = state
        self._equivalents = state.equivalents
        self._in_flight = state.in_flight
        self._view = parts.view
        self._rounds = parts.rounds
        self._routing = parts.routing
        self._contributions = parts.contributions
        self._removals = parts.removals
        self._plan = parts.plan
        self._servers = parts.servers
        self._progress = parts.progress
        self._ending = parts.ending
        self._stopping = parts.stopping
        self._folds = parts.folds
        self._releases = parts.policy.traits.asks_before_steps
        """Whether a `Release` follows every contribution."""

    @property
    def done(self) -> int:
        return self._equivalents.done

    @property
    def part(self) -> float:
        return self._equivalents.part

    @part.setter
    def part(self, part: float) -> None:
        self._equivalents.part = part

    # -- contributions -------------------------------------------------------------------------

    def on_trailer(self, trailer: Trailer, now_ns: int) -> None:
        self._in_flight.sent(trailer.worker, trailer.incarnation, trailer.sequence, now_ns)

    def on_reported(self, server: int) -> None:
        self._rounds.on_folded_one(server)

    def complete(self, complete: Complete) -> bool:
        trailer = complete.trailer
        self._in_flight.on_completed(trailer.worker, trailer.incarnation, trailer.sequence)
        return False

    def tell(self, member: Member, now_ns: int) -> None:
        if (
            not self._releases
            and now_ns >= self._state.told_ns.get(member.worker, 0) + _TELL_EVERY_NS
        ):
            self._state.told_ns[member.worker] = now_ns
            self._folds.tell_progress(member)

    def on_counted(self, now_ns: int) -> None:
        if not self._ending.begun:
            self._equivalents.advance(len(self._view))
            goal = self._progress.on_folded(self.done, _ON_ARRIVAL, now_ns)
            if goal is not None:
                self._end_with_fold(goal, now_ns)
            elif (trouble := self._progress.hopeless) is not None:
                self._ending.finish(trouble, self.done, now_ns, failed=True)
        self.end_if_idle(now_ns)

    def forget(self, worker: int, incarnation: int) -> None:
        self._in_flight.forget(worker, incarnation)

    # -- the policy ----------------------------------------------------------------------------

    def ask(self, event: sync.PolicyEvent, now_ns: int) -> None:
        if self._ending.begun:
            return
        decision = self._folds.consult(event, now_ns)
        if decision.fold:
            self.fold(decision.release, decision.reason, now_ns)
        elif decision.release:
            # The worker that has just contributed has already requested the parameters: its
            # contribution is also its request.
            asked = sync.NO_WORKERS
            if isinstance(event, sync.MemberContributed):
                asked = frozenset((event.worker,))
            self._folds.release(decision.release, asked)

    def call_back(self, member: Member, now_ns: int) -> None:
        if member.resting:
            member.resting = False
            self.ask(sync.Returned(member.worker), now_ns)

    def end_if_idle(self, now_ns: int) -> None:
        """End the job if every member rests, no contribution is in flight, no chunk moves and no
        view change is under way. *The goal may be reached without another contribution, because
        points that are lost with their worker no longer count.*"""
        if self._contributions.any or self._plan.moves:
            return
        over = self._ending.begun or not len(self._view)
        view_changes = self._rounds.folding or self._removals.any
        if over or view_changes or not self._view.all_rest():
            return
        goal = self._progress.on_folded(self.done, _ON_ARRIVAL, now_ns)
        if goal is not None:
            self._end_with_fold(goal, now_ns)
        else:
            idle = Reason("idle", {"rounds": IDLE_ROUNDS})
            self._ending.finish(idle, self.done, now_ns, failed=True)

    # -- the end -------------------------------------------------------------------------------

    def stop(self, now_ns: int) -> None:
        stopped = self._stopping.reason
        self._progress.break_off(self.done, stopped.code, now_ns)
        self._end_with_fold(self._progress.judged(stopped), now_ns)

    def stop_waiting(self, now_ns: int) -> None:
        """Does nothing: in this mode a stop waits for no round."""

    def _end_with_fold(self, reason: Reason, now_ns: int) -> None:
        self._ending.goal = reason
        if not self._rounds.folding:
            self._fold_last(reason, now_ns)

    # -- folds ---------------------------------------------------------------------------------

    def fold(self, release: frozenset[int], reason: Reason, now_ns: int) -> None:
        self._folds.begin(release, reason, now_ns)
        self._removals.on_view_sent()
        self._folds.send(last=False)

    def _fold_last(self, reason: Reason, now_ns: int) -> None:
        self._state.last = True
        self._folds.begin(sync.NO_WORKERS, reason, now_ns)
        self._removals.on_view_sent()
        self._folds.send(last=True)

    def on_folded(self, message: Folded) -> bool:
        if self._routing.moving:
            self._rounds.on_answered(message)
            return False
        return self._rounds.on_folded(message, self._routing.primaries)

    def on_closed(self, now_ns: int) -> None:
        if self._ending.goal is not None and not self._ending.decided and not self._state.last:
            # The goal was reached during a view change, which is complete now: order the last fold.
            self._fold_last(self._ending.goal, now_ns)

    def on_released(self, now_ns: int) -> None:
        """Does nothing: in this mode a goal orders its own fold."""

    def recount(self, versions: Mapping[int, int]) -> bool:
        rounds, primaries = self._rounds, self._routing.primaries
        if not rounds.folding:
            return False
        if rounds.reroute(primaries, rounds.told & primaries):
            return True
        self._folds.send_again()
        return False

    def on_repaid(self, now_ns: int) -> None:
        """Does nothing: servers fold a contribution at once, so no fold waits for contributions
        that workers send again."""

    def resume(self, now_ns: int) -> None:
        """Does nothing: a `Fold` does not wait for new routes."""

    def on_learned(self, now_ns: int) -> None:
        if not self._ending.begun:
            self._servers.advance(now_ns)

    def waiting(self) -> Waiting | None:
        """The wait of workers that have as many contributions in flight as they may have, until
        servers acknowledge some."""
        full = self._in_flight.full()
        if full is None:
            return None
        workers, since_ns = full
        _, servers = self._contributions.late(self._routing.primary_since, workers)
        fields = {
            "held": sorted(workers),
            "servers": sorted(servers),
        }
        return Waiting(Reason("window", fields), since_ns)


MANY_MISSING = 0.05
"""A hold (see `MStepHold`) is written to the journal if more than this share of the points is
missing. A single chunk that moves is about 1% of the points, and is missing from one version
only."""
MOST_PASSES = 2
"""A hold ends at the latest after this many passes. The workers that received the missing points
visit them first, which takes less than one pass if all workers are equally fast. The second pass
leaves time for slow workers."""


class SummedPoints(msgspec.Struct, frozen=True):
    """How complete the sum of a version is. `points`: the number of points in the data set.
    `missing`: how many of them the sum lacks. `visited`: how many points were visited since the job
    began."""

    points: int
    missing: int
    visited: int


class MStepHold(msgspec.Struct):
    """Kind statistics: decides whether workers may compute new parameters (an M-step) from a sum
    that lacks points.

    An M-step finds the best parameters for the points in the sum. If points are missing, it may
    make the objective over all points worse. In a data set that is sorted by value, it would even
    move the centres of whole clusters.

    *So the lead puts M-steps on hold when a sum lacks points after an earlier sum contained all of
    them: workers then keep their parameters. Therefore the objective over all points never gets
    worse (FSP's Theorem 2).* At the beginning of a job there is no hold, because parameters from
    some of the points are better than the initial ones.

    Points are missing for two reasons. When a worker dies, its row leaves the sum, and its points
    are missing until their new holders have visited them. Points that move with their memory are
    missing for one or two versions.

    With every version the lead says whether workers need a complete sum. Workers find out from the
    sum itself whether it is complete: the lead does not know in which version the holder of a
    moving chunk subtracts its points.

    *A hold ends at the latest when as many points were visited as two passes have. The next hold
    begins only after a complete sum.*
    """

    _was_whole: bool = False
    """Whether the sum has contained all points since the job began, or since a hold ended while
    points were missing."""
    _since: int | None = None
    """How many points had been visited when the hold began; None if there is no hold."""
    _versions: int = 0
    """How many versions were made during this hold. Workers compute no parameters from these
    versions."""
    _said: bool = False
    """Whether the journal mentions the beginning of this hold, because many points were missing."""

    @property
    def whole_only(self) -> bool:
        """Whether workers make no M-step on the last decided version if it lacks points."""
        return self._was_whole

    def decide(self, found: SummedPoints) -> Reason | None:
        """Decide whether M-steps are on hold for a version with this sum. Returns the reason if
        that changes, unless only a few points were missing briefly."""
        numbers = {"absent": found.missing, "points": found.points}
        whole = found.points > 0 and not found.missing
        self._was_whole = self._was_whole or whole
        if self._since is None:
            if whole or not self._was_whole:
                return None
            self._since, self._versions, self._said = found.visited, 0, False
        if not whole and found.visited - self._since < MOST_PASSES * found.points:
            self._versions += 1
            if self._said or found.missing <= MANY_MISSING * found.points:
                return None
            self._said = True
            return Reason("m-steps-held", numbers)
        self._since, self._was_whole = None, whole
        if whole and not self._said:
            return None
        code = "m-steps-resumed" if whole else "m-steps-without"
        return Reason(code, {**numbers, "versions": self._versions, "passes": MOST_PASSES})


class ByRoundsState(msgspec.Struct, tag=True):
    part: float = 0.0
    whole: bool = True
    based_on_whole: bool = True
    """Kind statistics: whether a version is complete. A complete version lacks no moving point and,
    after a goal in passes, no point of a member that has left. `whole` is about the version of the
    last ordered fold, `based_on_whole` about the version before it. *When a goal is reached, one
    more fold follows, with the parameters that the evaluator has computed from the previous
    version. If that version was not complete, further folds follow.*"""
    hold: MStepHold = msgspec.field(default_factory=MStepHold)
    noted_share: float = 1.0
    """The smallest share of a full optimizer step that the journal mentions so far."""
    postponed: tuple[frozenset[int], Reason] | None = None
    """A fold that was decided but must wait, either for new routes or for contributions that
    workers send again."""


class ByRounds:
    """By rounds: servers collect the contributions of a round, and fold them when the lead orders
    it. Implements `modes.Mode`.

    *A fold waits while slices change their primary, and while workers must send contributions again
    to a promoted server. Otherwise servers would fold different sets of contributions in one
    round.* It also waits while a worker shares the previous version (`sharing.py`).
    """

    withholds: ClassVar[bool] = False
    promotes_in_folds: ClassVar[bool] = True

    def __init__(self, state: ByRoundsState, parts: Parts) -> None:
        self._state = state
        self._before = parts.job.resume_round
        """The number of rounds folded before the checkpoint from which the job resumed."""
        self._rounds = parts.rounds
        self._routing = parts.routing
        self._contributions = parts.contributions
        self._progress = parts.progress
        self._ending = parts.ending
        self._stopping = parts.stopping
        self._folds = parts.folds
        self._removals = parts.removals
        self._sharing = parts.sharing
        self._keeps_rows = keeps_rows(parts.job.kind)
        self._sums_parts = traits_of(parts.job.sync).timed and steps_on_servers(parts.job.kind)
        self._plan = parts.plan
        self._migration = parts.migration
        self._contributions.keep_until_folded()

    @property
    def part(self) -> float:
        return self._state.part

    @part.setter
    def part(self, part: float) -> None:
        self._state.part = part

    @property
    def done(self) -> int:
        return self._before + max(0, self._rounds.round)

    # -- contributions -------------------------------------------------------------------------

    def on_trailer(self, trailer: Trailer, now_ns: int) -> None:
        """Does nothing: a worker waits for the fold, so it never has more than one contribution in
        flight."""

    def on_reported(self, server: int) -> None:
        """Does nothing: servers report with `Folded` what they have folded."""

    def complete(self, complete: Complete) -> bool:
        rounds, round_ = self._rounds, complete.round
        rounds.on_arrived(complete.trailer.worker, round_, self._part_of(complete.trailer.report))
        return round_ > rounds.round and rounds.folding

    def _part_of(self, report: ContributionReport) -> float:
        """The points of a contribution as a share of a whole batch, if the clock ends rounds and
        servers make the steps. With kind local, workers have scaled their own steps."""
        return report.weight / report.batch if self._sums_parts and report.batch else 1.0

    def tell(self, member: Member, now_ns: int) -> None:
        """Does nothing: every release tells the progress."""

    def on_counted(self, now_ns: int) -> None:
        """Does nothing: goals are checked after the fold of a round."""

    def forget(self, worker: int, incarnation: int) -> None:
        """Does nothing: this mode does not track contributions in flight."""

    # -- the policy ----------------------------------------------------------------------------

    def ask(self, event: sync.PolicyEvent, now_ns: int) -> None:
        if self._ending.begun:
            return
        decision = self._folds.consult(event, now_ns)
        if decision.fold:
            self.fold(decision.release, decision.reason, now_ns)
        elif decision.release:
            self._folds.release(decision.release, sync.NO_WORKERS)

    def call_back(self, member: Member, now_ns: int) -> None:
        """Does nothing: the next round releases every member."""

    def end_if_idle(self, now_ns: int) -> None:
        """Does nothing: rounds without a contribution are counted after their folds."""

    # -- a stop on request ---------------------------------------------------------------------

    def stop(self, now_ns: int) -> None:
        self._progress.goals.stop(self._stopping.reason)
        self._stopping.on_stop_asked(now_ns)
        self._folds.pause()

    def stop_waiting(self, now_ns: int) -> None:
        """Fold the open round with the contributions that it has. All workers pull the new version:
        a worker that computes would drop a version that it did not request."""
        self._stopping.on_last_fold()
        self._stopping.at_once = True
        if not self._ending.begun and not self._rounds.folding:
            stopped = self._stopping.reason
            self._progress.break_off(self.done, stopped.code, now_ns)
            self._ending.goal = self._progress.judged(stopped)
            self.fold(sync.NO_WORKERS, stopped, now_ns)

    # -- folds ---------------------------------------------------------------------------------

    def fold(self, release: frozenset[int], reason: Reason, now_ns: int) -> None:
        if self._routing.moving or self._contributions.owed or self._sharing.pending:
            self._state.postponed = (release, reason)
            return
        rounds = self._rounds
        self._folds.begin(release, reason, now_ns)
        self._removals.on_view_sent()
        self._folds.send(readers=tuple(sorted(rounds.readers)), share=rounds.share, last=False)
        if self._keeps_rows:
            self._state.based_on_whole, self._state.whole = (
                self._state.whole,
                self._migration.settled,
            )
            self._decide_m_steps()
        self._note_share(rounds.taking_part)

    def _decide_m_steps(self) -> None:
        """Kind statistics: decide whether workers compute parameters from the version of this fold
        if it lacks points."""
        missing = self._plan.missing_points(self._rounds.enlisted)
        found = SummedPoints(self._plan.points, missing, self._progress.visited)
        change = self._state.hold.decide(found)
        self._folds.hold(self._state.hold.whole_only, change)

    def _note_share(self, share: float) -> None:
        """Write to the journal that folds now make a smaller share of a full step, because more
        workers have visited all of their points."""
        if share >= self._state.noted_share or self._keeps_rows:
            return
        self._state.noted_share = share
        members = len(self._rounds.members)
        fields = {"resting": self._rounds.resting, "members": members, "share": share}
        self._folds.note(Reason("points-visited", fields))

    def on_folded(self, message: Folded) -> bool:
        moving = self._routing.moving
        return not moving and self._rounds.on_folded(message, self._routing.primaries)

    def on_closed(self, now_ns: int) -> None:
        if self._ending.begun:
            return
        round_, why = self._rounds.round, self._rounds.reason
        goal = self._progress.on_folded(self.done, why, now_ns, self._plan.folded_passes)
        if goal is not None and self._keeps_rows:
            self._state.whole = self._state.whole and self._progress.goals.holds(
                self._stopping.goal
            )
            self._close(goal)
        elif goal is not None:
            self._ending.goal = goal
        elif (trouble := self._progress.stuck(round_, why)) is not None:
            self._ending.finish(trouble, self.done, now_ns, failed=True)

    def _close(self, goal: Reason) -> None:
        """Kind statistics: end the job if the parameters in the last fold come from a version that
        lacks no moving point."""
        stopping = self._stopping
        goal = stopping.goal or goal
        if stopping.asked and (self._state.based_on_whole or stopping.at_once):
            self._ending.goal = goal
        else:
            stopping.goal = goal

    def on_released(self, now_ns: int) -> None:
        stopping = self._stopping
        if stopping.goal is None or self._ending.begun:
            return
        if stopping.asked:
            self._folds.pause()
        else:
            stopping.reason = stopping.goal
            self.stop(now_ns)

    def recount(self, versions: Mapping[int, int]) -> bool:
        rounds, primaries = self._rounds, self._routing.primaries
        if not rounds.folding:
            return False
        folded = rounds.told
        if rounds.round > 0:
            folded = frozenset(s for s in primaries if versions[s] >= rounds.round)
        if rounds.reroute(primaries, folded & primaries):
            return True
        if not self._contributions.owed:
            self._folds.send_again()
        return False

    def on_repaid(self, now_ns: int) -> None:
        if self._rounds.folding and not self._routing.moving:
            self._folds.send_again()
        self.resume(now_ns)

    def resume(self, now_ns: int) -> None:
        if self._state.postponed is not None and not self._ending.decided:
            (release, reason), self._state.postponed = self._state.postponed, None
            self.fold(release, reason, now_ns)

    def on_learned(self, now_ns: int) -> None:
        """Does nothing: learners are promoted after a fold."""

    def waiting(self) -> Waiting | None:
        if self._state.postponed is None or not self._sharing.pending:
            return None
        sharing = Reason("sharing", {"name": self._sharing.sharer, "round": self._rounds.round})
        return Waiting(sharing, self._rounds.moved_ns)


class Mode(Protocol):
    withholds: ClassVar[bool]
    """Whether workers must withhold contributions before a cut. With rounds they need not: a fold
    separates the contributions before it from those after it."""
    promotes_in_folds: ClassVar[bool]
    """Whether slices get new primaries only in the middle of a fold: every primary has folded, and
    no worker is released yet."""
    part: float
    """The completed fraction of the next round equivalent; with rounds always 0."""

    @property
    def done(self) -> int:
        """The number of rounds (on arrival: round equivalents) that are folded or being folded."""

    # -- contributions -------------------------------------------------------------------------

    def on_trailer(self, trailer: Trailer, now_ns: int) -> None:
        """Handle the trailer of a contribution."""

    def on_reported(self, server: int) -> None:
        """Note that a server has reported a contribution."""

    def complete(self, complete: Complete) -> bool:
        """Handle a complete contribution, and tell the policy of it. Returns whether it belongs to
        the next fold instead of the fold under way."""

    def tell(self, member: Member, now_ns: int) -> None:
        """Tell a member the progress of the job, unless its release tells it. Call this when a
        contribution of the member is complete and the policy knows of it."""

    def on_counted(self, now_ns: int) -> None:
        """Check the goals after the policy has handled a complete contribution."""

    def forget(self, worker: int, incarnation: int) -> None:
        """Forget a removed member."""

    # -- the policy ----------------------------------------------------------------------------

    def ask(self, event: PolicyEvent, now_ns: int) -> None:
        """Ask the policy, and carry out its decision, unless the job is ending."""

    def call_back(self, member: Member, now_ns: int) -> None:
        """Let a member continue that abstained: it may have chunks to visit now."""

    def end_if_idle(self, now_ns: int) -> None:
        """End the job if no member can contribute any more."""

    # -- a stop on request ---------------------------------------------------------------------

    def stop(self, now_ns: int) -> None:
        """Shut the job down cleanly: contributions that workers have computed still count."""

    def stop_waiting(self, now_ns: int) -> None:
        """Fold the open round now: a requested stop has waited for it long enough."""

    # -- folds ---------------------------------------------------------------------------------

    def fold(self, release: frozenset[int], reason: Reason, now_ns: int) -> None:
        """Order a fold, as soon as possible."""

    def on_folded(self, message: Folded) -> bool:
        """Note that a server has folded. Returns True if the fold is complete."""

    def on_closed(self, now_ns: int) -> None:
        """Check the goals of the job after a fold, and order the last fold if one is reached."""

    def on_released(self, now_ns: int) -> None:
        """Act at the end of a fold, after the members were released."""

    def recount(self, versions: Mapping[int, int]) -> bool:
        """Count which primaries have folded, after a change of primaries. `versions`: the version
        of each primary. Returns True if the fold under way is complete now."""

    def on_repaid(self, now_ns: int) -> None:
        """Continue after workers have sent contributions again to promoted servers."""

    def resume(self, now_ns: int) -> None:
        """Order a fold that has waited for new routes. Every server applies these routes now."""

    def on_learned(self, now_ns: int) -> None:
        """Continue after a learner has caught up with its primary."""

    def waiting(self) -> Waiting | None:
        """What the job waits for, if only this mode knows of the wait; otherwise None."""


ModeState: TypeAlias = ByRoundsState | ByArrivalState


def begin_mode(job: JobSpec, traits: sync.Traits) -> ModeState:
    if traits.rounds:
        return ByRoundsState()
    return ByArrivalState(RoundEquivalents(job.resume_round), InFlight(MOST_IN_FLIGHT))


def connect_mode(state: ModeState, parts: Parts) -> Mode:
    if isinstance(state, ByRoundsState):
        return ByRounds(state, parts)
    return ByArrival(state, parts)
