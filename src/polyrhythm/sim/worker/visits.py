"""The points of its lease that a simulated worker has visited, and not contributed yet."""

from polyrhythm.sim.model.points import SimPoints
from polyrhythm.wire.messages import ChunkProgress, Leased


class SimVisits:
    def __init__(self) -> None:
        self.lease: Leased | None = None
        self.lease_number = 0
        self.steps = 0
        """Steps since the last contribution. `points` are counted alike."""
        self.points = 0
        self.ever = 0
        self.everything = 0
        """All points of the lease; 0: there is none."""
        self._cursor = SimPoints()

    def take_lease(self) -> None:
        if self.lease is None:
            return
        if self._cursor.take(self.lease):
            self.points = 0  # the worker was evicted: these points will never count
        self.everything = self._cursor.everything
        if not self.points:
            self.lease_number = self.lease.number

    def cut_at(self, least: int) -> None:
        """No batch has fewer points than this."""
        self._cursor.least = least

    def left(self, points: int) -> int:
        """How many points are left, up to this many."""
        return points if self.lease is None else self._cursor.left(points)

    def visit(self, points: int, steps: int) -> None:
        if self.lease is not None:
            points = self._cursor.visit(points)
        self.steps += steps
        self.points += points
        self.ever += points

    def collect(self) -> tuple[int, int, tuple[ChunkProgress, ...]]:
        """Take the points, steps and progress for a contribution; begin at zero."""
        points, steps = self.points, self.steps
        self.steps = self.points = 0
        return points, steps, self._cursor.collect()
