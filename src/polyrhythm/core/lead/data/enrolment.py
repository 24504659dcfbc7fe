"""The data sets that members announce: why one is refused, and the plan that the first one makes.

*The data sets of all members must have the same length, and their fingerprints must be alike, unless
every member has a data set of its own (`private.py`).*
"""

from polyrhythm.core.batches import too_few
from polyrhythm.core.fingerprints import difference
from polyrhythm.core.kinds import keeps_rows
from polyrhythm.core.lead.data.chunks import least_of_whole
from polyrhythm.core.lead.data.plan import CHUNKS_TO_BALANCE, DataPlan
from polyrhythm.core.lead.members.view import Member, View
from polyrhythm.core.machine import Reason
from polyrhythm.core.record import Record
from polyrhythm.wire.messages import Enrol, JobSpec


class Enrolment:
    def __init__(self, job: JobSpec, *, balances: bool) -> None:
        """`balances`: chunks move from slow members to fast ones, so many small chunks are needed."""
        self.seed = job.seed
        self.record: Record | None = None
        """The record of the checkpoint from which the job resumes; None if the job does not resume,
        or if the record has no data set."""
        self._epochs = job.epochs
        self._min_batch = job.min_batch
        self._whole_chunks = keeps_rows(job.kind)
        self._balances = balances
        self._data = self._first = ""
        """The fingerprint of the first data set that has one, and the name of its member."""

    def resume(self, record: Record) -> None:
        """Continue with the data plan of this record, as soon as a member announces its data set."""
        self.seed = record.seed
        self.record = record if record.points else None

    def too_small(self, name: str, points: int) -> Reason | None:
        """Why a data set with this many points is too small for a batch; None if it is large enough."""
        if points < 1:
            return Reason("data-empty", {"name": name})
        if too_few(points, self._min_batch):
            least = self._min_batch
            return Reason("data-too-small", {"name": name, "points": points, "least": least})
        return None

    def least(self, message: Enrol) -> int:
        """The fewest points of a chunk, so that each chunk has enough points for a batch."""
        return min(self._min_batch, message.batch or self._min_batch)

    def other_length(self, name: str, points: int, plan: DataPlan | None) -> Reason | None:
        """Why a data set with this many points does not fit the plan, or the checkpoint if there is no
        plan yet; None if it fits."""
        if plan is not None:
            return unexpected("data-differs", name, points, plan.points)
        if self.record is not None:
            code = "data-differs-from-checkpoint"
            return unexpected(code, name, points, self.record.points)
        return None

    def unlike(self, member: Member, message: Enrol) -> Reason | None:
        """Why the data set of this member cannot be that of the others; None if it can. *A member may
        announce other values of its points later: the others are not there yet.*"""
        differs = difference(self._data, message.data)
        if not member.enrolled and differs is not None:
            fields = {"name": member.name, "first": self._first, "differs": differs}
            return Reason("data-unlike", fields)
        if not self._data:
            self._data, self._first = message.data, member.name
        return None

    def make_plan(self, message: Enrol, view: View) -> DataPlan:
        """The plan of a data set that all members have."""
        groups, whole = message.groups, self._whole_chunks
        if self.record is not None:
            named = {each.name: each.key for each in view.members() if each.entered}
            return DataPlan.resumed(self.record, self._epochs, named, groups, permuted=whole)
        members, least = view.entered(), self.least(message)
        fewest = CHUNKS_TO_BALANCE if self._balances else 1
        if whole:
            least = max(least, least_of_whole(message.points, len(members), fewest))
        numbers = (message.points, len(members), self.seed, self._epochs, least, fewest)
        plan = DataPlan(*numbers, groups, permuted=whole)
        plan.share(members)
        return plan


def unexpected(code: str, name: str, points: int, expected: int) -> Reason | None:
    """Why a data set is refused that has another number of points than expected; None if it has that
    number. `code`: what it was compared with."""
    if points == expected:
        return None
    return Reason(code, {"name": name, "points": points, "expected": expected})
