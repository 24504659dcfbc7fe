"""The data sets that members announce: why the lead refuses one, and the data plan that it makes
from the first one.

*The data sets of all members must have the same length and similar fingerprints, unless every
member has its own data set (`private.py`). Workers with private data have some time after the
opening of the first round to announce it.*
"""

import msgspec

from polyrhythm.core.batches import too_few
from polyrhythm.core.fingerprints import difference
from polyrhythm.core.kinds import keeps_rows
from polyrhythm.core.lead.data.chunks import least_of_whole
from polyrhythm.core.lead.data.migration import Migration
from polyrhythm.core.lead.data.plan import CHUNKS_TO_BALANCE, DataPlan
from polyrhythm.core.lead.data.private import PrivateData
from polyrhythm.core.lead.members.view import Member, View
from polyrhythm.core.machine import Deadline, Reason
from polyrhythm.core.record import Record, RecordedChunk
from polyrhythm.wire.messages import Enrol, JobSpec


class EnrolmentState(msgspec.Struct):
    record: Record | None = None
    """The record of the checkpoint from which the job resumes; None if the job does not resume, or if
    the record has no data set."""
    fingerprint: str = ""
    """The fingerprint of the first data set that has one."""
    first: str = ""
    """The name of the member with that data set."""
    deadline: Deadline = msgspec.field(default_factory=Deadline)
    """Until when the passes wait for private data sets; None if they do not wait."""


class Enrolment:
    def __init__(
        self,
        state: EnrolmentState,
        job: JobSpec,
        view: View,
        plan: DataPlan,
        migration: Migration,
        private: PrivateData | None,
    ) -> None:
        """`private`: None if all members have the same data set."""
        self._state = state
        self._min_batch = job.min_batch
        self._whole_chunks = keeps_rows(job.kind)
        self._view = view
        self._plan = plan
        self._migration = migration
        self._private = private

    def resume(self, record: Record) -> None:
        """Continue with the data plan of this record, as soon as a member announces its data set."""
        self._plan.seed = record.seed
        self._state.record = record if record.points else None

    def recorded(self) -> tuple[RecordedChunk, ...]:
        """The chunks as a checkpoint records them at the end of the last fold."""
        record = self._state.record
        if not self._plan.begun:
            return () if record is None else record.chunks
        return self._plan.recorded({member.key: member.name for member in self._view.members()})

    # -- a data set is announced ---------------------------------------------------------------

    def on_enrol(self, message: Enrol, member: Member) -> Reason | None:
        """Take the data set that a member announces. Returns why it is refused; None if it is
        accepted."""
        fault = self._too_small(message, member)
        if fault is None and self._private is not None:
            fault = self._enrol_private(message, member, self._private)
        elif fault is None:
            fault = self._enrol_common(message, member)
        if fault is not None:
            return fault
        member.enrolled = True
        if message.listens is not None:
            self._migration.on_listening(member.key, member.name, message.listens)
        return None

    def _too_small(self, message: Enrol, member: Member) -> Reason | None:
        points = message.points
        if points < 1:
            return Reason("data-empty", {"name": member.name})
        if too_few(points, self._min_batch):
            least = self._min_batch
            return Reason("data-too-small", {"name": member.name, "points": points, "least": least})
        return None

    def _least(self, message: Enrol) -> int:
        """The fewest points of a chunk, so that each chunk has enough points for a batch."""
        return min(self._min_batch, message.batch or self._min_batch)

    # -- all members have the same data set ----------------------------------------------------

    def _enrol_common(self, message: Enrol, member: Member) -> Reason | None:
        record = self._state.record
        if self._plan.begun:
            fault = _unexpected("data-differs", message, member, self._plan.points)
        elif record is not None:
            fault = _unexpected("data-differs-from-checkpoint", message, member, record.points)
        else:
            fault = None
        if fault is not None:
            return fault
        if not self._plan.begun:
            self._begin(message)
        return self._unlike(message, member)

    def _begin(self, message: Enrol) -> None:
        """Make the plan from the first data set that is announced."""
        plan, record, whole = self._plan, self._state.record, self._whole_chunks
        members = plan.members = self._view.entered()
        if record is not None:
            named = {each.name: each.key for each in self._view.members() if each.entered}
            plan.resume(record, named, message.groups, permuted=whole)
        else:
            least, fewest = (
                self._least(message),
                CHUNKS_TO_BALANCE if self._migration.balances else 1,
            )
            if whole:
                least = max(least, least_of_whole(message.points, len(members), fewest))
            sizes = (message.points, len(members), least, fewest)
            plan.begin(*sizes, message.groups, permuted=whole)
            plan.share(members)
        self._migration.bound_copies(len(members))

    def _unlike(self, message: Enrol, member: Member) -> Reason | None:
        """Why this member's data set cannot be equal to the one of the other members; None if it
        can. *A member may later announce other values of its points, because the others have not
        received its points yet.*"""
        state = self._state
        differs = difference(state.fingerprint, message.data)
        if not member.enrolled and differs is not None:
            fields = {"name": member.name, "first": state.first, "differs": differs}
            return Reason("data-unlike", fields)
        if not state.fingerprint:
            state.fingerprint, state.first = message.data, member.name
        return None

    # -- private data --------------------------------------------------------------------------

    def _enrol_private(self, message: Enrol, member: Member, private: PrivateData) -> Reason | None:
        record = self._state.record
        if not self._plan.begun and record is not None:
            private.resume(record)
            self._plan.begin_again()
            self.expect_members()
        own = private.points_of(member.key)
        if own is not None and own != message.points:
            return _unexpected("data-changed", message, member, own)
        private.enrol(
            member.name,
            member.key,
            message.points,
            self._least(message),
            message.data,
            shares=message.shares,
        )
        self._migration.bound_copies(len(private.data_sets))
        if not message.shares:
            self._migration.withdraw(private.withdrawn(member.key), member.key)
            private.drop_unshared(member.key)
        return None

    def on_opened(self, until_ns: int) -> None:
        """Wait for private data sets until this time, from the opening of the first round."""
        if self._private is not None:
            self._state.deadline.wake_ns = until_ns
            members = self._view.members()
            self._private.wait_for({m.key: m.name for m in members if m.entered and not m.enrolled})
        self.expect_members()

    def expect_members(self) -> None:
        """In a resumed job with private data whose first round has opened: wait only for the data
        sets of present members."""
        if self._private is not None and self._view.specs():
            self._private.expect({member.name for member in self._view.members()})

    def on_time(self, now_ns: int) -> bool:
        """When the time is over, stop waiting for private data sets. Returns whether that is so."""
        deadline = self._state.deadline
        if self._private is None or not deadline.is_over(now_ns):
            return False
        deadline.wake_ns = None
        self._private.stop_waiting()
        return True


def _unexpected(code: str, message: Enrol, member: Member, expected: int) -> Reason | None:
    """Why a data set with another number of points is refused; None if it has the expected number.
    `code`: the code of the reason."""
    if message.points == expected:
        return None
    return Reason(code, {"name": member.name, "points": message.points, "expected": expected})
