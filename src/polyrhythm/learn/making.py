"""Make a step with the gradients of the user's code, or prepare them for the servers, and check
that the user's code has not changed what the job relies on.
"""

from collections.abc import Callable, Sequence
from functools import partial

from polyrhythm.errors import ModelChanged, NotFinite
from polyrhythm.learn.attached import AttachedOptimizer
from polyrhythm.learn.attached_models import AttachedModels
from polyrhythm.learn.left_out import SCALER_SKIPPED, LeftOut, not_made
from polyrhythm.learn.sparse import SparseGradients
from polyrhythm.learn.written import WrittenParameters
from polyrhythm.runtime.worker.node import WorkerNode
from polyrhythm.tensors.flat import FlatModel


class StepMaker:
    """`say` prints a message once for all workers of a job. `on_servers`: the servers make the
    steps."""

    def __init__(
        self,
        node: WorkerNode,
        flat: FlatModel,
        models: AttachedModels,
        optimizers: Sequence[AttachedOptimizer],
        left_out: LeftOut,
        say: Callable[[str], None],
        *,
        on_servers: bool,
    ) -> None:
        self._flat = flat
        self._models = models
        self._left_out = left_out
        self._on_servers = on_servers
        self._sparse = [
            SparseGradients(
                m.inner, m.module, flat, say, on_servers=on_servers, several=models.several
            )
            for m in optimizers
        ]
        self._written: WrittenParameters | None = None
        if on_servers:
            self._written = WrittenParameters(flat, lambda: node.landed)

    def make(self, model: AttachedOptimizer, points: float, share: Callable[[], float]) -> bool:
        """Make a step, or prepare the gradients for the servers. Returns False if the step is left
        out because it is not finite. `points`: the number of points of the step; they have no
        weight if the step is left out. `share`: see `AttachedOptimizer.step_locally`."""
        number = model.number if self._models.several else None
        prepare = partial(self._sparse[model.number].prepare, model.parameters)
        closed = model.has_closure and not self._on_servers
        if not closed:
            prepare()
        if not closed and self._left_out.step(points, number):
            return False
        if not self._on_servers:
            model.step_locally(share(), prepare)
            if closed and self._left_out.stepped(points):
                model.take_back()
                return False
            model.end_local_step()
        return True

    def finish(self, points: float, share: Callable[[], float]) -> bool:
        """Make a step with the gradients that the user's code has accumulated since its last step.
        If there are no gradients, or if they are still scaled for half precision, leave the step
        out. Returns whether it was made."""
        model = self._models.only
        if model.scales or model.needs_closure or not model.has_gradient:
            scaled = self._models.take_scaled()
            self._left_out.leave(points, NotFinite(SCALER_SKIPPED) if scaled else not_made())
            return False
        return self.make(model, points, share)

    def check(self) -> None:
        """Raise an error if the user's code has replaced a tensor of the model, or has written to a
        parameter that only the servers change."""
        try:
            self._models.check_tensors()
            self._flat.check_homes()
            if self._written is not None:
                self._written.check()
        except ModelChanged as error:
            raise self._left_out.changed(error) from None

    def version_came(self) -> None:
        """The worker continues with the parameters of a new version."""
        if self._written is not None:
            self._written.version_came()
