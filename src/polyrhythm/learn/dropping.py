"""Batches that the training loop drops: the loop asks for the next batch without having computed a
gradient.

*The points of such a batch count as visited, or a pass would never end, but they have no weight. The
next batch has the full size, so that a loop that skips small batches still makes its steps.*
"""

from collections.abc import Callable

from polyrhythm.learn.attached import AttachedOptimizer
from polyrhythm.learn.batch_plan import BatchPlan
from polyrhythm.learn.visits import Visits


class Dropping:
    def __init__(
        self,
        visits: Visits,
        plan: BatchPlan,
        model: AttachedOptimizer,
        say: Callable[[str], None],
    ) -> None:
        """`say` prints a message once for all workers of a job."""
        self._visits = visits
        self._plan = plan
        self._model = model
        self._say = say
        self._gradients: list[tuple[int, int]] = []
        """The state of the gradients when the loop last asked for a batch, if the loop accumulates
        gradients."""

    def stepped(self) -> None:
        """The training loop has made a step with all batches since its last step."""
        if self._visits.unstepped:
            self._plan.used(self._visits.last)
        self._gradients = []

    def all_dropped(self) -> bool:
        """The loop asks for the next batch, and has made no step with the last one. Returns whether
        it has dropped all batches since its last step."""
        gradients = self._model.gradient_states()
        if gradients and gradients != self._gradients:
            self._plan.used(self._visits.last)
            self._gradients = gradients
            return False
        self._plan.dropped(self._visits.last)
        if gradients:
            self._visits.drop_batch()
        else:
            self._visits.drop_batches()
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
