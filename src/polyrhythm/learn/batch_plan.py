"""How many points the next batch of a worker has, as its cadence decides
(`core/worker/cadence.py`), and which batches the training loop has dropped."""

from collections.abc import Callable, Sequence

from polyrhythm.core.worker.batch_sizes import UsedSizes
from polyrhythm.core.worker.cadence import after_step
from polyrhythm.core.worker.window import Window
from polyrhythm.learn.attached import AttachedOptimizer
from polyrhythm.learn.contributor import Contributor
from polyrhythm.runtime.worker.loop import UserLoop


class BatchPlan:
    """*Batches whose gradients the user accumulates have the same number of points, so that the
    mean of their gradients is the mean over their points. A batch that the user's loop drops is not
    accumulated: `core/worker/batch_sizes.py` chooses the size of the batch after it.*"""

    def __init__(self, contributor: Contributor, window: Window, loop: UserLoop) -> None:
        self._cadence = contributor.cadence
        self._standing = contributor.standing
        self._window = window
        self._loop = loop
        self.sizes = UsedSizes()
        self._whole = 1
        """The size of the batches that the user's loop asks for."""
        self._batch = 0
        """The number of points that were requested for the present batch."""

    def begin(self, batch: int, least: int) -> None:
        """Set the size of the batches that the user's loop asks for, and the smallest size that it
        may get."""
        self._whole = batch
        self._cadence.begin(batch, least)

    def next_points(self, ahead: Sequence[int] = ()) -> int:
        """The number of points of the next batch. `ahead`: the number of points in each loaded
        batch that comes before it."""
        if self._window.batches and not ahead:
            return self._batch
        standing = self._standing()
        for points in ahead:
            standing = after_step(self._cadence, standing, self._loop.terms, points)
        return max(self._least, self._cadence.next_points(standing, self._loop.terms))

    @property
    def _least(self) -> int:
        return self.sizes.least(self._whole)

    def is_still_usable(self, points: int) -> bool:
        """Whether a batch with this many points, planned and loaded earlier, may be the next
        one."""
        if self._window.batches:
            return points == self._batch
        if points < self._least:
            return False
        return self._cadence.is_still_usable(points, self._standing(), self._loop.terms)

    def share(self) -> float:
        """The size of the step that the training loop has just made, as a share of a step over whole
        batches."""
        batches = max(1, self._window.batches)
        return min(1.0, self._window.batch_points / (batches * self._whole))

    def begin_batch(self, points: int) -> None:
        """Note that the training loop gets a batch. `points`: how many points were requested for
        it."""
        self._batch = points

    def on_used(self, points: int) -> None:
        """Note a batch of this many points with which the training loop has computed a gradient."""
        self.sizes.on_used(points)
        self._cadence.at_least(self._least)

    def on_dropped(self, points: int) -> None:
        """Note a batch of this many points that the training loop has dropped."""
        self.sizes.on_dropped(points)


class Dropping:
    """Detects batches that the training loop drops: the loop asks for the next batch without having
    computed a gradient.

    *The points of such a batch count as visited, or a pass would never end, but they have no
    weight. The next batch has the full size, so that a loop that skips small batches still makes
    its steps.*
    """

    def __init__(
        self,
        window: Window,
        plan: BatchPlan,
        model: AttachedOptimizer,
        say: Callable[[str], None],
    ) -> None:
        """`say` prints a message once for all workers of a job."""
        self._window = window
        self._plan = plan
        self._model = model
        self._say = say
        self._gradients: list[tuple[int, int]] = []
        """The state of the gradients when the loop last asked for a batch, if the loop accumulates
        gradients."""

    def on_stepped(self) -> None:
        """Note a step that the training loop has made with all batches since its last step."""
        if self._window.batches:
            self._plan.on_used(self._window.last_batch)
        self._gradients = []

    def all_dropped(self) -> bool:
        """Note that the loop asks for the next batch without having made a step with the last one.
        Returns whether it has dropped all batches since its last step."""
        gradients = self._model.gradient_states()
        if gradients and gradients != self._gradients:
            self._plan.on_used(self._window.last_batch)
            self._gradients = gradients
            return False
        self._plan.on_dropped(self._window.last_batch)
        if gradients:
            self._window.drop_batch()
        else:
            self._window.drop_batches()
            self._gradients = []
        if self._plan.sizes.warns():
            self._warn()
        return not gradients

    def _warn(self) -> None:
        sizes = self._plan.sizes
        use = ""
        if least := sizes.least_used:
            use = f"; it skips small batches; --min-batch {least} prevents such batches"
        self._say(
            "the training loop asked for the next batch before it had computed a gradient with"
            f" {sizes.dropped_points:,} of the first {sizes.points:,} points of a worker: if it skips"
            " these batches, their points count as visited, but the model does not learn from"
            f" them{use}"
        )
