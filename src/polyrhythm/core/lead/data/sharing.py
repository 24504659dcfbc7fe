"""Shares the points of the data set among the members (`plan.py` has the plan).

Why the data set that a member announces is refused.
"""

from collections.abc import Collection, Iterable

from polyrhythm.core.batches import too_few
from polyrhythm.core.fingerprints import difference
from polyrhythm.core.lead.data.balance.balancing import Balancing, Moved
from polyrhythm.core.lead.data.chunks import Holder, least_of_whole, missing_points
from polyrhythm.core.lead.data.moves import EndedMoves, Migration, shared_anew
from polyrhythm.core.lead.data.plan import CHUNKS_TO_BALANCE, DataPlan
from polyrhythm.core.lead.data.private import PrivatePlan
from polyrhythm.core.lead.members.view import Member, View
from polyrhythm.core.machine import Reason
from polyrhythm.core.migration import OFF, MigrationChoice
from polyrhythm.core.record import Record, RecordedChunk
from polyrhythm.wire.messages import ContributionReport, Delivered, Enrol, Leased, MemberSpec


def too_small(name: str, points: int, least: int) -> Reason | None:
    """Why a data set with this many points is too small for batches of `least` points; None if it is
    large enough."""
    if points < 1:
        return Reason("data-empty", {"name": name})
    if too_few(points, least):
        return Reason("data-too-small", {"name": name, "points": points, "least": least})
    return None


def unexpected(code: str, name: str, points: int, expected: int) -> Reason:
    """The data set has another number of points than expected. `code`: what it was compared with."""
    return Reason(code, {"name": name, "points": points, "expected": expected})


class Sharing:
    """The data plan of the job. It changes when members join, announce their data set, or leave.

    *The first member that announces its data set (message `Enrol`) makes the plan; the data sets of
    all members must have the same length, and their fingerprints must be alike. The chunks of a
    member that left are leased to others only when every server knows that this member left: its
    contributions may count until then.*
    """

    def __init__(
        self,
        seed: int,
        epochs: int | None,
        min_batch: int = 1,
        *,
        whole_chunks: bool = False,
        balances: bool = False,
        migration: Migration | None = None,
        private: bool = False,
        timed: bool = False,
        chosen: MigrationChoice | None = None,
    ) -> None:
        """`whole_chunks`: see `least_of_whole`. `balances`: chunks move from slow members to fast ones.
        `migration`: delivers their points from member to member; None if only leases move. `private`:
        every member has its own data set. `timed`: fast members visit their points more often than
        slow ones. `chosen`: how chunks move, and why."""
        self._passes_differ = balances or private or timed
        self._private = private
        # with `whole_chunks`, a version lacks points whose lease has moved, until they are visited
        even = not whole_chunks if migration is None else not migration.stops
        self._balancing = Balancing(migration, even=even) if balances else None
        self._migration = migration if balances else None
        self._min_batch = min_batch
        self._whole_chunks = whole_chunks
        self._seed = seed
        self._epochs = epochs
        self._plan: DataPlan | None = None
        self._members: list[Holder] = []
        self._specs: tuple[MemberSpec, ...] | None = None
        """The members of the view when chunks were last shared among members."""
        self._record: Record | None = None
        """The record of the checkpoint from which the job resumes; None if the job does not resume,
        or if the record has no data set."""
        self.wake_ns: int | None = None
        """Private data, in a job that resumes: until when the passes wait for data sets of the
        checkpoint; None if they do not wait."""
        self._chosen = chosen
        self._data = self._first = ""
        """The fingerprint of the first data set that has one, and the name of its member."""
        self._choice: MigrationChoice | None = None
        self._changed: set[Holder] = set()
        """The members whose leases have changed. Their new leases have not been sent yet."""
        self.moving: Collection[int] = ()
        """The chunks that are moving from one member to another."""

    def resume(self, record: Record) -> None:
        """Continue with the data plan of this record, as soon as a member announces its data set."""
        self._seed = record.seed
        self._record = record if record.points else None

    @property
    def passes(self) -> int:
        return self._plan.passes if self._plan is not None else 0

    @property
    def folded_passes(self) -> int:
        """How many full passes the version that was folded last contains."""
        return self._plan.folded_passes if self._plan is not None else 0

    @property
    def points(self) -> int:
        """The number of points in the data set; 0 until a worker announces one."""
        return self._plan.points if self._plan is not None else 0

    def missing(self, members: Collection[Holder]) -> int:
        """Kind statistics: how many points a sum over the rows of these members lacks."""
        return missing_points(self._plan.chunks, members) if self._plan is not None else 0

    @property
    def settled(self) -> bool:
        """Kind statistics: whether all points of moving chunks are in the sum."""
        return self._migration is None or self._migration.settled

    def awaits(self) -> bool:
        """Whether a chunk is moving, or has moved but may still be missing from the row of its new
        holder."""
        return bool(self.moving) or (
            self._migration is not None and bool(self._migration.adoptions)
        )

    @property
    def seed(self) -> int:
        return self._seed

    @property
    def begun(self) -> bool:
        """Whether a worker has announced a data set."""
        return self._plan is not None

    def enrol(self, member: Member, message: Enrol, view: View) -> Leased | Reason:
        """A member announces its data set. Returns its lease, or the reason why the data set is
        refused."""
        points, batch = message.points, message.batch
        if (fault := too_small(member.name, points, self._min_batch)) is not None:
            return fault
        if self._private:
            return self._enrol_private(member, message, view)
        if self._plan is None and self._record is not None:
            if points != self._record.points:
                differs = "data-differs-from-checkpoint"
                return unexpected(differs, member.name, points, self._record.points)
            self._members = view.entered()
            named = {each.name: each.key for each in view.members() if each.entered}
            record, epochs, whole = self._record, self._epochs, self._whole_chunks
            self._make(DataPlan.resumed(record, epochs, named, message.groups, permuted=whole))
        elif self._plan is None:
            self._members = view.entered()
            least = min(self._min_batch, batch or self._min_batch)
            fewest = 1 if self._balancing is None else CHUNKS_TO_BALANCE
            if self._whole_chunks:
                least = max(least, least_of_whole(points, len(self._members), fewest))
            count, seed, epochs = len(self._members), self._seed, self._epochs
            groups, whole = message.groups, self._whole_chunks
            plan = DataPlan(points, count, seed, epochs, least, fewest, groups, permuted=whole)
            self._make(plan)
            plan.share(self._members)
        elif points != self._plan.points:
            return unexpected("data-differs", member.name, points, self._plan.points)
        # a member may announce other values of its points later: the others are not there yet
        unlike = difference(self._data, message.data)
        if not member.enrolled and unlike is not None:
            fields = {"name": member.name, "first": self._first, "differs": unlike}
            return Reason("data-unlike", fields)
        if not self._data:
            self._data, self._first = message.data, member.name
        member.enrolled = True
        if self._migration is not None and message.listens is not None:
            self._migration.listening(member.key, member.name, message.listens)
        return self._sent(self._lease(member.key))

    def take_choice(self) -> MigrationChoice | None:
        """How chunks move from slow members to fast ones, if the plan was made since the last call;
        None if it was not, or if chunks do not move."""
        choice, self._choice = self._choice, None
        return None if choice is None or choice.mode == OFF else choice

    def _enrol_private(self, member: Member, message: Enrol, view: View) -> Leased | Reason:
        """A member announces a data set of its own."""
        points, batch, migration = message.points, message.batch, self._migration
        if self._plan is None:
            plan = PrivatePlan(self._seed, self._epochs)
            if self._record is not None:
                plan = PrivatePlan.recovered(self._record, self._epochs)
            self._make(plan)
            self.expect(view)
        assert isinstance(self._plan, PrivatePlan)
        expected = self._plan.points_of(member.key)
        if expected is not None and expected != points:
            return unexpected("data-changed", member.name, points, expected)
        least = min(self._min_batch, batch or self._min_batch)
        plan = self._plan
        plan.enrol(member.name, member.key, points, least, message.data, shares=message.shares)
        member.enrolled = True
        if migration is not None:
            migration.begin(plan, len(plan.data_sets))
            if message.listens is not None:
                migration.listening(member.key, member.name, message.listens)
            if not message.shares:
                withdrawn = plan.withdrawn(member.key)
                self._changed |= migration.withdraw(plan, withdrawn, member.key)
                self._changed |= plan.drop_unshared(member.key)
        return self._sent(self._lease(member.key))

    def opened(self, view: View, until_ns: int) -> None:
        """The first round opens. Data sets of a checkpoint can come back until this time."""
        if self._private and self._record is not None:
            self.wake_ns = until_ns
        self.expect(view)

    def exclude_time(self, paused_ns: int, now_ns: int) -> None:
        """Extend the deadline by the time in which the lead was paused."""
        if self.wake_ns is not None:
            self.wake_ns += paused_ns

    def stop_waiting(self, now_ns: int) -> None:
        """Do not wait for data sets of a checkpoint any longer, if it is time."""
        if self.wake_ns is None or now_ns < self.wake_ns:
            return
        self.wake_ns = None
        if isinstance(self._plan, PrivatePlan):
            self._plan.stop_waiting()

    def expect(self, view: View) -> None:
        """Private data, in a job that resumes: from the opening of its first round on, only the data
        sets of members can come back in time."""
        if isinstance(self._plan, PrivatePlan) and view.specs():
            self._plan.expect({member.name for member in view.members()})

    def take_changed(self, view: View) -> list[tuple[Member, Leased]]:
        """The leases of other members that have changed because a member has announced its data set."""
        changed, self._changed = self._changed, set()
        return self._leases(view, changed) if changed else []

    def take_news(self) -> list[Reason]:
        """What has happened to the data sets of single members since the last call."""
        if not isinstance(self._plan, PrivatePlan):
            return []
        news, self._plan.news = self._plan.news, []
        return news

    def _make(self, plan: DataPlan) -> None:
        self._plan, plan.forgets = plan, self._whole_chunks
        if self._record is not None:
            plan.begin_again()
        self._choice = self._chosen
        self.moving = plan.moving
        if self._migration is not None:
            self._migration.begin(plan, len(self._members))

    def _lease(self, holder: Holder) -> Leased:
        assert self._plan is not None
        if self._migration is None:
            return self._plan.lease(holder)
        return self._migration.lease(self._plan, holder)

    def _sent(self, lease: Leased) -> Leased:
        """Note that this lease is sent now, and return it."""
        if self._migration is not None:
            self._migration.adoptions.leased(lease)
        return lease

    def end_moves(self, view: View) -> list[tuple[Member, Leased]]:
        """The job ends: end the moves whose points have not arrived. Returns the leases that
        changed."""
        if self._plan is None or self._migration is None:
            return []
        changed = self._migration.call_off(self._plan)
        return self._leases(view, changed)

    def lose(self, gone: Collection[Holder]) -> None:
        """Every server knows that these members were removed. *With kind statistics, the points in
        their rows are visited again, even points that already had all visits of the job.*"""
        if self._plan is not None:
            self._plan.lose(gone)

    def share_again(
        self, view: View, gone: Iterable[Holder], *, ends: bool = False
    ) -> list[tuple[Member, Leased]]:
        """Every server knows the view, in which the members in `gone` are missing: share the chunks
        again. `ends`: a job of kind statistics has reached its goal. Members that have joined then
        get no chunks of other members, because the sum would lack the points of a chunk that moves.
        Returns the leases that changed."""
        if self._plan is None:
            return []
        plan, migration, gone = self._plan, self._migration, list(gone)
        self.expect(view)
        changed: set[Holder] = set()
        if gone or self._private:
            changed = plan.release(gone, None if migration is None else migration.copies)
        members = self._members
        if view.specs() is not self._specs and (gone or not ends):
            self._specs = view.specs()
            members = view.entered()
        if migration is not None:
            migration.forget(plan, gone)
            changed |= migration.settle(plan)
            if members != self._members and not self._private:
                changed |= migration.cancel(plan, shared_anew(len(members)))
        if members != self._members:
            self._members = members
            changed |= plan.share(members)
        if migration is not None:
            migration.shared(plan)
        return self._leases(view, changed)

    def commit(
        self, holder: tuple[int, int], report: ContributionReport, ahead: bool = False
    ) -> int:
        """Record the progress that this member reports with a contribution; returns the number of
        points visited. `ahead`: see `DataPlan.commit`."""
        if self._plan is None:
            return int(report.weight) if report.visited < 0 else report.visited
        points = self._plan.commit(holder, report.progress, ahead=ahead)
        if self._balancing is not None:
            self._balancing.speeds.visited(holder, points)
        return points

    @property
    def round_s(self) -> float | None:
        """The time of a round; None if passes are not balanced."""
        return None if self._balancing is None else self._balancing.speeds.round_s

    def balance(
        self, view: View, remaining_s: float | None, now_ns: int
    ) -> tuple[list[tuple[Member, Leased]], list[Moved]]:
        """A round is folded: move chunks from slow members to fast ones, if otherwise some chunks
        would be visited more often than others.
        Returns the leases that changed, and the moves. `remaining_s`: the time until the job ends;
        None if it is not known."""
        if self._plan is None or self._balancing is None:
            return [], []
        members = [(each.key, each.resting) for each in view.members() if each.entered]
        changed, moved = self._balancing.folded(self._plan, members, remaining_s, now_ns)
        return self._leases(view, changed), moved

    def passes_of(self) -> dict[int, float]:
        """The passes of each worker over its points; empty if all workers have the same passes."""
        if self._plan is None or not self._passes_differ:
            return {}
        held = self._plan.held(self._members)
        return {key[0]: each.visits / each.points for key, each in held.items() if each.points}

    def settle(self) -> None:
        """The fold is over: see `DataPlan.settle`."""
        if self._plan is not None:
            self._plan.settle()

    def recorded(self, view: View) -> tuple[RecordedChunk, ...]:
        """The chunks as a checkpoint records them, at the end of the fold that is just over."""
        if self._plan is None:
            return () if self._record is None else self._record.chunks
        return self._plan.recorded({member.key: member.name for member in view.members()})

    def confirm(self, member: Member, number: int, view: View) -> list[tuple[Member, Leased]]:
        """The member has contributed or abstained under lease `number`. Returns the leases that
        grew because chunks could move."""
        if self._plan is None or not self.awaits():
            return []
        changed = self._plan.confirm(member.key, number)
        if self._migration is not None:
            self._migration.adoptions.confirmed(member.key, number)
            changed |= self._migration.settle(self._plan)
        return self._leases(view, changed)

    def delivered(
        self, member: Member, message: Delivered, view: View
    ) -> list[tuple[Member, Leased]]:
        """A member has received the points of a chunk, or a delivery has failed. Returns the leases
        that changed."""
        plan, migration = self._plan, self._migration
        if plan is None or migration is None or not message.chunk < len(plan.chunks):
            return []
        delivery = (plan, member.key, message.chunk, message.number)
        if message.fault is None:
            changed = migration.delivered(*delivery, message.nbytes)
        else:
            changed = migration.failed(*delivery, message.fault)
        changed |= migration.settle(plan)
        return self._leases(view, changed)

    def ended_moves(self, *, last: bool = False) -> list[EndedMoves]:
        """The moves that have ended since the last call. `last`: the job is over."""
        plan, balancing = self._plan, self._balancing
        if plan is not None and self._migration is None:
            plan.handed.clear()
        return [] if not plan or not balancing else balancing.ended(plan, self._members, last=last)

    @property
    def stopped(self) -> bool:
        """Whether members wait for points that move (`--migrate blocking`)."""
        return self._migration is not None and self._migration.stops and not self._migration.settled

    def waits(self, member: Member, number: int) -> bool:
        """A member has no points to visit under lease `number`. Returns True if it waits for points
        that move (`--migrate blocking`), and False if it has visited all of its points."""
        stops = self._migration is not None and self._migration.waits(member.key)
        return stops or self.outdated(member, number)

    def outdated(self, member: Member, number: int) -> bool:
        """Whether the member has a later lease than `number` with chunks in it."""
        if self._plan is None or not member.enrolled:
            return False
        later = self._plan.numbers.get(member.key, 0) > number
        return later and bool(self._lease(member.key).chunks)

    def _leases(self, view: View, changed: set[Holder]) -> list[tuple[Member, Leased]]:
        assert self._plan is not None
        found = []
        for worker, incarnation in sorted(changed):
            member = view.get(worker, incarnation)
            if member is not None and member.enrolled:
                found.append((member, self._sent(self._lease(member.key))))
        return found

    def check(self) -> None:
        if self._plan is not None:
            self._plan.check()
            if self._migration is not None:
                self._migration.check(self._plan)
