"""The data plan: chunks of the data set, their leases to members, and full passes over all points.

A seeded permutation distributes the points over chunks; each chunk is leased to a member. *The trailer
of a contribution says how far its chunks were visited, and counts together with the contribution.* A
chunk therefore moves to another member only when no contribution with its points can be in flight: its
holder has contributed under a lease without the chunk, or every server knows that the holder was
removed.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from polyrhythm.core.batches import too_few
from polyrhythm.core.lead.members import Member, View
from polyrhythm.core.minimum_tracker import MinimumTracker
from polyrhythm.core.text import name_order
from polyrhythm.errors import InvariantBroken
from polyrhythm.wire.messages import ChunkLease, ChunkProgress, Leased, Trailer

CHUNKS_PER_WORKER = 16
_MOST_PASSES = 10_000
"""The most passes over a chunk that one contribution can report."""
Holder: TypeAlias = tuple[int, int]
"""A worker and its incarnation."""


@dataclass(slots=True)
class Chunk:
    first: int
    last: int
    holder: Holder | None = None
    heir: Holder | None = None
    """The member that gets the chunk when the holder has confirmed lease `asked`."""
    asked: int = 0
    passes: int = 0
    cursor: int = 0

    @property
    def points(self) -> int:
        return self.last - self.first

    @property
    def due(self) -> Holder | None:
        """The member that holds the chunk when all moves that were begun are over."""
        return self.heir or self.holder


class DataPlan:
    def __init__(
        self, points: int, workers: int, seed: int, epochs: int | None, least: int = 1
    ) -> None:
        """`least`: the fewest points of a chunk, so that a batch never lacks points."""
        self.points = points
        self._seed = seed
        self._epochs = epochs
        self._numbers: dict[Holder, int] = {}
        count = max(1, min(points // least, CHUNKS_PER_WORKER * workers))
        self.chunks = [
            Chunk(points * index // count, points * (index + 1) // count) for index in range(count)
        ]
        self._held: dict[Holder, set[int]] = {}
        self.moving: set[int] = set()
        """Chunks whose holders have not given them up yet."""
        self._passes: MinimumTracker[int] = MinimumTracker()
        for index in range(count):
            self._passes.put(index, 0)

    def share(self, members: list[Holder]) -> set[Holder]:
        """Distribute all chunks over `members` evenly and in their order, and move as few as that
        allows. Returns the members whose leases changed. A chunk that a member must give up is leased
        to its heir later, when the member has confirmed."""
        if not members:
            return set()
        held: dict[Holder, list[int]] = {member: [] for member in members}
        loose = []
        for index, chunk in enumerate(self.chunks):
            if chunk.due in held and chunk.due is not None:
                held[chunk.due].append(index)
            else:
                loose.append(index)
        bound, extras = divmod(len(self.chunks), len(members))
        ranked = sorted(members, key=lambda member: -len(held[member]))
        quotas = {member: bound + (rank < extras) for rank, member in enumerate(ranked)}
        for member in ranked:
            while len(held[member]) > quotas[member]:
                loose.append(held[member].pop())
        moves = iter(loose)
        changed = set()
        for member in ranked:
            for _ in range(quotas[member] - len(held[member])):
                changed.add(self._move(next(moves), member))
        self._number(changed)
        for index in self.moving:
            chunk = self.chunks[index]
            if not chunk.asked and chunk.holder is not None:
                chunk.asked = self._numbers[chunk.holder]
        return changed

    def _move(self, index: int, member: Holder) -> Holder:
        """Let `member` have the chunk as soon as possible. Returns the member whose lease changes."""
        chunk = self.chunks[index]
        if chunk.holder is None or chunk.holder == member:
            self._hand(index, member)
            return member
        chunk.heir, chunk.asked = member, 0
        self.moving.add(index)
        return chunk.holder

    def _hand(self, index: int, member: Holder | None) -> None:
        """Give the chunk to `member`; a move that was begun is over."""
        chunk = self.chunks[index]
        if chunk.holder is not None:
            self._held[chunk.holder].discard(index)
        if member is not None:
            self._held.setdefault(member, set()).add(index)
        chunk.holder, chunk.heir, chunk.asked = member, None, 0
        self.moving.discard(index)

    def _number(self, changed: Iterable[Holder]) -> None:
        for member in changed:
            self._numbers[member] = self._numbers.get(member, 0) + 1

    def confirm(self, holder: Holder, number: int) -> set[Holder]:
        """`holder` has contributed or abstained under lease `number`: the chunks that this lease lacks
        can move. Returns the members whose leases grew."""
        changed: set[Holder] = set()
        for index in sorted(self.moving):
            chunk = self.chunks[index]
            if chunk.holder == holder and 0 < chunk.asked <= number and chunk.heir is not None:
                changed.add(chunk.heir)
                self._hand(index, chunk.heir)
        self._number(changed)
        return changed

    def release(self, gone: Iterable[Holder]) -> set[Holder]:
        """These members were removed, and none of their contributions can arrive any more. Returns the
        members whose leases grew: the heirs of their chunks, and the holders of chunks that they were
        to inherit."""
        leavers = set(gone)
        changed: set[Holder] = set()
        for index in sorted(self.moving):
            chunk = self.chunks[index]
            if chunk.heir in leavers and chunk.holder is not None:
                changed.add(chunk.holder)
                self._hand(index, chunk.holder)
        for holder in leavers:
            for index in sorted(self._held.pop(holder, ())):
                heir = self.chunks[index].heir
                self.chunks[index].holder = None
                self._hand(index, heir)
                if heir is not None:
                    changed.add(heir)
            self._numbers.pop(holder, None)
        changed -= leavers
        self._number(changed)
        return changed

    def lease(self, holder: Holder) -> Leased:
        chunks = tuple(
            ChunkLease(index, chunk.first, chunk.last, chunk.passes, chunk.cursor)
            for index in sorted(self._held.get(holder, ()))
            if (chunk := self.chunks[index]).heir is None
        )
        worker, incarnation = holder
        return Leased(
            worker=worker,
            incarnation=incarnation,
            points=self.points,
            seed=self._seed,
            chunks=chunks,
            epochs=self._epochs,
            number=self._numbers.get(holder, 0),
        )

    def commit(self, holder: Holder, progress: tuple[ChunkProgress, ...]) -> int:
        """Record what a contribution visited; returns the number of points. Progress on a chunk that
        the member does not hold is ignored, and so is progress that no worker can have made."""
        visited = 0
        for step in progress:
            index, passes, cursor = step.chunk, step.passes, step.cursor
            if not 0 <= index < len(self.chunks):
                continue
            chunk = self.chunks[index]
            if chunk.holder != holder:
                continue
            if not 0 <= cursor < max(1, chunk.points) or passes - chunk.passes > _MOST_PASSES:
                continue
            done = cursor - chunk.cursor
            if passes != chunk.passes:
                done += (passes - chunk.passes) * chunk.points
            if done <= 0:
                continue
            if passes != chunk.passes:
                self._passes.put(index, passes)
                chunk.passes = passes
            chunk.cursor = cursor
            visited += done
        return visited

    @property
    def passes(self) -> int:
        """The number of full passes over all points."""
        return self._passes.least

    @property
    def done(self) -> bool:
        return self._epochs is not None and self.passes >= self._epochs

    def check(self) -> None:
        if self.chunks[-1].last != self.points or self.chunks[0].first != 0:
            raise InvariantBroken("the chunks do not cover the points")
        for left, right in zip(self.chunks, self.chunks[1:], strict=False):
            if left.last != right.first:
                raise InvariantBroken("the chunks overlap or leave a gap")
        for chunk in self.chunks:
            if not 0 <= chunk.cursor < max(1, chunk.points):
                raise InvariantBroken("a cursor is outside its chunk")
        for index, chunk in enumerate(self.chunks):
            if (chunk.heir is not None) != (index in self.moving):
                raise InvariantBroken("a chunk has an heir, but is not moving")
            if chunk.heir is not None and (chunk.holder is None or not chunk.asked):
                raise InvariantBroken(
                    "a chunk has an heir, but its holder was not asked to give it up"
                )
            if chunk.holder is not None and index not in self._held[chunk.holder]:
                raise InvariantBroken("a chunk is missing in the chunks of its holder")


class Sharing:
    """The data plan as members join, enrol and leave.

    *The first data set that is enrolled makes the plan; the data sets of all members must have the same
    length. The chunks of a member that left are shared again when every server knows that it left:
    until then its contributions may still count.*
    """

    def __init__(self, seed: int, epochs: int | None, min_batch: int = 1) -> None:
        self._min_batch = min_batch
        self._seed = seed
        self._epochs = epochs
        self._plan: DataPlan | None = None
        self._members: list[Holder] = []
        self.moving: Collection[int] = ()
        """Chunks that are moving from one member to another."""

    @property
    def passes(self) -> int:
        return self._plan.passes if self._plan is not None else 0

    @property
    def points(self) -> int:
        """The length of the data set; 0 until a worker enrols one."""
        return self._plan.points if self._plan is not None else 0

    @property
    def begun(self) -> bool:
        """Whether a worker has enrolled a data set."""
        return self._plan is not None

    def enrol(self, member: Member, points: int, batch: int, view: View) -> Leased | str:
        """The member's lease, or what is wrong with its data set. `batch`: the batch size of the
        member's loop; 0: unknown."""
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
        """Every server knows the view, and that the members in `gone` were removed. Returns the
        leases that changed."""
        if self._plan is None:
            return []
        changed = self._plan.release(gone)
        members = _entered(view.members())
        if members != self._members:
            self._members = members
            changed |= self._plan.share(members)
        return self._leases(view, changed)

    def commit(self, trailer: Trailer) -> int:
        """Record what a contribution visited; returns the number of points."""
        if self._plan is None:
            return int(trailer.weight)
        return self._plan.commit((trailer.worker, trailer.incarnation), trailer.progress)

    def confirm(self, member: Member, number: int, view: View) -> list[tuple[Member, Leased]]:
        """The member works under lease `number` now. Returns the leases that grew because of that."""
        if self._plan is None or not self.moving:
            return []
        return self._leases(view, self._plan.confirm(member.key, number))

    def outdated(self, member: Member, number: int) -> bool:
        """Whether the member has chunks under a lease that is later than `number`."""
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
    """In the order of their names, so that the order in which workers join does not matter."""
    entered = (member for member in members if member.entered)
    return [member.key for member in sorted(entered, key=lambda member: name_order(member.name))]
