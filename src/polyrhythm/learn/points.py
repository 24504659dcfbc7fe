"""The points that a worker visits: those of its leased chunks, in an order that is shuffled again
in every pass.

Points are assigned to chunks by a seeded permutation. So even if a file is sorted by label, every
chunk has points of all labels. A contribution carries the ChunkProgress of its points, which takes
effect when the contribution counts.
"""

from collections import deque
from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt

from polyrhythm.core.batches import take
from polyrhythm.wire.messages import ChunkLease, ChunkProgress, Leased

Indices = npt.NDArray[np.int64]
Ranks = Callable[[int], Indices]
"""Gives the rank of every point in the order of a pass: points with lower ranks come first."""


class Order(Protocol):
    """The order that a data set wants for its points, if it reads some orders faster than
    others."""

    def deal(self, rng: np.random.Generator) -> Indices:
        """The order in which points are assigned to chunks."""

    def edges(self, rng: np.random.Generator) -> list[int]:
        """The positions in the order of `deal` at which row groups begin. Chunks should begin there
        too."""

    def shuffle(self, points: Indices, rng: np.random.Generator) -> Indices:
        """The points of a chunk in the order of one pass."""


class Points:
    def __init__(
        self,
        lease: Leased,
        least: int = 1,
        order: Order | None = None,
        *,
        shared: bool = False,
    ) -> None:
        """`shared`: other workers may continue with the chunks of this data set. They do not know
        its `order`, so it is not used to shuffle the points."""
        self.parts: list[tuple[int, int]] | None = None
        """The chunks of the last batch in the order of its points, and how many points belong to
        each; None if the points of a chunk are not neighbours."""
        self._todo: deque[int] = deque()
        """The remaining chunks of the pass `_todo_pass`, in the order of their visits, if known.
        They are kept because a worker with many chunks would need long to find them for every
        batch."""
        self.begin(least)
        self._shared = shared
        self._wanted = order
        rng = np.random.default_rng(lease.seed)
        self._permutation: Indices = (
            rng.permutation(lease.points) if order is None else order.deal(rng)
        )
        self._seed = lease.seed
        self._epochs = lease.epochs
        self._chunks: dict[int, ChunkLease] = {}
        self.everything = 0
        """The number of points in the lease."""
        self._positions: dict[int, tuple[int, int]] = {}
        self._been: dict[int, tuple[int, int]] = {}
        """This worker's position in every chunk that it has visited. Chunks that are no longer
        leased to it are included."""
        self._lease: Leased | None = None
        self._log: list[dict[int, tuple[int, int]]] = []
        """For each call of `next` that may be undone: the positions before the call, in the chunks
        whose points it returned."""
        self._todo_pass = 0
        self._last_shuffled: tuple[tuple[int, int], int, Indices] | None = None
        self._last_ranked: tuple[Leased, int, dict[int, Indices], Indices] | None = None
        self.take(lease)

    def begin(self, least: int, whole: int = 0, ranks: Ranks | None = None) -> None:
        """Set how points are divided into batches. `least`: the fewest points of a batch. `whole`:
        if positive, all batches have this many points, and the remainder of a pass is skipped.
        `ranks`: the order in which the points of the lease are visited."""
        self._least = 1 if whole else least
        self._whole = whole
        self._ranks_of = ranks
        self._todo.clear()

    def of(self, first: int, last: int) -> Indices:
        """The points [first, last) of the permutation. Numbers above those of this worker's points
        refer to points of other workers' private data, and are not permuted."""
        if first >= len(self._permutation):
            return np.arange(first, last)
        return self._permutation[first:last]

    def holds(self, lease: Leased) -> bool:
        """Whether this is the present lease."""
        return lease is self._lease

    def take(self, lease: Leased) -> bool:
        """Take a new lease. Each chunk continues at the position in the lease, or at this worker's
        own position if that is further because of contributions in flight. Returns True if the
        worker was evicted and joined again: points that it visited before do not count then."""
        if lease is self._lease:
            return False
        rejoined = self._lease is not None and lease.incarnation != self._lease.incarnation
        if rejoined:
            self._been.clear()
            self._log.clear()
        self._lease = lease
        self._todo.clear()
        self._chunks = {chunk.chunk: chunk for chunk in lease.chunks}
        self.everything = sum(chunk.last - chunk.first for chunk in lease.chunks)
        self._positions = {
            number: max(self._been.get(number, (0, 0)), (chunk.passes, chunk.cursor))
            for number, chunk in self._chunks.items()
        }
        return rejoined

    @property
    def exhausted(self) -> bool:
        """Whether the lease has no points left to visit."""
        return not self._positions or (
            self._epochs is not None and self._this_pass() >= self._epochs
        )

    def next(self, count: int) -> tuple[Indices, tuple[ChunkProgress, ...]]:
        """Return a batch of about `count` points of one pass, and the progress through chunks. The
        batch has fewer points at the end of a pass, and a few more if the remainder would be too
        small for a batch. It is empty after the last pass."""
        self.parts = None
        if self.exhausted:
            return np.empty(0, np.int64), ()
        before: dict[int, tuple[int, int]] = {}
        self._log.append(before)
        if self._whole and self._left(self._this_pass()) < self._whole and self._may_skip():
            self._skip_pass(before)
        this_pass = self._this_pass()
        count = max(count, self._least)
        if self._ranks_of is None:
            points = self._next_of_chunks(count, this_pass, before)
        else:
            points = self._next_of_lease(count, this_pass, before)
        if self._whole and 0 < self._left(this_pass) < self._whole:
            self._skip_pass(before)
        return points, tuple(ChunkProgress(number, *self._positions[number]) for number in before)

    def put_back(self, batches: int = 1) -> None:
        """Undo the last `batches` calls of `next`, so that the next calls give the same points
        again."""
        self._todo.clear()
        for _ in range(min(batches, len(self._log))):
            for number, at in self._log.pop().items():
                self._been[number] = at
                if number in self._positions:
                    self._positions[number] = at

    def keep(self, batches: int) -> None:
        """Allow `put_back` to undo only the last `batches` calls of `next`."""
        del self._log[: max(0, len(self._log) - batches)]

    def _this_pass(self) -> int:
        if self._todo:
            return self._todo_pass
        return min(passes for passes, _ in self._positions.values())

    def _left(self, this_pass: int) -> int:
        """The number of remaining points of this pass."""
        return sum(
            self._chunks[number].last - self._chunks[number].first - cursor
            for number, (passes, cursor) in self._positions.items()
            if passes == this_pass
        )

    def _may_skip(self) -> bool:
        """Whether a remainder may be skipped although no batch of its pass precedes it. The last
        remainder of this worker may not be skipped, because progress is reported only with a
        batch."""
        last = self._epochs is not None and self._this_pass() + 1 >= self._epochs
        return self.everything >= self._whole and not last

    def _skip_pass(self, before: dict[int, tuple[int, int]]) -> None:
        this_pass = self._this_pass()
        self._todo.clear()
        for number, at in self._positions.items():
            if at[0] == this_pass:
                before.setdefault(number, at)
                self._positions[number] = self._been[number] = (this_pass + 1, 0)

    def _advance(self, number: int, points: int, before: dict[int, tuple[int, int]]) -> None:
        passes, cursor = self._positions[number]
        before.setdefault(number, (passes, cursor))
        chunk = self._chunks[number]
        cursor += points
        if cursor >= chunk.last - chunk.first:
            passes, cursor = passes + 1, 0
        self._positions[number] = self._been[number] = (passes, cursor)

    def _next_of_chunks(
        self, count: int, this_pass: int, before: dict[int, tuple[int, int]]
    ) -> Indices:
        """The next points, one chunk after the other."""
        if not self._todo:
            self._todo, self._todo_pass = self._in_order(this_pass), this_pass
        todo = self._todo
        parts: list[Indices] = []
        self.parts = lengths = []
        while count > 0 and todo:
            number = todo[0]
            chunk, (passes, cursor) = self._chunks[number], self._positions[number]
            taken = take(count, chunk.last - chunk.first - cursor, self._least)
            points = self._shuffled(chunk, passes)[cursor : cursor + taken]
            count -= len(points)
            parts.append(points)
            lengths.append((number, len(points)))
            self._advance(number, len(points), before)
            if self._positions[number][0] != this_pass:
                todo.popleft()
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _next_of_lease(
        self, count: int, this_pass: int, before: dict[int, tuple[int, int]]
    ) -> Indices:
        """The points with the lowest ranks of all chunks. In every chunk points are visited in the
        order of their ranks, so a position still says which points were visited."""
        left = self._left(this_pass)
        count = take(min(count, left), left, self._least)
        ordered, ranks = self._ranked(this_pass)
        heads: dict[int, Indices] = {
            number: ordered[number][cursor : cursor + count]
            for number, (passes, cursor) in self._positions.items()
            if passes == this_pass
        }
        points = np.concatenate(list(heads.values()))
        points = points[np.argsort(ranks[points])][:count]
        last = ranks[points[-1]]
        for number, head in heads.items():
            if taken := int(np.count_nonzero(ranks[head] <= last)):
                self._advance(number, taken, before)
        return points

    def _ranked(self, this_pass: int) -> tuple[dict[int, Indices], Indices]:
        """The points of every chunk in the order of their ranks, and the ranks of all points."""
        assert self._ranks_of is not None and self._lease is not None
        kept = self._last_ranked
        if kept is None or kept[0] is not self._lease or kept[1] != this_pass:
            ranks, own = self._ranks_of(this_pass), len(self._permutation)
            end = max((chunk.last for chunk in self._chunks.values()), default=0)
            if end > own:
                ranks = np.concatenate([ranks, np.arange(len(ranks), end)])
            ordered = {}
            for number, chunk in self._chunks.items():
                points = self.of(chunk.first, chunk.last)
                if chunk.first < own:
                    ordered[number] = points[np.argsort(ranks[points])]
                else:
                    # Points of another worker's data set have no ranks. All workers visit them in
                    # the same shuffled order.
                    ordered[number] = self._shuffled(chunk, this_pass)
                    ranks[ordered[number]] = points
            self._last_ranked = kept = (self._lease, this_pass, ordered, ranks)
        return kept[2], kept[3]

    def _in_order(self, this_pass: int) -> deque[int]:
        """The chunks of this pass in the order of their visits: first a chunk that is partly
        visited, then the others as shuffled for this pass."""
        rank = chunk_ranks(self._seed, this_pass, max(self._positions) + 1)
        left = (number for number, (passes, _) in self._positions.items() if passes == this_pass)
        return deque(
            sorted(left, key=lambda number: (self._positions[number][1] == 0, rank[number]))
        )

    def _shuffled(self, chunk: ChunkLease, passes: int) -> Indices:
        """The points of a chunk in the shuffled order of this pass. The result is cached, because
        consecutive batches mostly come from the same chunk."""
        last = self._last_shuffled
        if last is None or last[0] != (chunk.chunk, chunk.first) or last[1] != passes:
            rng = np.random.default_rng((self._seed, passes, 2, chunk.chunk))
            points, order = self.of(chunk.first, chunk.last), self._wanted
            own = chunk.first < len(self._permutation)
            if order is not None and own and not self._shared:
                shuffled = order.shuffle(points, rng)
            else:
                shuffled = rng.permutation(points)
            self._last_shuffled = last = ((chunk.chunk, chunk.first), passes, shuffled)
        return last[2]


def chunk_ranks(seed: int, this_pass: int, count: int) -> Indices:
    """For each of the first `count` chunks, its rank in the order of this pass."""
    return np.random.default_rng((seed, this_pass, 1)).permutation(count)
