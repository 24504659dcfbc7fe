"""The points that a simulated worker visits: a position in leased chunks, without the points
themselves.

Chunks and their points are visited in order, without shuffling, because a simulated worker does not
use their values. Nearly all calls need only the open chunk, so its position is kept in separate
attributes.
"""

from collections.abc import Collection, Mapping

from polyrhythm.core.batches import take
from polyrhythm.core.worker.remembered import position
from polyrhythm.wire.messages import ChunkProgress, Leased

_NONE = -1


class SimPoints:
    __slots__ = (
        "_cursor",
        "_lease",
        "_left",
        "_length",
        "_lengths",
        "_moved",
        "_open",
        "_passes",
        "_positions",
        "_told",
        "everything",
        "least",
    )

    def __init__(self, least: int = 1) -> None:
        self.least = least
        """The fewest points of a batch."""
        self.everything = 0
        """The number of points in the lease."""
        self._lease: Leased | None = None
        self._lengths: dict[int, int] = {}
        """The number of points of each leased chunk."""
        self._positions: dict[int, tuple[int, int]] = {}
        """This worker's position in every chunk that it has visited. Chunks that are no longer
        leased to it are included, unless their points are forgotten."""
        self._left: list[int] = []
        """The chunks of this pass that the worker has not begun. The last one in the list is
        next."""
        self._moved: dict[int, tuple[int, int]] = {}
        """Per chunk that was visited and left since the last `collect`, the position in it."""
        self._open = _NONE
        self._passes = self._cursor = self._length = self._told = 0
        """The position in the open chunk, and the length of the chunk. `_told`: the position at the
        last `collect`."""

    def take(self, lease: Leased, known: Collection[int] | None = None) -> bool:
        """Apply a new lease. Each chunk continues at the position in the lease, or at this worker's
        own position if that is further because of contributions in flight. `known`: kind
        statistics, see `core/worker/remembered.py`. Returns True if the worker was evicted and
        joined again; points that it visited before then do not count."""
        if lease is self._lease:
            return False
        self._close()
        rejoined = self._lease is not None and lease.incarnation != self._lease.incarnation
        if rejoined:
            self._positions.clear()
            self._moved.clear()
        self._lease = lease
        self._lengths = {chunk.chunk: chunk.last - chunk.first for chunk in lease.chunks}
        if known is not None:
            # Forget the position in a chunk together with its points. Otherwise, if the worker got
            # the chunk again only to send it to another worker, it would later begin at its old
            # position.
            self._positions = {
                number: at for number, at in self._positions.items() if number in known
            }
        for chunk in lease.chunks:
            been = self._positions.get(chunk.chunk, (0, 0))
            if known is None:
                self._positions[chunk.chunk] = max(been, (chunk.passes, chunk.cursor))
            else:
                self._positions[chunk.chunk] = position(
                    chunk, been if chunk.chunk in known else None
                )
        self._left.clear()
        self.everything = sum(self._lengths.values())
        return rejoined

    @property
    def at(self) -> Mapping[int, tuple[int, int]]:
        """This worker's position in every chunk that it has visited, or that it holds. Call this
        when no chunk is open."""
        return self._positions

    def moved(self) -> tuple[ChunkProgress, ...]:
        """The result that `collect` would return."""
        moved = dict(self._moved)
        if self._cursor != self._told:
            moved[self._open] = (self._passes, self._cursor)
        return tuple(ChunkProgress(number, *at) for number, at in moved.items())

    def left(self, count: int) -> int:
        """The number of points that `visit(count)` would visit."""
        if self._cursor + count + self.least <= self._length:
            return count
        if self._open == _NONE and not self._left:
            self._begin_pass()
        found = take(count, self._length - self._cursor, self.least) if self._length else 0
        for number in reversed(self._left):
            if found >= count:
                break
            found += take(
                count - found, self._lengths[number] - self._positions[number][1], self.least
            )
        return found

    def visit(self, count: int) -> int:
        """Visit about `count` points of one pass and return how many were visited. At the end of the
        pass this may be fewer than `count`. It is a few more if the remainder of a chunk would be too
        small for a batch. Returns 0 if no points are left."""
        if self._cursor + count + self.least <= self._length:
            self._cursor += count
            return count
        visited = 0
        while visited < count and self._open_next(begin=not visited):
            taken = take(count - visited, self._length - self._cursor, self.least)
            visited += taken
            self._cursor += taken
            if self._cursor >= self._length:
                self._passes, self._cursor, self._told = self._passes + 1, 0, _NONE
                self._close()
        return visited

    def collect(self) -> tuple[ChunkProgress, ...]:
        """Return the position in every chunk that was visited since the last `collect`."""
        cursor = self._cursor
        if cursor != self._told:
            self._told = cursor
            if not self._moved:
                return (ChunkProgress(self._open, self._passes, cursor),)
            self._moved[self._open] = (self._passes, cursor)
        if not self._moved:
            return ()
        moved, self._moved = self._moved, {}
        return tuple([ChunkProgress(number, *at) for number, at in moved.items()])

    def _open_next(self, *, begin: bool) -> bool:
        """Open the next chunk if none is open. `begin`: if this pass is over, begin another one."""
        if self._open != _NONE:
            return True
        if not self._left and not (begin and self._begin_pass()):
            return False
        self._open = number = self._left.pop()
        self._passes, self._cursor = self._positions[number]
        self._length, self._told = self._lengths[number], self._cursor
        return True

    def _close(self) -> None:
        if self._open != _NONE:
            self._positions[self._open] = at = (self._passes, self._cursor)
            if self._cursor != self._told:
                self._moved[self._open] = at
        self._open = _NONE
        self._cursor = self._length = self._told = 0

    def _begin_pass(self) -> bool:
        """Begin a pass. A chunk that is partly visited comes first, so it is put at the end of the
        list, from which chunks are taken."""
        leased = {number: self._positions[number] for number in self._lengths}
        this_pass = min(leased.values(), default=(0, 0))[0]
        epochs = None if self._lease is None else self._lease.epochs
        if epochs is not None and this_pass >= epochs:
            return False
        self._left = [number for number, (passes, _) in leased.items() if passes == this_pass]
        self._left.sort(key=lambda number: (leased[number][1] > 0, -number))
        return bool(self._left)
