"""Chunk leases and pass counts.

Points are dealt to chunks by a seeded permutation; chunks are leased to workers. *Chunk progress is
in the trailer and commits with it: a point is visited if and only if its contribution is.* A
member that left returns its chunks; they go to those who hold the fewest points.
"""

from dataclasses import dataclass

from polyrhythm.errors import InvariantBroken
from polyrhythm.wire.messages import ChunkLease, Leased, Progress

CHUNKS_PER_WORKER = 16


@dataclass(slots=True)
class Chunk:
    first: int
    last: int
    holder: int | None = None
    passes: int = 0
    cursor: int = 0

    @property
    def points(self) -> int:
        return self.last - self.first


class Plan:
    def __init__(self, points: int, workers: int, seed: int, epochs: int | None) -> None:
        self.points = points
        self._seed = seed
        self._epochs = epochs
        count = max(1, min(points, CHUNKS_PER_WORKER * workers))
        self.chunks = [
            Chunk(points * index // count, points * (index + 1) // count) for index in range(count)
        ]

    def share(self, members: list[int]) -> set[int]:
        """Deal all chunks over `members` as evenly as can be, moving as few as that allows.
        Returns the members whose leases changed."""
        changed: set[int] = set()
        if not members:
            for chunk in self.chunks:
                chunk.holder = None
            return changed
        held: dict[int, list[int]] = {member: [] for member in members}
        loose = []
        for index, chunk in enumerate(self.chunks):
            if chunk.holder in held and chunk.holder is not None:
                held[chunk.holder].append(index)
            else:
                loose.append(index)
        bound, extras = divmod(len(self.chunks), len(members))
        ranked = sorted(members, key=lambda member: (-len(held[member]), member))
        quotas = {member: bound + (rank < extras) for rank, member in enumerate(ranked)}
        for member in ranked:
            while len(held[member]) > quotas[member]:
                loose.append(held[member].pop())
                changed.add(member)
        for member in ranked:
            while len(held[member]) < quotas[member]:
                held[member].append(loose.pop(0))
                changed.add(member)
        for member, indices in held.items():
            for index in indices:
                self.chunks[index].holder = member
        return changed

    def lease(self, worker: int) -> Leased:
        chunks = tuple(
            ChunkLease(index, chunk.first, chunk.last, chunk.passes, chunk.cursor)
            for index, chunk in enumerate(self.chunks)
            if chunk.holder == worker
        )
        return Leased(
            worker=worker, points=self.points, seed=self._seed, chunks=chunks, epochs=self._epochs
        )

    def commit(self, worker: int, progress: tuple[Progress, ...]) -> int:
        """Enter what a counted contribution visited; returns how many points that were. Progress
        on a chunk that this worker no longer holds is void: its points are visited elsewhere."""
        visited = 0
        for step in progress:
            if not 0 <= step.chunk < len(self.chunks):
                continue
            chunk = self.chunks[step.chunk]
            if chunk.holder != worker:
                continue
            done = (step.passes - chunk.passes) * chunk.points + step.cursor - chunk.cursor
            if done <= 0:
                continue
            chunk.passes, chunk.cursor = step.passes, step.cursor
            visited += done
        return visited

    @property
    def passes(self) -> int:
        """Full passes over all points."""
        return min(chunk.passes for chunk in self.chunks)

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
