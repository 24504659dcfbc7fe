"""The points that a simulated worker has visited since its last contribution."""

from collections.abc import Callable

from polyrhythm.core.worker.window import Window
from polyrhythm.sim.model.points import SimPoints
from polyrhythm.sim.model.statistics import ChunkMemory, SimMemory
from polyrhythm.wire.messages import ChunkProgress, Leased


class SimVisits:
    def __init__(self, window: Window, take_received: Callable[[int], ChunkMemory | None]) -> None:
        """`window` gets the points that are visited. `take_received` returns the memory of the
        points of a chunk, if they came from another worker."""
        self.lease: Leased | None = None
        """The newest lease."""
        self.ever = 0
        self.memory: SimMemory | None = None
        """Kind statistics: what the points of this worker have added to its row (the sum that
        servers keep for it)."""
        self._take_received = take_received
        self._window = window
        self._cursor = SimPoints()
        self._taken: Leased | None = None
        """The lease whose points are visited."""

    def take_lease(self, lease: Leased) -> bool:
        """Visit the points of this lease from now on. Returns whether the lease is a new one."""
        if lease is self._taken:
            return False
        self._taken = lease
        if self.memory is not None:
            self.memory.visit(self._cursor.moved())
        if self._cursor.take(lease, None if self.memory is None else self.memory.known):
            self._window.drop()  # the worker was evicted
        if self.memory is not None:
            self.memory.take(lease, self._cursor.at)
            held = [each.chunk for each in lease.chunks]
            for chunk in (*held, *(send.chunk for send in lease.sends)):
                if not self.memory.knows(chunk):
                    found = self._take_received(chunk)
                    if found is not None:
                        self.memory.adopt(chunk, found)
        self._window.begin(lease.number, self._cursor.everything)
        return True

    def memory_of(self, chunk: int) -> ChunkMemory | None:
        """The memory of the points of a chunk; None unless the kind is statistics."""
        return None if self.memory is None else self.memory.of(chunk)

    def cut_at(self, least: int) -> None:
        """Set the smallest number of points in a batch."""
        self._cursor.least = least

    def left(self, points: int) -> int:
        """How many of the next `points` points the lease contains. Without a lease, all of them."""
        return points if self.lease is None else self._cursor.left(points)

    def visit(self, points: int) -> int:
        """Visit about this many points; returns how many were visited."""
        if self.lease is not None:
            points = self._cursor.visit(points)
        self._window.note(points)
        self.ever += points
        return points

    def collect(self) -> tuple[ChunkProgress, ...]:
        """Return the progress since the last contribution."""
        if self.memory is not None:
            self.memory.visit(self._cursor.moved())
        return self._cursor.collect()

    @property
    def pending(self) -> bool:
        """Whether there is something to contribute: steps, or the subtraction of a chunk that was
        given up."""
        return self._window.steps > 0 or (self.memory is not None and self.memory.pending)
