"""How many points the next batch of a worker has, as its cadence demands (`core/worker/cadence.py`).

*Batches whose gradients the user accumulates have the same number of points, so that the mean of
their gradients is the mean over their points. A batch that the user's loop drops is not accumulated:
`core/worker/batch_sizes.py` chooses the size of the batch after it.*
"""

from collections.abc import Callable, Sequence

from polyrhythm.core.worker.batch_sizes import UsedSizes
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
        self.sizes = UsedSizes()
        self._whole = 1
        """The size of the batches that the user's loop asks for."""
        self._batch = 0
        """The number of points that were requested for the present batch."""

    def begin(self, batch: int, least: int) -> None:
        """The user's loop takes batches of this size, and none smaller than `least`."""
        self._whole = batch
        self._cadence.begin(batch, least)

    def next_points(self, ahead: Sequence[int] = ()) -> int:
        """Return the number of points of the next batch. `ahead`: the number of points in each batch
        that is loaded already and comes before this one."""
        if self._visits.unstepped and not ahead:
            return self._batch
        standing = self._standing()
        for points in ahead:
            standing = after_step(self._cadence, standing, self._loop.terms, points)
        return max(self._least, self._cadence.next_points(standing, self._loop.terms))

    @property
    def _least(self) -> int:
        return self.sizes.least(self._whole)

    def fits(self, points: int) -> bool:
        """Whether a batch that was loaded ahead, and planned with this many points, may be the next
        one."""
        if self._visits.unstepped:
            return points == self._batch
        if points < self._least:
            return False
        return self._cadence.fits(points, self._standing(), self._loop.terms)

    def share(self) -> float:
        """The size of the step that the training loop has just made, as a share of a step over whole
        batches."""
        batches = max(1, self._visits.unstepped)
        return min(1.0, self._visits.in_step / (batches * self._whole))

    def begin_batch(self, points: int) -> None:
        """The training loop gets a batch for which this many points were requested."""
        self._batch = points

    def used(self, points: int) -> None:
        """The training loop has computed a gradient with a batch of this many points."""
        self.sizes.used(points)
        self._cadence.at_least(self._least)

    def dropped(self, points: int) -> None:
        """The training loop has dropped a batch of this many points."""
        self.sizes.dropped(points)
