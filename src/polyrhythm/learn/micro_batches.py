"""The micro-batches of a round that ends by the clock: the worker adds up their gradients, measures
their time, and abandons one that takes too long.
"""

from polyrhythm.core.worker.cadence import Cadence
from polyrhythm.learn.visits import Visits
from polyrhythm.runtime.worker.node import WorkerNode
from polyrhythm.tensors.flat import FlatModel
from polyrhythm.tensors.kinds import Kind


class MicroBatches:
    def __init__(
        self,
        node: WorkerNode,
        flat: FlatModel,
        visits: Visits,
        kind: Kind,
        cadence: Cadence,
        *,
        several: bool,
    ) -> None:
        """`several`: the worker has several models."""
        self._node = node
        self._flat = flat
        self._visits = visits
        self._kind = kind
        self._cadence = cadence
        self._several = several
        self._ended_ns = 0
        """The computing time of this round at the end of the last micro-batch."""
        self._abandoned_ns = 0
        self.gathered = 0.0
        """The number of points of the micro-batches of this round."""

    def begin_round(self) -> None:
        self._ended_ns = 0
        self.gathered = 0.0

    def abandons(self) -> bool:
        """Whether to abandon the step that was just computed because it took too long. Only points
        from `worker.batches` are abandoned, because only these can be visited again."""
        if not self._visits.returnable:
            return False
        return self._cadence.abandons(-self._node.interval_left_ns(), self.gathered)

    def abandon(self) -> None:
        """The micro-batch that was just computed is abandoned: count its time."""
        self._abandoned_ns += self._node.timesheet.computed_ns() - self._ended_ns
        self._node.look()

    def take_abandoned_ns(self) -> int:
        """Return the time of the micro-batches that were abandoned since the last call."""
        abandoned_ns, self._abandoned_ns = self._abandoned_ns, 0
        return abandoned_ns

    def drop(self) -> None:
        """The training loop has dropped micro-batches: their time does not count as computing. Also
        read whether the lead has asked all workers to contribute."""
        self._ended_ns = self._node.timesheet.computed_ns()
        self._node.look()

    def end(self, weighed: float, *, skipped: bool) -> None:
        """End a micro-batch: gather the gradients unless the step is `skipped`, measure the time,
        and read whether the lead has asked all workers to contribute. `weighed`: the number of
        points since the last contribution, without the points of dropped batches."""
        points = weighed - self.gathered
        self.gathered += points
        if not skipped:
            self._kind.gather(self._flat, points or 1.0)
        # a further step with the same points: its time is added to the time of the next points
        if self._several and not points:
            self._node.look()
            return
        now_ns = self._node.timesheet.computed_ns()
        self._cadence.measured(points, now_ns - self._ended_ns)
        self._ended_ns = now_ns
        self._node.look()
