"""The points that a training loop has visited, in a job with several models.

*The points of a batch count as visited once, when all steps with them are made: with the first
contribution after the next batch has begun, or when no batch follows.* Otherwise the last pass of a
job would be over at the first step with its last batch, and the steps of the other models with that
batch would be missing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from polyrhythm.learn.visits import Visits
from polyrhythm.wire.messages import ChunkProgress


@dataclass(slots=True)
class _Batches:
    """Batches that were drawn one after the other. `lease`: the lease of the first batch."""

    points: int = 0
    progress: dict[int, ChunkProgress] = field(default_factory=dict)
    lease: int = 0

    def add(self, other: "_Batches") -> None:
        if not self.points:
            self.lease = other.lease
        self.points += other.points
        self.progress.update(other.progress)


class SharedVisits(Visits):
    def __init__(self) -> None:
        super().__init__()
        self._drawn = 0
        """The number of the lease from which the next batch is drawn."""
        self._open = _Batches()
        """The newest batches. The user's loop may make another step with them."""
        self._closed = _Batches()
        """Batches with which all steps have been made, but which no contribution has reported
        yet."""

    def begin(self, lease: int) -> None:
        self._drawn = lease

    def note(self, points: int, progress: Sequence[ChunkProgress]) -> None:
        if not self.unstepped:
            self.close()
        batch = _Batches(points, {step.chunk: step for step in progress}, self._drawn)
        self._open.add(batch)
        self._count(points)

    def close(self) -> None:
        """No model will make a further step with the batches so far."""
        if self._open.points:
            self._closed.add(self._open)
            self._open = _Batches()

    def drop(self) -> None:
        super().drop()
        self._open, self._closed = _Batches(), _Batches()

    @property
    def pending(self) -> bool:
        return self._open.points > 0 or self._closed.points > 0

    def collect(self) -> tuple[float, tuple[ChunkProgress, ...], int]:
        points, closed = self.points, self._closed
        lease = closed.lease if closed.points else self._open.lease
        self.points, self._closed = 0.0, _Batches()
        self.reported = closed.points
        return points, tuple(closed.progress.values()), lease
