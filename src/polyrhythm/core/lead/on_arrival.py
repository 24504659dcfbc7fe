"""On arrival: each server folds a contribution when it arrives, and workers need not wait for
others.

*A `Fold` of the lead changes no parameters in this mode. The lead sends it when the view changes,
so that every server learns the members, and a last time when a goal is reached, so that servers
stop folding.*
"""

from collections.abc import Mapping
from typing import ClassVar

from polyrhythm.core.lead.contributions import Complete, InFlight
from polyrhythm.core.lead.members import Member
from polyrhythm.core.lead.parts import Parts
from polyrhythm.core.lead.progress import IDLE_ROUNDS, RoundEquivalents
from polyrhythm.core.machine import Reason, Waiting
from polyrhythm.core.sync import policy as sync
from polyrhythm.wire.messages import WINDOW, Folded, Trailer

_ON_ARRIVAL = Reason("on-arrival")
_TELL_EVERY_NS = 5 * 10**7
"""A worker that is not released after its contributions is told the job's progress at most this
often."""


class ByArrival:
    """Implements `modes.Mode`."""

    withholds: ClassVar[bool] = True

    def __init__(self, parts: Parts) -> None:
        self._view = parts.view
        self._rounds = parts.rounds
        self._routing = parts.routing
        self._contributions = parts.contributions
        self._removals = parts.removals
        self._sharing = parts.sharing
        self._servers = parts.servers
        self._progress = parts.progress
        self._ending = parts.ending
        self._stopping = parts.stopping
        self._folds = parts.folds
        self._equivalents = RoundEquivalents(parts.job.resume_round)
        self._in_flight = InFlight(WINDOW)
        self._releases = parts.policy.traits.asks_before_steps
        """Whether a `Release` follows every contribution."""
        self._told_ns: dict[int, int] = {}
        """Per worker, when it was last told the progress. Used if workers are not released."""
        self._last = False
        """Whether the last fold was ordered: servers fold nothing after it."""

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

    def sent(self, trailer: Trailer, now_ns: int) -> None:
        self._in_flight.sent(trailer.worker, trailer.incarnation, trailer.sequence, now_ns)

    def reported(self, server: int) -> None:
        self._rounds.folded_one(server)

    def complete(self, complete: Complete) -> bool:
        trailer = complete.trailer
        self._in_flight.completed(trailer.worker, trailer.incarnation, trailer.sequence)
        return False

    def tell(self, member: Member, now_ns: int) -> None:
        if not self._releases and now_ns >= self._told_ns.get(member.worker, 0) + _TELL_EVERY_NS:
            self._told_ns[member.worker] = now_ns
            self._folds.tell_progress(member)

    def counted(self, now_ns: int) -> None:
        if not self._ending.begun:
            self._equivalents.advance(len(self._view))
            goal = self._progress.folded(self.done, _ON_ARRIVAL, now_ns)
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
            # The worker that has just contributed has already asked for the parameters: its contribution
            # is also its request.
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
        view change is under way."""
        if self._contributions.any or self._sharing.moving:
            return
        over = self._ending.begun or not len(self._view)
        view_changes = self._rounds.folding or self._removals.any
        if not over and not view_changes and self._view.all_rest():
            idle = Reason("idle", {"rounds": IDLE_ROUNDS})
            self._ending.finish(idle, self.done, now_ns, failed=True)

    # -- the end -------------------------------------------------------------------------------

    def stop(self, now_ns: int) -> None:
        stopped = self._stopping.reason
        self._progress.break_off(self.done, stopped.code, now_ns)
        self._end_with_fold(self._progress.judged(stopped), now_ns)

    def stop_waiting(self, now_ns: int) -> None:
        """Nothing to do: a stop does not wait for a round."""

    def _end_with_fold(self, reason: Reason, now_ns: int) -> None:
        self._ending.goal = reason
        if not self._rounds.folding:
            self._fold_last(reason, now_ns)

    # -- folds ---------------------------------------------------------------------------------

    def fold(self, release: frozenset[int], reason: Reason, now_ns: int) -> None:
        self._folds.begin(release, reason, now_ns)
        self._folds.send(last=False)

    def _fold_last(self, reason: Reason, now_ns: int) -> None:
        self._last = True
        self._folds.begin(sync.NO_WORKERS, reason, now_ns)
        self._folds.send(last=True)

    def folded(self, message: Folded) -> bool:
        if self._routing.moving:
            self._rounds.answered(message)
            return False
        return self._rounds.folded(message, self._routing.primaries)

    def closed(self, now_ns: int) -> None:
        if self._ending.goal is not None and not self._ending.decided and not self._last:
            # The goal was reached during a view change, which is over now: order the last fold.
            self._fold_last(self._ending.goal, now_ns)

    def released(self, now_ns: int) -> None:
        """Nothing to do: a goal ends the job with its own fold."""

    def recount(self, versions: Mapping[int, int]) -> bool:
        rounds, primaries = self._rounds, self._routing.primaries
        if not rounds.folding:
            return False
        if rounds.reroute(primaries, rounds.told & primaries):
            return True
        self._folds.send_again()
        return False

    def repaid(self, now_ns: int) -> None:
        """Nothing to do: a contribution is folded at once, so no fold waits for contributions that
        workers send again."""

    def resume(self, now_ns: int) -> None:
        """Nothing to do: a `Fold` does not wait for new routes."""

    def learned(self, now_ns: int) -> None:
        if not self._ending.begun:
            self._servers.promote(now_ns)

    def waiting(self) -> Waiting | None:
        """Workers with a full window wait until servers acknowledge contributions."""
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
