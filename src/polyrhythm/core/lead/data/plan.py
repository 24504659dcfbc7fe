"""The data plan: chunks of the data set, their leases to members, and full passes over all points.

A seeded permutation distributes the points over chunks; each chunk is leased to a member. With kind
statistics a chunk is a range of the data set, and chunks are permuted in place of points. *The
trailer of a contribution reports how far its chunks were visited. This progress counts when the
contribution counts.* Therefore a chunk moves to another member only when no contribution with its
points can be in flight: its holder has contributed under a lease that does not contain the chunk,
or every server knows that the holder was removed.

Progress in chunks that belongs to the next fold, and not to the one under way.

*A contribution that becomes complete after a fold was ordered belongs to the next fold. So the
version of the ordered fold may lack the last visits of some chunks: neither a checkpoint of this
version nor the end of the job may count these visits.*
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TypeAlias

from polyrhythm.core.lead.data.chunks import (
    Chunk,
    Gift,
    HeldPoints,
    Holder,
    check_chunks,
    chunk_edges,
    dealt,
    quotas,
)
from polyrhythm.core.minimum_tracker import MinimumTracker
from polyrhythm.core.record import Record, RecordedChunk
from polyrhythm.wire.messages import ChunkLease, ChunkProgress, Leased

Place: TypeAlias = tuple[int, int]
"""The passes over a chunk, and the cursor in the present pass."""


class Ahead:
    def __init__(self) -> None:
        self._before: dict[int, Place] = {}
        """Per chunk with progress that belongs to the next fold: its place before that progress."""

    def note(self, index: int, before: Place) -> None:
        """A contribution that belongs to the next fold reports progress in a chunk. `before`: the
        place of the chunk until now."""
        self._before.setdefault(index, before)

    def folded(self, index: int, place: Place) -> Place:
        """The place of a chunk in the version that was folded. `place`: where the chunk is now."""
        return self._before.get(index, place)

    def passes(self, least: int) -> int:
        """The full passes in the version that was folded. `least`: the full passes if all progress
        counts."""
        return min([least, *(passes for passes, _ in self._before.values())])

    def settle(self) -> None:
        """The fold is over. The next fold contains the progress that was noted, so the earlier
        places are forgotten."""
        self._before.clear()


CHUNKS_PER_WORKER = 16
CHUNKS_TO_BALANCE = 100
"""The fewest chunks of a job that balances passes: so one chunk is at most 1% of a pass."""
_MOST_PASSES = 10_000
"""How many passes over a chunk one contribution may report."""


class DataPlan:
    def __init__(
        self,
        points: int,
        workers: int,
        seed: int,
        epochs: int | None,
        least: int = 1,
        fewest: int = 1,
        groups: Sequence[int] = (),
        permuted: bool = False,
    ) -> None:
        """`least`: the fewest points of a chunk, so that each chunk has enough points for a batch.
        `fewest`: the fewest chunks, if there are enough points for them. `groups`: see
        `chunk_edges`. `permuted`: whether chunks are shared in the order of `dealt`."""
        self.points = points
        self._seed = seed
        self.epochs = epochs
        self.forgets = False
        """Whether a holder that gives a chunk up forgets what the points of the chunk have added,
        unless it sends this memory to the next holder together with the points. True with kind
        statistics."""
        self.numbers: dict[Holder, int] = {}
        """The number of the last lease of each member."""
        count = max(1, min(points // least, max(fewest, CHUNKS_PER_WORKER * workers)))
        edges = chunk_edges(points, count, least, workers, groups)
        self.chunks = [Chunk(first, last) for first, last in pairwise(edges)]
        self._order = dealt(edges[:-1], groups, seed) if permuted else range(len(self.chunks))
        """The order in which chunks are shared."""
        self._held: dict[Holder, set[int]] = {}
        self.moving: set[int] = set()
        """The chunks that are to change their holder, and that their holder has not given up yet."""
        self.handed: list[tuple[int, Holder, Holder]] = []
        """The moves that are complete: the chunk, its old holder and its new one. The caller empties
        the list."""
        self._passes: MinimumTracker[int] = MinimumTracker()
        for index in range(len(self.chunks)):
            self._passes.put(index, 0)
        self._changed = set(range(len(self.chunks)))
        """The chunks that were changed since the last `check`."""
        self._progress = 0
        """How many reports of progress there were, over all chunks. Each report gets the next
        number."""
        self._ahead = Ahead()

    @classmethod
    def resumed(
        cls,
        record: Record,
        epochs: int | None,
        members: Mapping[str, Holder],
        groups: Sequence[int] = (),
        permuted: bool = False,
    ) -> "DataPlan":
        """The data plan of a checkpoint. `members`: the present members by name. A member that held
        chunks at the time of the cut gets them again, up to its share."""
        plan = cls(record.points, 1, record.seed, epochs)
        plan.chunks = [
            Chunk(c.first, c.last, passes=c.passes, cursor=c.cursor) for c in record.chunks
        ]
        plan._order = range(len(plan.chunks))
        if permuted:
            plan._order = dealt([chunk.first for chunk in plan.chunks], groups, record.seed)
        plan._changed = set(range(len(plan.chunks)))
        plan._passes = MinimumTracker()
        wanted: dict[Holder, list[int]] = {}
        for index, chunk in enumerate(record.chunks):
            plan._passes.put(index, chunk.passes)
            if chunk.holder in members:
                wanted.setdefault(members[chunk.holder], []).append(index)
        for member, quota in quotas(len(plan.chunks), wanted, members.values()).items():
            for index in wanted.get(member, [])[:quota]:
                plan._hand(index, member, remembered=False)
        plan.share(list(members.values()))
        return plan

    def share(self, members: list[Holder]) -> set[Holder]:
        """Distribute all chunks evenly over `members`, in the given order, with as few moves as
        possible. Returns the members whose leases changed. A chunk that a member must give up is
        leased to its new holder only when the old holder has confirmed."""
        if not members:
            return set()
        held: dict[Holder, list[int]] = {member: [] for member in members}
        loose = []
        for index in self._order:
            due = self.chunks[index].due
            if due in held and due is not None:
                held[due].append(index)
            else:
                loose.append(index)
        shares = quotas(len(self.chunks), held, members)
        for member, quota in shares.items():
            while len(held[member]) > quota:
                loose.append(held[member].pop())
        moves = iter(loose)
        changed = set()
        for member, quota in shares.items():
            for _ in range(quota - len(held[member])):
                changed.add(self._move(next(moves), member))
        self._ask(changed)
        return changed

    def held(self, members: Iterable[Holder]) -> dict[Holder, HeldPoints]:
        """The points of each member, in the chunks that it will hold when all moves are complete."""
        return HeldPoints.of_each(self.chunks, members, self.epochs)

    def held_by(self, holder: Holder) -> list[int]:
        """The chunks that this member holds, without those that are moving."""
        held = self._held.get(holder, ())
        return sorted(index for index in held if self.chunks[index].heir is None)

    def leaving(self, holder: Holder) -> list[int]:
        """The chunks of this member that are moving to other members."""
        return sorted(self._held.get(holder, set()) & self.moving)

    @property
    def mean_chunk(self) -> float:
        """The mean number of points in a chunk."""
        return self.points / len(self.chunks)

    def reads(self, member: Holder, index: int) -> bool:
        """Whether the member can always read the points of this chunk: they need not be sent to it."""
        return False

    def may_move(self, index: int, source: Holder, target: Holder, *, sent: bool) -> bool:
        """Whether a chunk may move from one member to another. `sent`: its points must be sent."""
        return True

    def can_give(self, holder: Holder) -> bool:
        """Whether any chunks of this member may move."""
        return True

    def numbered(self, holder: Holder, index: int) -> tuple[int, int]:
        """The points of a chunk, as the lease of this member numbers them."""
        chunk = self.chunks[index]
        return chunk.first, chunk.last

    def give(self, gifts: Iterable[Gift], delivery: int = 0) -> set[Holder]:
        """Begin to move these chunks. `delivery`: the number of the first delivery, if points must
        be delivered; the others follow. Returns the members whose leases changed."""
        changed = set()
        for offset, (index, _, target) in enumerate(gifts):
            changed.add(self._move(index, target))
            self.chunks[index].delivery = delivery and delivery + offset
        self._ask(changed)
        return changed

    def take_back(self, chunks: Iterable[int]) -> set[Holder]:
        """End the moves of these chunks: they stay with their holders. Returns the members whose
        leases changed."""
        changed = {holder for index in chunks if (holder := self._keep(index)) is not None}
        self._number(changed)
        return changed

    def delivered(self, index: int, number: int, *, again: bool = False) -> set[Holder]:
        """The heir of the chunk has all its points. `again`: the holder must confirm a lease that is
        sent from now on, and not only the lease that locked the chunk. Returns the members whose
        leases changed."""
        chunk = self.chunks[index]
        if not number or chunk.delivery != number or chunk.delivered:
            return set()
        chunk.delivered = True
        if not again or chunk.holder is None:
            return self._complete([index])
        self._number([chunk.holder])
        chunk.given_up, chunk.asked = False, self.numbers[chunk.holder]
        return {chunk.holder}

    def _ask(self, changed: Iterable[Holder]) -> None:
        """Give new numbers to the leases that changed. The holders of chunks that move are asked to
        confirm."""
        self._number(changed)
        for index in self.moving:
            chunk = self.chunks[index]
            if not chunk.asked and chunk.holder is not None:
                chunk.asked = self.numbers[chunk.holder]

    def _move(self, index: int, member: Holder) -> Holder:
        """Begin to move the chunk to `member`. Returns the member whose lease changes now."""
        chunk = self.chunks[index]
        if chunk.holder is None:
            self._hand(index, member, remembered=False)
            return member
        if chunk.holder == member:
            self._keep(index)
            return member
        chunk.heir, chunk.asked = member, 0
        chunk.delivery, chunk.delivered, chunk.given_up = 0, False, False
        self.moving.add(index)
        self._changed.add(index)
        return chunk.holder

    def _keep(self, index: int) -> Holder | None:
        """The chunk stays with its holder, which is returned. *The holder may have forgotten the
        points, because it was sent a lease without them. In that case the holder gets the chunk
        again when it has confirmed that lease: by then it has certainly forgotten the points, and
        no visit is in flight.*"""
        chunk = self.chunks[index]
        if self.forgets and chunk.heir is not None and (chunk.delivered or not chunk.delivery):
            chunk.heir, chunk.delivery, chunk.delivered = chunk.holder, 0, False
        else:
            self._hand(index, chunk.holder, remembered=True)
        return chunk.holder

    def _hand(self, index: int, member: Holder | None, *, remembered: bool) -> None:
        """Lease the chunk to `member`. If the chunk was moving, its move ends. `remembered`: whether
        `member` knows what the points have added."""
        chunk = self.chunks[index]
        if not remembered:
            self._forget(index)
        if chunk.holder is not None:
            self._held[chunk.holder].discard(index)
        if member is not None:
            self._held.setdefault(member, set()).add(index)
        chunk.holder, chunk.heir, chunk.asked = member, None, 0
        chunk.delivery, chunk.delivered, chunk.given_up = 0, False, False
        self.moving.discard(index)
        self._changed.add(index)

    def _forget(self, index: int) -> None:
        """Record that no member knows what the points of this chunk have added."""
        if self.forgets:
            self.chunks[index].begin_again(self.epochs)
            if index in self._passes:
                self._passes.put(index, self.chunks[index].passes)
            self._changed.add(index)

    def lose(self, gone: Collection[Holder]) -> None:
        """The last version lacks the rows of these members: let their points be visited again."""
        for index in {index for holder in gone for index in self._held.get(holder, ())}:
            if not self.chunks[index].delivered or self.chunks[index].heir in gone:
                self._forget(index)

    def begin_again(self) -> None:
        """The job resumes from a checkpoint, so no member knows what any point has added."""
        for index in () if self.done else range(len(self.chunks)):
            self._forget(index)

    def _number(self, changed: Iterable[Holder]) -> None:
        for member in changed:
            self.numbers[member] = self.numbers.get(member, 0) + 1

    def renumber(self, members: Iterable[Holder]) -> set[Holder]:
        """Give new numbers to the leases of these members; returns the members that have a lease."""
        found = {member for member in members if member in self.numbers}
        self._number(found)
        return found

    def confirm(self, holder: Holder, number: int) -> set[Holder]:
        """`holder` has contributed or abstained under lease `number`. Chunks that it gave up with
        this lease now move to their new holders. Returns the members whose leases grew."""
        found = []
        for index in sorted(self.moving):
            chunk = self.chunks[index]
            if chunk.holder == holder and 0 < chunk.asked <= number:
                chunk.given_up = True
                found.append(index)
        return self._complete(found)

    def _complete(self, chunks: Iterable[int]) -> set[Holder]:
        """Complete the moves of these chunks whose holder has given them up, and whose heir has the
        points. Returns the members whose leases grew."""
        changed: set[Holder] = set()
        for index in chunks:
            chunk = self.chunks[index]
            ready = chunk.given_up and (chunk.delivered or not chunk.delivery)
            if ready and chunk.holder is not None and chunk.heir is not None:
                changed.add(chunk.heir)
                self.handed.append((index, chunk.holder, chunk.heir))
                self._hand(index, chunk.heir, remembered=chunk.delivered)
        self._number(changed)
        return changed

    def release(
        self, gone: Iterable[Holder], copies: Mapping[Holder, Collection[int]] | None = None
    ) -> set[Holder]:
        """These members were removed, and none of their contributions can arrive any more. Each of
        their chunks goes to its heir, if the heir has the points. Chunks that were moving to the
        removed members stay with their present holders. `copies`: per member, the chunks of which
        it has a copy; used with private data only. Returns the members whose leases grew."""
        leavers = set(gone)
        self.lose(leavers)
        changed: set[Holder] = set()
        for index in sorted(self.moving):
            chunk = self.chunks[index]
            if chunk.heir in leavers and chunk.holder is not None:
                changed.add(chunk.holder)
                self._keep(index)
        for holder in leavers:
            for index in sorted(self._held.pop(holder, ())):
                chunk = self.chunks[index]
                heir = chunk.heir if chunk.delivered or not chunk.delivery else None
                heir = None if heir in leavers else heir
                if heir is not None:
                    self.handed.append((index, holder, heir))
                    changed.add(heir)
                chunk.holder = None
                self._hand(index, heir, remembered=chunk.delivered)
            self.numbers.pop(holder, None)
        changed -= leavers
        self._number(changed)
        return changed

    def lease(self, holder: Holder) -> Leased:
        chunks = tuple(
            ChunkLease(index, *self.numbered(holder, index), chunk.passes, chunk.cursor)
            for index in sorted(self._held.get(holder, ()))
            if (chunk := self.chunks[index]).heir is None
        )
        return Leased(
            worker=holder[0],
            incarnation=holder[1],
            points=self.points,
            seed=self._seed,
            chunks=chunks,
            epochs=self.epochs,
            number=self.numbers.get(holder, 0),
        )

    def commit(
        self, holder: Holder, progress: tuple[ChunkProgress, ...], ahead: bool = False
    ) -> int:
        """Record the progress that a contribution reports; returns the number of points visited.
        Impossible progress is ignored, and so is progress on a chunk that the member does not hold.
        `ahead`: the contribution is in the next fold, and not in the one under way."""
        visited, chunks = 0, self.chunks
        for step in progress:
            index, passes, cursor = step.chunk, step.passes, step.cursor
            if not 0 <= index < len(chunks):
                continue
            chunk = chunks[index]
            points = chunk.last - chunk.first
            if chunk.holder != holder or not 0 <= cursor < max(1, points):
                continue
            if self.forgets:
                passes, cursor = chunk.counted(passes, cursor, self.epochs)
            done = cursor - chunk.cursor + (further := passes - chunk.passes) * points
            if done <= 0 or further > _MOST_PASSES:
                continue
            if ahead:
                self._ahead.note(index, (chunk.passes, chunk.cursor))
            if further:
                self._passes.put(index, passes)
            self._changed.add(index)
            self._progress += 1
            chunk.advance(passes, cursor, done, self._progress)
            visited += done
        return visited

    def settle(self) -> None:
        """The fold is over: the next one contains progress that was recorded as `ahead`."""
        self._ahead.settle()

    def recorded(self, names: Mapping[Holder, str]) -> tuple[RecordedChunk, ...]:
        """The chunks for a checkpoint of the last fold. `names`: the names of the members."""
        return tuple(
            RecordedChunk(
                chunk.first,
                chunk.last,
                *self._ahead.folded(index, (chunk.passes, chunk.cursor)),
                "" if chunk.holder is None else names.get(chunk.holder, ""),
            )
            for index, chunk in enumerate(self.chunks)
        )

    @property
    def passes(self) -> int:
        """The number of full passes over all points."""
        return self._passes.least

    @property
    def folded_passes(self) -> int:
        """The full passes in the version that was folded last; call this before `settle`."""
        return self._ahead.passes(self.passes)

    @property
    def done(self) -> bool:
        return self.epochs is not None and self.passes >= self.epochs

    def check(self) -> None:
        """Check the chunks that were changed since the last check, and those that move."""
        if self._changed or self.moving:
            check_chunks(self.chunks, self._changed, self.moving, self._held, self.points)
            self._changed.clear()
