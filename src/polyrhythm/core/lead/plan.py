"""Chunk leases and pass counts.

Points are dealt to chunks by a seeded permutation; chunks are leased to members. *Chunk progress is
in the trailer and commits with it: a point is visited if and only if its contribution is.* So a
chunk changes hands only when nothing of it can be on its way: its holder has contributed under the
lease that lacks it, or is gone and every server has said so.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from polyrhythm.core.minimum_tracker import MinimumTracker
from polyrhythm.errors import InvariantBroken
from polyrhythm.wire.messages import ChunkLease, ChunkProgress, Leased

CHUNKS_PER_WORKER = 16
_MOST_PASSES = 10_000
"""Passes over a chunk that one contribution may have in it."""
Holder: TypeAlias = tuple[int, int]
"""A worker and its incarnation: one who comes back is somebody else."""


@dataclass(slots=True)
class Chunk:
    first: int
    last: int
    holder: Holder | None = None
    heir: Holder | None = None
    """Who gets it once the holder has confirmed lease `asked`."""
    asked: int = 0
    passes: int = 0
    cursor: int = 0

    @property
    def points(self) -> int:
        return self.last - self.first

    @property
    def due(self) -> Holder | None:
        """Who holds it when everything asked for has come about."""
        return self.heir or self.holder


class DataPlan:
    def __init__(
        self, points: int, workers: int, seed: int, epochs: int | None, least: int = 1
    ) -> None:
        """`least`: no chunk has fewer points than a batch must have."""
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
        """Chunks that wait for their holders to give them up."""
        self._passes: MinimumTracker[int] = MinimumTracker()
        for index in range(count):
            self._passes.put(index, 0)

    def share(self, members: list[Holder]) -> set[Holder]:
        """Deal all chunks over `members` as evenly as can be, moving as few as that allows.
        Returns the members whose leases changed; chunks that a member must give up follow later,
        when it has confirmed."""
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
        ranked = sorted(members, key=lambda member: (-len(held[member]), member))
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
        """Make `member` the one who is due; who must be told."""
        chunk = self.chunks[index]
        if chunk.holder is None or chunk.holder == member:
            self._hand(index, member)
            return member
        chunk.heir, chunk.asked = member, 0
        self.moving.add(index)
        return chunk.holder

    def _hand(self, index: int, member: Holder | None) -> None:
        """The chunk is `member`'s now, and nobody is asked for it."""
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
        """`holder` has contributed, or abstained, under lease `number`: what that one lacks is
        free. Returns the members whose leases grew."""
        changed: set[Holder] = set()
        for index in sorted(self.moving):
            chunk = self.chunks[index]
            if chunk.holder == holder and 0 < chunk.asked <= number and chunk.heir is not None:
                changed.add(chunk.heir)
                self._hand(index, chunk.heir)
        self._number(changed)
        return changed

    def release(self, gone: Iterable[Holder]) -> set[Holder]:
        """These are gone, and nothing of theirs can arrive any more. Returns the members whose
        leases grew: heirs of theirs, and holders whose heir they were."""
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
        """Enter what a counted contribution visited; returns how many points that were. Progress
        on a chunk that this worker does not hold is void, and so is progress that no worker can have
        made."""
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
        """Full passes over all points."""
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
                raise InvariantBroken("a cursor stands outside its chunk")
        for index, chunk in enumerate(self.chunks):
            if (chunk.heir is not None) != (index in self.moving):
                raise InvariantBroken("a chunk has an heir, but is not moving")
            if chunk.heir is not None and (chunk.holder is None or not chunk.asked):
                raise InvariantBroken("a chunk has an heir, but nobody was asked for it")
            if chunk.holder is not None and index not in self._held[chunk.holder]:
                raise InvariantBroken("a chunk's holder does not know of it")
