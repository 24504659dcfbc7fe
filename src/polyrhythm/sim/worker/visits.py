"""The points that a simulated worker has visited since its last contribution."""

from polyrhythm.sim.model.points import SimPoints
from polyrhythm.wire.messages import ChunkProgress, Leased


class SimVisits:
    def __init__(self) -> None:
        self.lease: Leased | None = None
        self.lease_number = 0
        self.steps = 0
        """Steps since the last contribution. `points` counts the points of these steps."""
        self.points = 0
        self.ever = 0
        self.everything = 0
        """The number of points in the lease; 0 if there is no lease."""
        self._cursor = SimPoints()

    def take_lease(self) -> None:
        if self.lease is None:
            return
        if self._cursor.take(self.lease):
            self.points = 0  # the worker was evicted, so these points never count
        self.everything = self._cursor.everything
        if not self.points:
            self.lease_number = self.lease.number

    def cut_at(self, least: int) -> None:
        """Set the smallest number of points in a batch."""
        self._cursor.least = least

    def left(self, points: int) -> int:
        """How many of the next `points` points are left."""
        return points if self.lease is None else self._cursor.left(points)

    def visit(self, points: int, steps: int) -> None:
        if self.lease is not None:
            points = self._cursor.visit(points)
        self.steps += steps
        self.points += points
        self.ever += points

    def collect(self) -> tuple[int, int, tuple[ChunkProgress, ...]]:
        """Return the points, steps and progress for a contribution, and set them to zero."""
        points, steps = self.points, self.steps
        self.steps = self.points = 0
        return points, steps, self._cursor.collect()
