"""How many points the next batch of a worker has, as its cadence demands (`core/worker/cadence.py`).

*Batches whose gradients the user accumulates have the same number of points, so that the mean of
their gradients is the mean over their points.*
"""

from collections.abc import Callable, Sequence

from polyrhythm.core.worker.cadence import Cadence, Standing, after_step
from polyrhythm.learn.visits import Visits
from polyrhythm.runtime.worker.loop import UserLoop


class BatchPlan:
    def __init__(
        self, cadence: Cadence, visits: Visits, loop: UserLoop, standing: Callable[[], Standing]
    ) -> None:
        """`standing`: returns what the worker has done since its last contribution."""
        self._cadence = cadence
        self._visits = visits
        self._loop = loop
        self._standing = standing
        self._batch = 0
        """The number of points that were asked for as the present batch."""

    def next_points(self, ahead: Sequence[int] = ()) -> int:
        """Return the number of points of the next batch. `ahead`: the points of batches that are
        loaded and come before it."""
        if self._visits.unstepped and not ahead:
            return self._batch
        standing = self._standing()
        for points in ahead:
            standing = after_step(self._cadence, standing, self._loop.terms, points)
        return self._cadence.next_points(standing, self._loop.terms)

    def fits(self, points: int) -> bool:
        """Whether a batch that was loaded ahead, and planned with this many points, may be the next
        one."""
        if self._visits.unstepped:
            return points == self._batch
        return self._cadence.fits(points, self._standing(), self._loop.terms)

    def begin_batch(self, points: int) -> None:
        """The training loop gets a batch for which this many points were asked."""
        self._batch = points
