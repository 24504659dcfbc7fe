"""The points of a worker's leased chunks, what they have added to its row of statistics (the sum
that servers keep for this worker), and the order in which they are visited.

A chunk is a range of the source. The worker reads it when it gets the lease, and keeps it in
memory. *Points are visited in blocks of a fixed size. A block is always visited as a whole, so an
algorithm without memory gets the same points together in every pass.*

The order of visits is not that of the file, because the file may be sorted. The lead shares the
chunks in a permuted order (`core/lead/data/chunks.py`). A worker reads its chunks in the order of
the file, so that it parses each row group once, and visits them in a new order in every pass.
Inside a chunk, the worker permutes the points if reading copies them anyway, as for a table.
Otherwise they keep their order, which saves a copy in memory; without memory of the points, the
blocks are then permuted in every pass. *All orders follow from the seed of the job, so another
worker can continue in the middle of a chunk.*
"""

from collections import deque
from math import ceil
from typing import Any

import numpy as np
import numpy.typing as npt

from polyrhythm.core.worker.remembered import Remembered, position
from polyrhythm.learn.migration.layout import Packed, Samples, pack
from polyrhythm.learn.migration.received import ReceivedPoints
from polyrhythm.learn.points import chunk_ranks
from polyrhythm.learn.pointwise.algorithm import Algorithm, Batch, Memory, has_memory
from polyrhythm.learn.pointwise.layout import Array, Arrays
from polyrhythm.learn.pointwise.source import Source
from polyrhythm.runtime.worker.deliveries import PointsCarrier
from polyrhythm.wire.messages import ChunkLease, ChunkProgress, ChunkSend, Leased


def state_of(batch: Batch) -> dict[str, Any]:
    """The arrays of these points. A sparse matrix has three arrays."""
    state: dict[str, Any] = {}
    if hasattr(batch.x, "tocsr"):
        x = batch.x.tocsr()
        state |= {"data": x.data, "indices": x.indices, "indptr": x.indptr, "width": x.shape[1]}
    else:
        state["x"] = np.asarray(batch.x)
    if batch.y is not None:
        state["y"] = batch.y
    if batch.weight is not None:
        state["weight"] = batch.weight
    return state


def batch_of(state: dict[str, Any]) -> Batch:
    """The points with these arrays."""
    if "x" in state:
        x = state["x"]
    else:
        from scipy import sparse

        shape = (len(state["indptr"]) - 1, state["width"])
        x = sparse.csr_matrix((state["data"], state["indices"], state["indptr"]), shape=shape)
    return Batch(x, state.get("y"), state.get("weight"))


Blocks = npt.NDArray[np.int64]
"""The numbers of some blocks of a chunk."""
COUNTS = 3
"""How many numbers come before the statistics of the algorithm."""
_FEWER, _MORE = 0.25, 0.25
"""By which shares a visit may have fewer or more points than requested, so that it ends at the end
of a chunk."""
_MANY_FEWER, _MANY_MORE = 0.5, 1.0
"""The same shares long before the end of an interval, when the exact number of points does not
matter. A chunk is then mostly visited at once, because visiting a part costs nearly as much."""


class LeasedChunk:
    """One leased chunk."""

    def __init__(
        self, lease: ChunkLease, points: Batch, memory: Memory, block: int, seed: int = 0
    ) -> None:
        """`seed`: the seed of the job."""
        self.number = lease.chunk
        self.length = lease.last - lease.first
        self.passes, self.cursor = lease.passes, lease.cursor
        self._points = points
        self._memory = memory
        self._block = block
        self._seed = seed
        count = -(-self.length // block)
        self._last: list[Array | None] = [None] * count
        """If the algorithm has no memory: what each block has added to the statistics."""
        self._generations = np.zeros(count, np.int64)
        """The generation of each block: the generation in which it was visited last. 0: it was
        never visited."""
        self._halted = np.zeros(count, np.bool_)
        self._ordered: tuple[int, Blocks] = (-1, np.arange(count))
        """A pass, and the order in which the blocks are visited in this pass."""

    def _order(self) -> Blocks:
        """The order of the blocks in the present pass. A last block with fewer points stays the
        last one, so a cursor is a multiple of the block's length. With memory, one call visits
        neighbouring blocks, in the order of the points."""
        if not self._memory and self._ordered[0] != self.passes:
            count, full = len(self._generations), self.length // self._block
            rng = np.random.default_rng((self._seed, self.passes, 3, self.number))
            order = np.concatenate([rng.permutation(full), np.arange(full, count)])
            self._ordered = (self.passes, order)
        return self._ordered[1]

    @property
    def seen(self) -> bool:
        """Whether all points of the chunk have added something."""
        return bool(self._generations.all())

    def state(self) -> dict[str, Any]:
        """The points of the chunk, with everything that it remembers of them, to be sent to another
        worker."""
        found = [(at, last) for at, last in enumerate(self._last) if last is not None]
        return {
            "points": state_of(self._points),
            "memory": dict(self._memory),
            "block": self._block,
            "at": np.array([at for at, _ in found], np.int64),
            "last": np.array([last for _, last in found], np.float64),
            "generations": self._generations,
            "halted": self._halted,
        }

    @classmethod
    def of_state(
        cls, lease: ChunkLease, state: dict[str, Any], memory: Memory, seed: int = 0
    ) -> "LeasedChunk":
        """A chunk that another worker has sent, with the memory of its points."""
        chunk = cls(lease, batch_of(state["points"]), memory, state["block"], seed)
        for at, last in zip(state["at"].tolist(), state["last"], strict=True):
            chunk._last[at] = last
        chunk._generations, chunk._halted = state["generations"], state["halted"]
        return chunk

    def take(self, lease: ChunkLease) -> None:
        """Continue under another lease. The points are already in memory."""
        self.passes, self.cursor = position(lease, (self.passes, self.cursor))

    def visit(
        self,
        count: int,
        algorithm: Algorithm,
        parameter: Arrays,
        share: float = 0.0,
        generation: int = 1,
    ) -> tuple[int, Array]:
        """Visit about `count` points, in whole blocks, up to the end of the pass. The rest of the
        chunk is divided into equal visits, because a small visit costs nearly as much as a large
        one. `share`: the share by which a visit may have more points than `count`. `generation`:
        the current one. Returns how many points were visited, and the change of the statistics."""
        first = self.cursor // self._block
        left, wanted = len(self._generations) - first, max(1, round(count / self._block))
        visits = max(1, ceil(left / wanted - share))
        last = first + ceil(left / visits)
        end = min(self.length, last * self._block)
        blocks = self._order()[first:last]
        visited, change = end - self.cursor, self._update(blocks, algorithm, parameter)
        self._advance(blocks, generation, change)
        self.passes, self.cursor = (self.passes, end) if end < self.length else (self.passes + 1, 0)
        return visited, change

    def _update(self, blocks: Blocks, algorithm: Algorithm, parameter: Arrays) -> Array:
        layout = algorithm.layout(parameter)
        total = np.zeros(COUNTS + layout.size)
        left = blocks[~self._halted[blocks]]
        if self._memory and len(left) == len(blocks):
            ranges = [(int(blocks[0]), int(blocks[-1]) + 1)]
        else:
            ranges = [(block, block + 1) for block in left.tolist()]
        for begin, end in ranges:
            rows = slice(begin * self._block, min(self.length, end * self._block))
            batch = self._points.part(rows)
            memory = {name: array[rows] for name, array in self._memory.items()}
            found = layout.flat(algorithm.update_points(batch, parameter, memory))
            if not self._memory:
                before, self._last[begin] = self._last[begin], found
                found = found if before is None else found - before
            total[COUNTS:] += found
            votes = algorithm.vote_to_halt(batch, parameter, memory)
            if votes is not None:
                total[1] += self._halt(begin, end, votes)
        return total

    def _advance(self, blocks: Blocks, generation: int, change: Array) -> None:
        """Give these blocks the current generation, and add the difference to the counts in
        `change`. Halted blocks have nothing to visit, so they advance too."""
        before = self._generations[blocks]
        lengths = np.minimum(self._block, self.length - blocks * self._block)
        change[0] += lengths[before == 0].sum()
        change[2] += (lengths * np.maximum(generation - before, 0)).sum()
        self._generations[blocks] = np.maximum(before, generation)

    def _halt(self, begin: int, end: int, votes: npt.NDArray[np.bool_]) -> float:
        """Leave out each block whose points have all voted to halt. Returns the number of points in
        these blocks."""
        halted = 0.0
        for block in range(begin, end):
            at = (block - begin) * self._block
            if votes[at : at + self._block].all():
                self._halted[block] = True
                halted += self._length_of(block)
        return halted

    def _length_of(self, block: int) -> int:
        return min(self._block, self.length - block * self._block)


class Chunks:
    """The leased chunks of one worker, and the order in which it visits them.

    The first three numbers of the statistics are counts: the points that have added something,
    those of them that have voted to halt, and the sum of the points' generations.

    *A visit gives a point the number of the current generation, and no point has a higher one. So
    all points have been visited since generation g began if the sum of the generations is at least
    g times the number of points. Every worker learns this from the sum, whatever the speeds of the
    workers are.*
    """

    def __init__(
        self,
        algorithm: Algorithm,
        source: Source,
        size: int,
        block: int,
        carrier: PointsCarrier | None = None,
    ) -> None:
        """`size`: how many numbers a row of statistics has, without the counts. `carrier`: sends
        chunks to other workers and receives them; None if no chunks are sent."""
        self._carrier = carrier
        self._received = ReceivedPoints()
        self._locked: dict[int, LeasedChunk] = {}
        """The chunks that are not visited, because they are being sent to other workers, or because
        this worker waits (`--migrate blocking`)."""
        if carrier is not None:
            carrier.read, carrier.add = self._state_of, self._received.add
            carrier.units = lambda send: 1
        self._algorithm = algorithm
        self._source = source
        self._block = block
        self._remembers = has_memory(algorithm)
        self._chunks: dict[int, LeasedChunk] = {}
        self._todo: deque[LeasedChunk] = deque()
        """The remaining chunks of this pass, in the order of their visits, if known."""
        self.everything = 0
        """The number of points in the lease."""
        self._lease: Leased | None = None
        self.remembered = Remembered[Array](
            lambda: np.zeros(COUNTS + size), _add_in_place, _subtract_in_place
        )

    @property
    def passes(self) -> int:
        """How often the worker has visited all points of the lease."""
        return min((chunk.passes for chunk in self._chunks.values()), default=0)

    def take(self, lease: Leased) -> bool:
        """Apply a lease: forget the chunks that are not in it, and read the new ones. Returns
        whether this worker has joined again; its earlier visits then do not count."""
        if lease is self._lease:
            return False
        rejoined = self._lease is not None and lease.incarnation != self._lease.incarnation
        self._lease = lease
        self._todo.clear()
        self.remembered.take(lease)
        if rejoined:
            self._chunks.clear()
            self._locked.clear()
        self._received.drop(lease.earlier)
        leased = {each.chunk for each in lease.chunks}
        locked = {each.chunk for each in lease.sends} | {*lease.copies}
        self._locked |= {each: self._chunks[each] for each in locked & self._chunks.keys()}
        for number in self._chunks.keys() - leased:
            del self._chunks[number]
        self._chunks |= {each: self._locked[each] for each in leased & self._locked.keys()}
        self._locked = {each: chunk for each, chunk in self._locked.items() if each in locked}
        for send in lease.sends:
            if send.chunk not in self._locked:
                # The lease with this chunk was replaced before the worker applied it: read the
                # chunk now.
                self._locked[send.chunk] = self._read(
                    ChunkLease(send.chunk, send.first, send.last, passes=0, cursor=0)
                )
        for each in lease.chunks:
            if each.chunk not in self._chunks:
                self._chunks[each.chunk] = self._read(each)
            self._chunks[each.chunk].take(each)
        self.everything = sum(chunk.length for chunk in self._chunks.values())
        if self._carrier is not None:
            self._received.keep({*lease.arriving, *lease.copies}, lease.delivery)
            self._carrier.take(lease)
        return rejoined

    def _state_of(self, send: ChunkSend, offset: int, count: int) -> list[tuple[int, Packed]]:
        """The state of a chunk that this worker sends away, with what the chunk's points have added
        to the worker's row of statistics."""
        state = self._locked[send.chunk].state()
        state["subtotal"] = self.remembered.subtotal(send.chunk)
        return [(1, pack([state]))]

    def _read(self, lease: ChunkLease) -> LeasedChunk:
        if lease.chunk in self._received:
            state = Samples(self._received.rows(lease.chunk, 0, 1))[0]
            memory = self._algorithm.adopt(state["memory"])
            chunk = LeasedChunk.of_state(lease, state, memory, self._seed)
            self.remembered.adopt(lease.chunk, state["subtotal"])
            return chunk
        points = self._source.read(lease.first, lease.last)
        if self._source.copies:
            rng = np.random.default_rng((self._seed, 4, lease.chunk))
            points = points.part(rng.permutation(len(points)))
        memory = self._algorithm.memory(len(points)) if self._remembers else {}
        block = min(self._block, lease.last - lease.first)
        return LeasedChunk(lease, points, memory, block, self._seed)

    @property
    def _seed(self) -> int:
        return 0 if self._lease is None else self._lease.seed

    def visit(
        self, count: int, parameter: Arrays, *, loose: bool = False, generation: int = 1
    ) -> tuple[int, tuple[ChunkProgress, ...]]:
        """Visit about `count` points of one pass: up to a quarter (or a block) fewer, or up to a
        quarter more. `loose`: up to a half fewer, or up to twice as many. `generation`: the current
        one. Returns the number of points, and the progress through chunks; (0, ()) if no points are
        left."""
        if not self._todo:
            self._todo = self._in_order()
        visited, progress, todo = 0, [], self._todo
        fewer, more = (_MANY_FEWER, _MANY_MORE) if loose else (_FEWER, _MORE)
        while todo and (not visited or count - visited >= max(self._block, fewer * count)):
            chunk = todo[0]
            wanted = count - visited
            found, change = chunk.visit(wanted, self._algorithm, parameter, more, generation)
            self.remembered.on_visited(chunk.number, change)
            visited += found
            progress.append(ChunkProgress(chunk.number, chunk.passes, chunk.cursor))
            if chunk.cursor:
                break
            todo.popleft()
        return visited, tuple(progress)

    def _in_order(self) -> deque[LeasedChunk]:
        """The remaining chunks of this pass, in the order of their visits. A partly visited chunk
        comes first. Then come all chunks whose points are missing from the sum, because only the
        lease has moved to this worker, even if their former worker was some passes ahead. Otherwise
        their points would be missing for as many passes."""
        assert self._lease is not None
        this_pass, epochs = self.passes, self._lease.epochs
        if epochs is not None and this_pass >= epochs:
            return deque()
        found = [
            chunk
            for chunk in self._chunks.values()
            if chunk.passes == this_pass
            or (not chunk.seen and (epochs is None or chunk.passes < epochs))
        ]
        rank = chunk_ranks(self._seed, this_pass, max(self._chunks, default=0) + 1)
        return deque(
            sorted(found, key=lambda chunk: (not chunk.cursor, chunk.seen, rank[chunk.number]))
        )


def _add_in_place(one: Array, other: Array) -> Array:
    return np.add(one, other, out=one)


def _subtract_in_place(one: Array, other: Array) -> Array:
    return np.subtract(one, other, out=one)
