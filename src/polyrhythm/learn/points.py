"""The points that a worker visits: those of its leased chunks, in an order that is shuffled again
in every pass.

Points are assigned to chunks by a seeded permutation. So even if a file is sorted by label, every
chunk has points of all labels. A contribution carries the ChunkProgress of its points. This
progress takes effect when the contribution is counted.
"""

import numpy as np
import numpy.typing as npt

from polyrhythm.core.batches import take
from polyrhythm.wire.messages import ChunkLease, ChunkProgress, Leased

Indices = npt.NDArray[np.int64]


class Points:
    def __init__(self, lease: Leased, least: int = 1) -> None:
        """`least`: the fewest points of a batch."""
        self._least = least
        self._permutation: Indices = np.random.default_rng(lease.seed).permutation(lease.points)
        self._seed = lease.seed
        self._epochs = lease.epochs
        self._chunks: dict[int, ChunkLease] = {}
        self._at: dict[int, tuple[int, int]] = {}
        self._been: dict[int, tuple[int, int]] = {}
        """This worker's position in every chunk that it has visited. Chunks that are no longer
        leased to it are included."""
        self._lease: Leased | None = None
        self._before: dict[int, tuple[int, int]] = {}
        """The positions before the last call of `next`, in the chunks that it used."""
        self._ranks: tuple[int, int, Indices] | None = None
        self._last_shuffled: tuple[ChunkLease, int, Indices] | None = None
        self.take(lease)

    def take(self, lease: Leased) -> bool:
        """Take a new lease. Each chunk continues at the position in the lease, or at this worker's
        own position if that is further because of contributions in flight. Returns True if the
        worker was evicted and joined again: points that it visited before do not count then."""
        if lease is self._lease:
            return False
        anew = self._lease is not None and lease.incarnation != self._lease.incarnation
        if anew:
            self._been.clear()
        self._lease = lease
        self._chunks = {chunk.chunk: chunk for chunk in lease.chunks}
        self._at = {
            number: max(self._been.get(number, (0, 0)), (chunk.passes, chunk.cursor))
            for number, chunk in self._chunks.items()
        }
        return anew

    def next(self, count: int) -> tuple[Indices, tuple[ChunkProgress, ...]]:
        """Return a batch of about `count` points of one pass, and the progress through chunks. The
        batch has fewer points at the end of a pass, and a few more if the remainder would be too
        small for a batch. It is empty after the last pass."""
        if not self._at:
            return np.empty(0, np.int64), ()
        this_pass = min(passes for passes, _ in self._at.values())
        if self._epochs is not None and this_pass >= self._epochs:
            return np.empty(0, np.int64), ()
        count = max(count, self._least)
        parts: list[Indices] = []
        progress: list[ChunkProgress] = []
        self._before = {}
        for number in self._order(this_pass):
            if count <= 0:
                break
            passes, cursor = self._at[number]
            if passes != this_pass:
                continue
            chunk = self._chunks[number]
            taken = take(count, chunk.last - chunk.first - cursor, self._least)
            points = self._shuffled(chunk, passes)[cursor : cursor + taken]
            count -= len(points)
            parts.append(points)
            cursor += len(points)
            self._before[number] = self._at[number]
            if cursor >= chunk.last - chunk.first:
                passes, cursor = passes + 1, 0
            self._at[number] = self._been[number] = (passes, cursor)
            progress.append(ChunkProgress(number, passes, cursor))
        return np.concatenate(parts), tuple(progress)

    def put_back(self) -> None:
        """Return the points of the last call of `next`, so that the next call gives them again."""
        for number, at in self._before.items():
            self._been[number] = at
            if number in self._at:
                self._at[number] = at
        self._before = {}

    def _order(self, this_pass: int) -> list[int]:
        """The chunks of this pass in order: first a chunk that is partly visited, then the others
        as shuffled for this pass."""
        rank = self._rank(this_pass, max(self._at) + 1)
        return sorted(self._at, key=lambda number: (self._at[number][1] == 0, rank[number]))

    def _rank(self, this_pass: int, count: int) -> Indices:
        if self._ranks is None or self._ranks[:2] != (this_pass, count):
            rng = np.random.default_rng((self._seed, this_pass, 1))
            self._ranks = (this_pass, count, rng.permutation(count))
        return self._ranks[2]

    def _shuffled(self, chunk: ChunkLease, passes: int) -> Indices:
        """The points of a chunk as shuffled for this pass. The result is cached, because
        consecutive batches mostly come from the same chunk."""
        last = self._last_shuffled
        if last is None or last[0] != chunk or last[1] != passes:
            rng = np.random.default_rng((self._seed, passes, 2, chunk.chunk))
            shuffled = rng.permutation(self._permutation[chunk.first : chunk.last])
            self._last_shuffled = last = (chunk, passes, shuffled)
        return last[2]
