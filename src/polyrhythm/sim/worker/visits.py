"""The points that a simulated worker has visited since its last contribution."""

from collections.abc import Callable

from polyrhythm.sim.model.points import SimPoints
from polyrhythm.sim.model.statistics import ChunkMemory, SimMemory
from polyrhythm.wire.messages import ChunkProgress, Leased


class SimVisits:
    __slots__ = (
        "_cursor",
        "_taken",
        "ever",
        "everything",
        "lease",
        "lease_number",
        "memory",
        "points",
        "steps",
        "take_received",
    )

    def __init__(self) -> None:
        self.lease: Leased | None = None
        self.lease_number = 0
        self.steps = 0
        """The number of steps since the last contribution. `points` is the number of their
        points."""
        self.points = 0
        self.ever = 0
        self.everything = 0
        """The number of points in the lease; 0 if there is no lease."""
        self.memory: SimMemory | None = None
        """Kind statistics: what the points of this worker have added to its row."""
        self.take_received: Callable[[int], ChunkMemory | None] = lambda chunk: None
        """Returns the memory of the points of a chunk, if they came from another worker."""
        self._cursor = SimPoints()
        self._taken: Leased | None = None
        """The lease whose points are visited."""

    def take_lease(self, lease: Leased) -> bool:
        """Visit the points of this lease from now on. Returns whether the lease is a new one."""
        new = lease is not self._taken
        if new:
            self._take_new(lease)
        if not self.points:
            self.lease_number = lease.number
        return new

    def _take_new(self, lease: Leased) -> None:
        self._taken = lease
        if self.memory is not None:
            self.memory.visit(self._cursor.moved())
        if self._cursor.take(lease, None if self.memory is None else self.memory.known):
            self.points = self.steps = 0  # the worker was evicted, so these points never count
        if self.memory is not None:
            self.memory.take(lease, self._cursor.at)
            held = [each.chunk for each in lease.chunks]
            for chunk in (*held, *(send.chunk for send in lease.sends)):
                if not self.memory.knows(chunk):
                    found = self.take_received(chunk)
                    if found is not None:
                        self.memory.adopt(chunk, found)
        self.everything = self._cursor.everything

    def memory_of(self, chunk: int) -> ChunkMemory | None:
        """The memory of the points of a chunk; None unless the kind is statistics."""
        return None if self.memory is None else self.memory.of(chunk)

    def cut_at(self, least: int) -> None:
        """Set the smallest number of points in a batch."""
        self._cursor.least = least

    def left(self, points: int) -> int:
        """How many points a visit of `points` points would find."""
        return points if self.lease is None else self._cursor.left(points)

    def visit(self, points: int, steps: int) -> None:
        if self.lease is not None:
            points = self._cursor.visit(points)
        self.steps += steps
        self.points += points
        self.ever += points

    def collect(self) -> tuple[int, int, tuple[ChunkProgress, ...]]:
        """Return the points, steps and progress for a contribution, and begin to count anew."""
        points, steps = self.points, self.steps
        self.steps = self.points = 0
        if self.memory is not None:
            self.memory.visit(self._cursor.moved())
        return points, steps, self._cursor.collect()

    @property
    def pending(self) -> bool:
        """Whether there is something to contribute: steps, or the subtraction of a chunk that was
        given up."""
        return self.steps > 0 or (self.memory is not None and self.memory.pending)
