"""By rounds: servers collect the contributions of a round, and fold them when the lead orders it.

*A fold waits while slices change their primary, and while workers still have to send contributions
again to a server that was promoted. Otherwise servers would fold different sets of contributions in
the same round.*
"""

from collections.abc import Mapping
from typing import ClassVar

from polyrhythm.core.kinds import keeps_rows
from polyrhythm.core.lead.contributions import Complete
from polyrhythm.core.lead.m_steps import MStepHold, SummedPoints
from polyrhythm.core.lead.members import Member
from polyrhythm.core.lead.parts import Parts
from polyrhythm.core.machine import Reason, Waiting
from polyrhythm.core.sync import policy as sync
from polyrhythm.wire.messages import Folded, Trailer


class ByRounds:
    """Implements `modes.Mode`."""

    withholds: ClassVar[bool] = False

    def __init__(self, parts: Parts) -> None:
        self.part = 0.0
        self._before = parts.job.resume_round
        """The number of rounds that were folded before the checkpoint from which the job
        resumed."""
        self._rounds = parts.rounds
        self._routing = parts.routing
        self._contributions = parts.contributions
        self._progress = parts.progress
        self._ending = parts.ending
        self._stopping = parts.stopping
        self._folds = parts.folds
        self._keeps_rows = keeps_rows(parts.job.kind)
        self._sharing = parts.sharing
        self._whole = self._based_on_whole = True
        """Kind statistics: whether a version is whole. A whole version lacks no point that moves
        and, after a goal in passes, no point of a member that has left since. `_whole` is about the
        version of the last fold that was ordered, `_based_on_whole` about the version before it.
        *When a goal is reached, one more fold follows, with the parameters that the evaluator has
        computed from the version before it. If points were missing from that version, because they
        were moving or their member had left, more folds follow.*"""
        self._hold = MStepHold()
        self._noted_share = 1.0
        """The smallest share of a full optimizer step that was written to the journal so far."""
        self._postponed: tuple[frozenset[int], Reason] | None = None
        """A fold that was decided and waits for new routes, or for contributions that workers send
        again."""
        if parts.job.replicas:
            self._contributions.keep_until_folded()

    @property
    def done(self) -> int:
        return self._before + max(0, self._rounds.round)

    # -- contributions -------------------------------------------------------------------------

    def sent(self, trailer: Trailer, now_ns: int) -> None:
        """Nothing to do: a worker waits for the fold, so it never has more than one contribution in
        flight."""

    def reported(self, server: int) -> None:
        """Nothing to do: servers report with `Folded` what they have folded."""

    def complete(self, complete: Complete) -> bool:
        rounds, round_ = self._rounds, complete.round
        rounds.arrived(complete.trailer.worker, round_)
        return round_ > rounds.round and rounds.folding

    def tell(self, member: Member, now_ns: int) -> None:
        """Nothing to do: every release tells the progress."""

    def counted(self, now_ns: int) -> None:
        """Nothing to do: goals are checked when a round is folded."""

    def forget(self, worker: int, incarnation: int) -> None:
        """Nothing to do: this mode does not track contributions in flight."""

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
        """Nothing to do: the next round releases every member."""

    def end_if_idle(self, now_ns: int) -> None:
        """Nothing to do: rounds without a contribution are counted when they are folded."""

    # -- a stop on request ---------------------------------------------------------------------

    def stop(self, now_ns: int) -> None:
        self._progress.goals.stop(self._stopping.reason)
        self._stopping.begin(now_ns)
        self._folds.pause()

    def stop_waiting(self, now_ns: int) -> None:
        """Fold the open round with the contributions that it has. The new version is pushed to no
        worker, because a worker that is computing would drop it; all workers pull it instead."""
        self._stopping.settled()
        self._stopping.at_once = True
        if not self._ending.begun and not self._rounds.folding:
            stopped = self._stopping.reason
            self._progress.break_off(self.done, stopped.code, now_ns)
            self._ending.goal = self._progress.judged(stopped)
            self.fold(sync.NO_WORKERS, stopped, now_ns)

    # -- folds ---------------------------------------------------------------------------------

    def fold(self, release: frozenset[int], reason: Reason, now_ns: int) -> None:
        if self._routing.moving or self._contributions.owed:
            self._postponed = (release, reason)
            return
        rounds = self._rounds
        self._folds.begin(release, reason, now_ns)
        self._folds.send(readers=tuple(sorted(rounds.readers)), share=rounds.share, last=False)
        if self._keeps_rows:
            self._based_on_whole, self._whole = self._whole, self._sharing.settled
            self._decide_m_steps()
        self._note_share(rounds.share)

    def _decide_m_steps(self) -> None:
        """Kind statistics: decide whether workers compute parameters from the version of this fold if it
        lacks points."""
        missing = self._sharing.missing(self._rounds.enlisted)
        found = SummedPoints(self._sharing.points, missing, self._progress.visited)
        change = self._hold.decide(found)
        self._folds.hold(self._hold.whole_only, change)

    def _note_share(self, share: float) -> None:
        """Write to the journal that folds now make a smaller share of a full step, because more
        workers have visited all of their points."""
        if share >= self._noted_share or self._keeps_rows:
            return
        self._noted_share = share
        members = len(self._rounds.members)
        fields = {"resting": self._rounds.resting, "members": members, "share": share}
        self._folds.note(Reason("points-visited", fields))

    def folded(self, message: Folded) -> bool:
        moving = self._routing.moving
        return not moving and self._rounds.folded(message, self._routing.primaries)

    def closed(self, now_ns: int) -> None:
        if self._ending.begun:
            return
        round_, why = self._rounds.round, self._rounds.reason
        goal = self._progress.folded(self.done, why, now_ns, self._sharing.folded_passes)
        if goal is not None and self._keeps_rows:
            self._whole = self._whole and self._progress.goals.holds(self._stopping.goal)
            self._close(goal)
        elif goal is not None:
            self._ending.goal = goal
        elif (trouble := self._progress.stuck(round_, why)) is not None:
            self._ending.finish(trouble, self.done, now_ns, failed=True)

    def _close(self, goal: Reason) -> None:
        """Kind statistics: end the job if the parameters in the last fold were computed from a
        version that lacks no moving point."""
        stopping = self._stopping
        goal = stopping.goal or goal
        if stopping.asked and (self._based_on_whole or stopping.at_once):
            self._ending.goal = goal
        else:
            stopping.goal = goal

    def released(self, now_ns: int) -> None:
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

    def repaid(self, now_ns: int) -> None:
        if self._rounds.folding and not self._routing.moving:
            self._folds.send_again()
        self.resume(now_ns)

    def resume(self, now_ns: int) -> None:
        waits = self._routing.moving or self._contributions.owed or self._rounds.folding
        if self._postponed is not None and not waits and not self._ending.decided:
            (release, reason), self._postponed = self._postponed, None
            self.fold(release, reason, now_ns)

    def learned(self, now_ns: int) -> None:
        """Nothing to do: learners are promoted after a fold."""

    def waiting(self) -> Waiting | None:
        return None
