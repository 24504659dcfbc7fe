"""Handles the events about data: a member announces its data set, points arrive, a member confirms
a lease, chunks move.

*The chunks of a member that left are leased to other members only when every server knows that it
left. Until then its contributions may still count.*

*The parts of the data plan only mark the members whose leases have changed, and `Leasing._send`
sends all new leases. A handler calls it before it releases a member or lets it continue, because
the member must have its lease first.*
"""

from collections.abc import Collection

from polyrhythm.core.lead.data.chunks import Holder
from polyrhythm.core.lead.data.moves import shared_again
from polyrhythm.core.lead.members.view import Member
from polyrhythm.core.lead.parts import Parts
from polyrhythm.core.lead.rounds.modes import Mode
from polyrhythm.core.machine import Reason
from polyrhythm.core.migration import OFF
from polyrhythm.core.values import plain_reason
from polyrhythm.wire import messages as m

_MOST_POINTS = 2**32
"""Without a data set, a contribution counts for at most this many points. A worker may report any
number, and sums over all contributions must fit into 64 bits."""


class Leasing:
    def __init__(self, parts: Parts, mode: Mode) -> None:
        self._mode = mode
        self._view = parts.view
        self._plan = parts.plan
        self._private = parts.private
        self._migration = parts.migration
        self._balancing = parts.balancing
        self._enrolment = parts.enrolment
        self._outbox = parts.outbox
        self._progress = parts.progress
        self._ending = parts.ending
        self._stopping = parts.stopping

    # -- members -------------------------------------------------------------------------------

    def on_enrol(self, message: m.Enrol, member: Member, now_ns: int) -> Reason | None:
        """Give a lease of chunks to a member that announces its data set. Returns why the data set
        is refused; None if it is accepted."""
        first = not self._plan.begun
        if self._private is not None:
            whose = {"name": member.name, "shares": message.shares}
            self._outbox.note("data", points=message.points, batch=message.batch, **whose)
        elif first:
            self._outbox.note("data", points=message.points, batch=message.batch)
        fault = self._enrolment.on_enrol(message, member)
        if fault is not None:
            return fault
        self._lease(member)
        self._send(now_ns)
        choice = self._migration.choice
        if first and choice.mode != OFF:
            self._outbox.note("migration", mode=choice.mode, **choice.reason.noted())
        self._note_news()
        return None

    def on_delivered(self, message: m.Delivered, member: Member, now_ns: int) -> None:
        """Handle the report of a member that it has received the points of a chunk, or that a
        delivery has failed."""
        delivery = (member.key, message.chunk, message.number)
        if message.fault is None:
            self._migration.on_arrived(*delivery, message.nbytes)
        else:
            self._migration.on_failed(*delivery, plain_reason(message.fault))
        self._migration.settle()
        self._send(now_ns)
        self._progress.note_moves()

    # -- contributions -------------------------------------------------------------------------

    def commit(self, holder: Holder, report: m.ContributionReport, *, ahead: bool) -> int:
        """Record the progress that this member reports with a contribution; returns the number of
        points visited. `ahead`: see `DataPlan.commit`."""
        if self._private is not None:
            self._private.on_contributed(holder)
        if not self._plan.begun:
            points = int(report.weight) if report.visited < 0 else report.visited
            return min(_MOST_POINTS, points)
        points = self._plan.commit(holder, report.progress, ahead=ahead)
        if self._balancing is not None:
            self._balancing.speeds.on_visited(holder, points)
        return points

    def on_confirmed(self, member: Member, number: int, now_ns: int) -> None:
        """Handle a contribution or an abstention of a member, which confirms the lease with this
        number."""
        if self._migration.unconfirmed:
            self._migration.on_confirmed(member.key, number)
            self._migration.settle()
            self._send(now_ns)
            self._progress.note_moves()

    def waits(self, member: Member, number: int) -> bool:
        """Whether a member that has no points to visit under lease `number` waits for points that
        move (`--migrate blocking`). False: it has visited all of its points."""
        return self._migration.waits(member.key) or self.is_outdated(member, number)

    def is_outdated(self, member: Member, number: int) -> bool:
        """Whether the member has a later lease than `number` with chunks in it."""
        later = member.enrolled and self._plan.numbers.get(member.key, 0) > number
        return later and bool(self._migration.lease(member.key).chunks)

    # -- folds ---------------------------------------------------------------------------------

    def on_folded(self, removed: Collection[Holder], now_ns: int) -> None:
        """Distribute the chunks again, and balance the passes, after a fold. Every server knows
        that the members in `removed` have left. *Members get their leases before they are released
        for the next round.*"""
        ends = self._stopping.goal is not None
        if self._plan.begun:
            self.share_again(removed, ends=ends)
        self._send(now_ns)
        self._progress.note_moves()
        self._note_news()
        if ends:
            self._migration.call_off()
        else:
            self._balance(now_ns)
        self._send(now_ns)
        self._progress.note_moves()

    def share_again(self, gone: Collection[Holder], *, ends: bool = False) -> None:
        """Share the chunks again, without the members in `gone`; every server knows a view without
        them. `ends`: a job of kind statistics has reached its goal. Then new members get no chunks
        of other members: the points of a moving chunk would be missing from the sum."""
        plan, migration = self._plan, self._migration
        self._enrolment.expect_members()
        if gone or self._private is not None:
            plan.release(gone, migration.copies)
        changed = bool(gone or not ends) and not self._view.has_entered(plan.members)
        if changed:
            plan.members = self._view.entered()
        migration.forget(gone)
        migration.settle()
        if changed and plan.ownership.distributes:
            migration.cancel(shared_again(len(plan.members)))
            plan.share(plan.members)
        migration.activate_copies()

    def _balance(self, now_ns: int) -> None:
        """Move chunks from slow members to fast ones, if otherwise some chunks would be visited more
        often than others."""
        balancing = self._balancing
        if balancing is None or not self._plan.begun or self._ending.begun:
            return
        round_s = balancing.speeds.round_s
        remaining_s = self._progress.remaining_s(self._mode.done, round_s, now_ns)
        members = [(each.key, each.resting) for each in self._view.members() if each.entered]
        for moved in balancing.on_folded(members, remaining_s, now_ns):
            numbers = {"moved": moved.chunks, "points": moved.points}
            self._outbox.note("chunks", **numbers, **moved.reason.noted())

    # -- time ----------------------------------------------------------------------------------

    def on_time(self, now_ns: int) -> None:
        """Private data: do not wait any longer for workers to announce it. The passes that the other
        workers have made may be the goal of the job."""
        if self._enrolment.on_time(now_ns):
            self._note_news()
            self._mode.on_counted(now_ns)

    # -- what leaves the lead ------------------------------------------------------------------

    def _send(self, now_ns: int) -> None:
        """Send the leases that have changed to the members that have announced their data sets."""
        for worker, incarnation in sorted(self._plan.take_changed()):
            member = self._view.get(worker, incarnation)
            if member is not None and member.enrolled:
                lease = self._lease(member)
                if lease.chunks or lease.sends:
                    self._mode.call_back(member, now_ns)

    def _lease(self, member: Member) -> m.Leased:
        """Send a member its lease."""
        lease = self._migration.lease(member.key)
        self._migration.on_leased(lease)
        self._plan.on_leased(member.key)
        self._outbox.lease(member, lease)
        return lease

    def _note_news(self) -> None:
        """Write to the journal which workers' data sets are lost, and which are back."""
        if self._private is not None:
            for news in self._private.take_news():
                self._outbox.note("data-set", **news.noted())
