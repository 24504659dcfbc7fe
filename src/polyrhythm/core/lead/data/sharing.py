"""The data plan of the job, as the rest of the lead sees it (`plan.py` has the plan).

*The first member that announces its data set makes the plan (`enrolment.py`). The chunks of a member
that left are leased to others only when every server knows that this member left: its contributions may
count until then.*
"""

from collections.abc import Collection, Iterable

from polyrhythm.core.kinds import keeps_rows
from polyrhythm.core.lead.data.balance.balancing import Balancing, Moved
from polyrhythm.core.lead.data.chunks import Holder, missing_points
from polyrhythm.core.lead.data.enrolment import Enrolment, unexpected
from polyrhythm.core.lead.data.migration import Concurrent, Migration, Synchronous, Travel
from polyrhythm.core.lead.data.moves import EndedMoves, shared_again
from polyrhythm.core.lead.data.plan import DataPlan
from polyrhythm.core.lead.data.private import PrivateData
from polyrhythm.core.lead.members.view import Member, View
from polyrhythm.core.machine import Reason
from polyrhythm.core.migration import BLOCKING, DELIVERING, OFF, choose_migration
from polyrhythm.core.record import Record, RecordedChunk
from polyrhythm.core.sync.policy import Traits
from polyrhythm.wire.messages import ContributionReport, Delivered, Enrol, JobSpec, Leased


class Sharing:
    def __init__(self, job: JobSpec, traits: Traits) -> None:
        """`traits`: those of the sync policy."""
        self.migrate = choose_migration(job, traits)
        """How chunks move from slow members to fast ones, and why."""
        self._balances = self.migrate.mode != OFF
        self._passes_differ = self._balances or job.data_private or traits.timed
        """Whether fast members may visit their points more often than slow ones."""
        self._is_private = job.data_private
        self._whole_chunks = keeps_rows(job.kind)
        self._epochs = job.epochs
        self._copies_nbytes = job.migrate_memory
        self._enrolment = Enrolment(job, balances=self._balances)
        self.begun = False
        """Whether a worker has announced a data set. Until then the plan has no chunks."""
        self._plan = DataPlan(0, 1, job.seed, job.epochs)
        self._migration = Migration(self._plan, self._travel())
        self._balancing: Balancing | None = None
        """None if passes are not balanced, or if there is no plan yet."""
        self._private: PrivateData | None = None
        """The data sets of single members; None if all members have the same data set, or if there is no
        plan yet."""
        self._members: list[Holder] = []
        """The members among which the chunks were distributed."""
        self.wake_ns: int | None = None
        """Private data, in a job that resumes: until when the passes wait for data sets of the
        checkpoint; None if they do not wait."""

    def resume(self, record: Record) -> None:
        """Continue with the data plan of this record, as soon as a member announces its data set."""
        self._enrolment.resume(record)

    # -- queries -------------------------------------------------------------------------------

    @property
    def seed(self) -> int:
        return self._enrolment.seed

    @property
    def passes(self) -> int:
        return self._plan.passes

    @property
    def folded_passes(self) -> int:
        """How many full passes the version that was folded last contains."""
        return self._plan.folded_passes

    @property
    def points(self) -> int:
        """The number of points in the data set; 0 until a worker announces one."""
        return self._plan.points

    def missing(self, members: Collection[Holder]) -> int:
        """Kind statistics: how many points a sum over the rows of these members lacks."""
        return missing_points(self._plan.chunks, members)

    @property
    def settled(self) -> bool:
        """Kind statistics: whether all points of moving chunks are in the sum."""
        return self._migration.settled

    @property
    def moving(self) -> bool:
        """Whether chunks are moving from one member to another."""
        return bool(self._plan.moves)

    @property
    def unconfirmed(self) -> bool:
        """Whether a contribution may confirm a move: a chunk is moving, or has moved but may still be
        missing from the row of its new holder."""
        return self._migration.unconfirmed

    @property
    def stopped(self) -> bool:
        """Whether members wait for points that move (`--migrate blocking`)."""
        return self._migration.stops

    @property
    def round_s(self) -> float | None:
        """The time of a round; None if passes are not balanced."""
        return None if self._balancing is None else self._balancing.speeds.round_s

    def passes_of(self) -> dict[int, float]:
        """The passes of each worker over its points; empty if all workers have the same passes."""
        if not self._passes_differ:
            return {}
        held = self._plan.held_points(self._members)
        return {key[0]: each.visits / each.points for key, each in held.items() if each.points}

    def waits(self, member: Member, number: int) -> bool:
        """A member has no points to visit under lease `number`. Returns True if it waits for points
        that move (`--migrate blocking`), and False if it has visited all of its points."""
        return self._migration.waits(member.key) or self.outdated(member, number)

    def outdated(self, member: Member, number: int) -> bool:
        """Whether the member has a later lease than `number` with chunks in it."""
        later = member.enrolled and self._plan.numbers.get(member.key, 0) > number
        return later and bool(self._migration.lease(member.key).chunks)

    def recorded(self, view: View) -> tuple[RecordedChunk, ...]:
        """The chunks as a checkpoint records them, at the end of the fold that is just over."""
        record = self._enrolment.record
        if not self.begun:
            return () if record is None else record.chunks
        return self._plan.recorded({member.key: member.name for member in view.members()})

    # -- members announce their data sets ------------------------------------------------------

    def on_enrol(self, member: Member, message: Enrol, view: View) -> Leased | Reason:
        """A member announces its data set. Returns its lease, or the reason why the data set is
        refused."""
        fault = self._enrolment.too_small(member.name, message.points)
        if fault is None:
            enrol = self._enrol_private if self._is_private else self._enrol_common
            fault = enrol(member, message, view)
        if fault is not None:
            return fault
        member.enrolled = True
        if message.listens is not None:
            self._migration.on_listening(member.key, member.name, message.listens)
        self._plan.changed.discard(member.key)
        return self._lease(member.key)

    def _enrol_common(self, member: Member, message: Enrol, view: View) -> Reason | None:
        enrolment, plan = self._enrolment, self._plan if self.begun else None
        fault = enrolment.other_length(member.name, message.points, plan)
        if fault is not None:
            return fault
        if plan is None:
            self._members = view.entered()
            self._begin(enrolment.make_plan(message, view))
        return enrolment.unlike(member, message)

    def _enrol_private(self, member: Member, message: Enrol, view: View) -> Reason | None:
        enrolment = self._enrolment
        if self._private is None:
            self._private = PrivateData.begin(enrolment.seed, self._epochs, enrolment.record)
            self._begin(self._private.plan)
            self.expect(view)
        private, own = self._private, self._private.points_of(member.key)
        if own is not None and own != message.points:
            return unexpected("data-changed", member.name, message.points, own)
        private.enrol(
            member.name,
            member.key,
            message.points,
            enrolment.least(message),
            message.data,
            shares=message.shares,
        )
        self._migration.on_enrolled(len(private.data_sets))
        if not message.shares:
            self._migration.withdraw(private.withdrawn(member.key), member.key)
            private.drop_unshared(member.key)
        return None

    def _begin(self, plan: DataPlan) -> None:
        self.begun = True
        self._plan, plan.forgets = plan, self._whole_chunks
        if self._enrolment.record is not None:
            plan.begin_again()
        travel, members = self._travel(), len(self._members)
        self._migration = Migration(plan, travel, self._copies_nbytes, members=members)
        if self._balances:
            self._balancing = Balancing(plan, self._migration)

    def _travel(self) -> Travel:
        if self.migrate.mode == BLOCKING:
            return Synchronous()
        if self.migrate.mode in DELIVERING:
            return Concurrent()
        # with kind statistics, a version lacks points whose lease has moved, until they are visited
        return Concurrent(sends=False, evens_passes=not self._whole_chunks)

    # -- private data --------------------------------------------------------------------------

    def on_opened(self, view: View, until_ns: int) -> None:
        """The first round opens. Data sets of a checkpoint can come back until this time."""
        if self._is_private and self._enrolment.record is not None:
            self.wake_ns = until_ns
        self.expect(view)

    def expect(self, view: View) -> None:
        """Private data, in a job that resumes: from the opening of its first round on, only the data
        sets of members can come back in time."""
        if self._private is not None and view.specs():
            self._private.expect({member.name for member in view.members()})

    def exclude_time(self, paused_ns: int, now_ns: int) -> None:
        """Extend the deadline by the time in which the lead was paused."""
        if self.wake_ns is not None:
            self.wake_ns += paused_ns

    def on_time(self, now_ns: int) -> None:
        """Do not wait for data sets of a checkpoint any longer, if it is time."""
        if self.wake_ns is None or now_ns < self.wake_ns:
            return
        self.wake_ns = None
        if self._private is not None:
            self._private.stop_waiting()

    def take_news(self) -> list[Reason]:
        """What has happened to the data sets of single members since the last call."""
        return [] if self._private is None else self._private.take_news()

    # -- contributions and folds ---------------------------------------------------------------

    def commit(
        self, holder: tuple[int, int], report: ContributionReport, ahead: bool = False
    ) -> int:
        """Record the progress that this member reports with a contribution; returns the number of
        points visited. `ahead`: see `DataPlan.commit`."""
        if not self.begun:
            return int(report.weight) if report.visited < 0 else report.visited
        points = self._plan.commit(holder, report.progress, ahead=ahead)
        if self._balancing is not None:
            self._balancing.speeds.visited(holder, points)
        return points

    def on_confirmed(self, member: Member, number: int) -> None:
        """The member has contributed or abstained under lease `number`."""
        if self._migration.unconfirmed:
            self._migration.on_confirmed(member.key, number)
            self._migration.settle(self._members)

    def on_delivered(self, member: Member, message: Delivered) -> None:
        """A member has received the points of a chunk, or a delivery has failed."""
        delivery = (member.key, message.chunk, message.number)
        if message.fault is None:
            self._migration.on_arrived(*delivery, message.nbytes)
        else:
            self._migration.on_failed(*delivery, message.fault)
        self._migration.settle(self._members)

    def settle(self) -> None:
        """The fold is over: see `DataPlan.settle`."""
        self._plan.settle()

    def lose(self, gone: Collection[Holder]) -> None:
        """Every server knows that these members were removed. *With kind statistics, the points in
        their rows are visited again, even points that already had all visits of the job.*"""
        self._plan.lose(gone)

    def share_again(self, view: View, gone: Iterable[Holder], *, ends: bool = False) -> None:
        """Every server knows the view, in which the members in `gone` are missing: share the chunks
        again. `ends`: a job of kind statistics has reached its goal. Members that have joined then
        get no chunks of other members, because the sum would lack the points of a chunk that moves."""
        plan, migration, gone = self._plan, self._migration, list(gone)
        if not self.begun:
            return
        self.expect(view)
        if gone or self._is_private:
            plan.release(gone, migration.copies)
        members = view.entered() if gone or not ends else self._members
        migration.forget(gone)
        migration.settle(members)
        if members != self._members:
            self._members = members
            if plan.ownership.distributes:
                migration.cancel(shared_again(len(members)))
                plan.share(members)
        migration.activate_copies()

    def balance(self, view: View, remaining_s: float | None, now_ns: int) -> list[Moved]:
        """A round is folded: move chunks from slow members to fast ones, if otherwise some chunks
        would be visited more often than others. Returns the moves. `remaining_s`: the time until the
        job ends; None if it is not known."""
        if self._balancing is None:
            return []
        members = [(each.key, each.resting) for each in view.members() if each.entered]
        return self._balancing.on_folded(members, remaining_s, now_ns)

    def end_moves(self) -> None:
        """The job ends: end the moves whose points have not arrived."""
        self._migration.call_off()

    # -- what the rest of the lead sends and writes --------------------------------------------

    def take_leases(self, view: View) -> list[tuple[Member, Leased]]:
        """The leases that have changed since the last call, of members that have announced their data
        sets."""
        found = []
        for worker, incarnation in sorted(self._plan.take_changed()):
            member = view.get(worker, incarnation)
            if member is not None and member.enrolled:
                found.append((member, self._lease(member.key)))
        return found

    def _lease(self, holder: Holder) -> Leased:
        """The lease of a member, which is sent now."""
        lease = self._migration.lease(holder)
        self._migration.on_leased(lease)
        return lease

    def take_ended_moves(self, *, last: bool = False) -> list[EndedMoves]:
        """The moves that have ended since the last call. `last`: the job is over."""
        return self._migration.take_ended(self._members, last=last)

    def check(self) -> None:
        self._plan.check()
        self._migration.check()
