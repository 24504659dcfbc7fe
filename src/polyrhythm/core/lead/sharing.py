"""Who visits which chunks as members come and go.

*The first data set that is enrolled makes the plan; the others must be as long. What a member that
left held is shared again when every server knows that it left: until then something of its may
still be counted.*
"""

from collections.abc import Collection, Iterable

from polyrhythm.core.batches import too_few
from polyrhythm.core.lead.members import Member, View
from polyrhythm.core.lead.plan import DataPlan, Holder
from polyrhythm.wire.messages import Leased, Trailer


class Sharing:
    def __init__(self, seed: int, epochs: int | None, min_batch: int = 1) -> None:
        self._min_batch = min_batch
        self._seed = seed
        self._epochs = epochs
        self._plan: DataPlan | None = None
        self._members: list[Holder] = []
        self.moving: Collection[int] = ()
        """Chunks that are about to change hands."""

    @property
    def passes(self) -> int:
        return self._plan.passes if self._plan is not None else 0

    @property
    def points(self) -> int:
        """Points of the data set; 0 until a worker enrols one."""
        return self._plan.points if self._plan is not None else 0

    @property
    def begun(self) -> bool:
        """Somebody has enrolled a data set."""
        return self._plan is not None

    def enrol(self, member: Member, points: int, batch: int, view: View) -> Leased | str:
        """A member's lease, or what is wrong with its data set. `batch`: how many points its user
        takes at a time; 0: it does not say."""
        if points < 1:
            return "is empty"
        if too_few(points, self._min_batch):
            return f"has {points} points, fewer than --min-batch {self._min_batch}"
        if self._plan is None:
            self._members = _entered(view.members())
            least = min(self._min_batch, batch or self._min_batch)
            self._plan = DataPlan(points, len(self._members), self._seed, self._epochs, least)
            self.moving = self._plan.moving
            self._plan.share(self._members)
        elif points != self._plan.points:
            return f"has {points} points, the job's has {self._plan.points}"
        member.enrolled = True
        return self._plan.lease(member.key)

    def share_again(self, view: View, gone: Iterable[Holder]) -> list[tuple[Member, Leased]]:
        """The servers know the view as it is, and that these are gone: the leases that changed."""
        if self._plan is None:
            return []
        changed = self._plan.release(gone)
        members = _entered(view.members())
        if members != self._members:
            self._members = members
            changed |= self._plan.share(members)
        return self._leases(view, changed)

    def commit(self, trailer: Trailer) -> int:
        """Count what a contribution visited; how many points that were."""
        if self._plan is None:
            return int(trailer.weight)
        return self._plan.commit((trailer.worker, trailer.incarnation), trailer.progress)

    def confirm(self, member: Member, number: int, view: View) -> list[tuple[Member, Leased]]:
        """A member works under this lease by now: the leases that could grow for it."""
        if self._plan is None or not self.moving:
            return []
        return self._leases(view, self._plan.confirm(member.key, number))

    def outdated(self, member: Member, number: int) -> bool:
        """Chunks are on their way to this member, under a later lease than `number`."""
        if self._plan is None or not member.enrolled:
            return False
        lease = self._plan.lease(member.key)
        return lease.number > number and bool(lease.chunks)

    def _leases(self, view: View, changed: set[Holder]) -> list[tuple[Member, Leased]]:
        assert self._plan is not None
        found = []
        for worker, incarnation in sorted(changed):
            member = view.get(worker, incarnation)
            if member is not None and member.enrolled:
                found.append((member, self._plan.lease(member.key)))
        return found

    def check(self) -> None:
        if self._plan is not None:
            self._plan.check()


def _entered(members: Iterable[Member]) -> list[Holder]:
    return [member.key for member in members if member.entered]
