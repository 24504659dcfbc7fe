"""The points that a training loop has visited since its last contribution."""

from collections.abc import Callable, Sequence

from polyrhythm.runtime.worker.loop import UserLoop
from polyrhythm.wire.messages import ChunkProgress, Leased


class Visits:
    """The points visited since the last contribution, and the lease under which the first of them
    was visited."""

    def __init__(self) -> None:
        self.points = 0.0
        self.everything = 0
        """The number of points in this worker's lease; 0 if it is not known."""
        self.unstepped = 0
        """The number of batches since the last step."""
        self.in_step = 0.0
        """The number of points in the batches since the last step; if no batch has followed the
        last step, the points of that step, because another step may be made with them."""
        self.last = 0
        """The number of points in the last batch."""
        self.dropped = 0.0
        """How many of `points` were in batches that the training loop has dropped: no gradient was
        computed with them. They count as visited, but have no weight."""
        self.reported = -1
        """How many points the last `collect` reported as visited; -1: as many as it returned."""
        self._progress: dict[int, ChunkProgress] = {}
        self._lease = 0
        self._before: tuple[float, dict[int, ChunkProgress], float] = (0.0, {}, 0.0)
        self.put_back: Callable[[int], None] | None = None
        """A function that gives back the points of the last batches, so that they are visited
        again; None if that is not possible."""

    def begin(self, lease: int) -> None:
        """Note the lease of the points that follow. If points were visited since the last
        contribution, the lease of the first one counts."""
        if not self.pending:
            self._lease = lease

    def note(self, points: int, progress: Sequence[ChunkProgress]) -> None:
        """The training loop gets a batch of this many points."""
        if self.put_back is not None and not self.unstepped:
            self._before = (self.points, dict(self._progress), self.dropped)
        self._count(points)
        self._progress.update({step.chunk: step for step in progress})

    def _count(self, points: int) -> None:
        if not self.unstepped:
            self.in_step = 0.0
        self.unstepped += 1
        self.points += points
        self.in_step += points
        self.last = points

    def drop_batch(self) -> None:
        """The training loop has dropped the last batch, and uses gradients of earlier ones."""
        self.dropped += self.last
        self.in_step -= self.last

    def drop_batches(self) -> None:
        """The training loop has dropped all batches since the last step."""
        self.dropped += self.in_step
        self.in_step = 0.0
        self.unstepped = 0

    def stepped(self) -> None:
        """A step was made with the points of all batches so far."""
        self.unstepped = 0

    @property
    def returnable(self) -> bool:
        """Whether `take_back` is possible."""
        return self.put_back is not None

    def take_back(self) -> None:
        """Give back the points of the batches since the last step, so that they are visited
        again."""
        assert self.put_back is not None
        self.points, self._progress, self.dropped = self._before
        self.put_back(self.unstepped)
        self.unstepped = 0

    def drop(self) -> None:
        """Forget the points: they will never count."""
        self.points, self._progress, self.unstepped = 0.0, {}, 0
        self.in_step = self.dropped = 0.0

    def close(self) -> None:
        """No model will make a further step with the batches so far."""

    @property
    def pending(self) -> bool:
        """Whether points were visited since the last contribution."""
        return self.points > 0

    def collect(self) -> tuple[float, tuple[ChunkProgress, ...], int]:
        """Return the number of points (without the points of dropped batches), the progress through
        chunks, and the number of the lease under which the first point was visited. Then begin at
        zero."""
        points, progress = self.points - self.dropped, tuple(self._progress.values())
        in_step = self.in_step
        self.drop()
        self.in_step = in_step
        return points, progress, self._lease


class VisitedPasses:
    """How often the training loop has visited all points of its lease. A batch counts as visited
    when the loop gets it."""

    def __init__(self, loop: UserLoop) -> None:
        self.first = 0
        self._loop = loop
        self._been: dict[int, int] | None = None
        """Per chunk that this worker has visited, its passes. None: passes are not counted."""

    def begin(self, lease: Leased) -> None:
        """A training loop over the points of this lease begins."""
        if self._been is None:
            self._been = {}
            self.first = min((chunk.passes for chunk in lease.chunks), default=0)

    def visited(self, progress: Sequence[ChunkProgress]) -> None:
        if self._been is not None:
            self._been.update({step.chunk: step.passes for step in progress})

    @property
    def now(self) -> int | None:
        been, lease = self._been, self._loop.lease
        if been is None or lease is None:
            return None if been is None else self.first
        passes = (max(chunk.passes, been.get(chunk.chunk, 0)) for chunk in lease.chunks)
        return min(passes, default=self.first)
