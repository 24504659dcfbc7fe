"""Makes a step with the gradients of the user's code, or prepares them for the servers. Also checks
that the user's code has not changed what the job relies on."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from xxhash import xxh3_64_intdigest

from polyrhythm.core.worker.window import Window
from polyrhythm.errors import ModelChanged, NotFinite, UsageError
from polyrhythm.learn.attached import AttachedModels, AttachedOptimizer
from polyrhythm.runtime.worker.node import WorkerNode
from polyrhythm.tensors.flat import FlatModel
from polyrhythm.wire.messages.reasons import Reason, no_step, not_finite

_NO_ROWS = (
    "rows are contributed only for embeddings with sparse=True whose optimizer is SparseAdam, or SGD"
    " or Adagrad without weight decay"
)
_SEVERAL = "in a job with several models, no gradient is contributed as rows"


class SparseGradients:
    """Prepares sparse gradients, such as those of embeddings with `sparse=True`, for contributions.

    SGD, Adagrad and SparseAdam take gradients of rows (`tensors/rows.py`). For all other optimizers
    on servers, a sparse gradient is made dense, and the user gets a message about it. With kind
    local the worker's optimizer gets the gradients, so they are made dense only if it is an
    optimizer of torch that refuses sparse ones.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        model: torch.nn.Module,
        flat: FlatModel,
        say: Callable[[str], None],
        *,
        on_servers: bool,
        several: bool,
    ) -> None:
        """`say` prints a message once for all workers of a job. `on_servers`: the servers, and not
        this worker, make the steps. `several`: the job has several models."""
        self._optimizer = type(optimizer).__name__
        self._rows_only = on_servers and isinstance(optimizer, torch.optim.SparseAdam)
        no_rows = _SEVERAL if several else _NO_ROWS
        self._why = no_rows if on_servers else "it takes no sparse gradients"
        self._keeps = not on_servers and not _refuses_sparse(optimizer)
        self._model = model
        self._rows = flat.row_tensors if on_servers else set()
        self._say = say
        self._said: set[int] = set()

    def prepare(self, parameters: list[torch.Tensor]) -> None:
        """Convert the sparse gradients that are not contributed row by row to dense tensors."""
        for parameter in parameters:
            gradient = parameter.grad
            if gradient is None:
                continue
            if gradient.layout is torch.strided:
                if self._rows_only:
                    raise UsageError(
                        f"the gradient of {self._name_of(parameter)!r} is dense, and SparseAdam takes"
                        " sparse gradients: use nn.Embedding(sparse=True), or Adam"
                    )
            elif not self._keeps and (
                id(parameter) not in self._rows or gradient.sparse_dim() != 1
            ):
                parameter.grad = gradient.to_dense()
                if id(parameter) not in self._said:
                    self._said.add(id(parameter))
                    self._say(
                        f"the sparse gradient of {self._name_of(parameter)!r} is made dense for"
                        f" {self._optimizer}; {self._why}"
                    )

    def _name_of(self, parameter: torch.Tensor) -> str:
        names = (name for name, each in self._model.named_parameters() if each is parameter)
        return next(names, "?")


def _refuses_sparse(optimizer: torch.optim.Optimizer) -> bool:
    """Whether this is an optimizer of torch that raises an error if a gradient is sparse. An
    optimizer of the user may accept any gradient."""
    if type(optimizer) in (torch.optim.SGD, torch.optim.Adagrad):
        return any(group["weight_decay"] for group in optimizer.param_groups)
    takes = (torch.optim.SparseAdam, torch.optim.LBFGS)
    return type(optimizer).__module__.startswith("torch.optim.") and type(optimizer) not in takes


_FIRST = 4
"""How many of the first versions are checked. After these, versions 8, 16, 32 and so on are
checked."""
_SUSPECTED = 2
"""The number of versions that are checked after torch has counted a change."""


class WrittenParameters:
    """Detects values that the user's code writes into parameters although the servers make the
    steps.

    With kind gradient, every version from the servers replaces the worker's parameters. A value
    that the loop itself writes, such as a clipped weight, would be lost without a message. The
    check costs little, because it compares the digests of the parameters only after some versions:
    the first ones, and then ever more rarely. *A change that torch counts (`Tensor._version`) is
    checked whenever it occurs; only a write through `.data` can remain unseen until the next
    sample.*
    """

    def __init__(self, flat: FlatModel, landed: Callable[[], int]) -> None:
        """`landed` returns how many slices of versions have arrived. A change of this number means
        that the parameters may have changed too."""
        self._trained = flat.trained
        self._landed = landed
        self._number = 0
        self._counted = self._writes()
        self._suspected = 0
        self._before: tuple[int, dict[str, int]] | None = None
        """At the last version: how many slices had arrived, and the digest of every parameter."""
        self.on_version()

    def on_version(self) -> None:
        """Remember the parameters of the new version with which the worker continues."""
        number, self._number = self._number, self._number + 1
        due = number < _FIRST or number & (number - 1) == 0
        self._before = None
        if due or self._suspected:
            self._suspected = max(0, self._suspected - 1)
            self._before = self._landed(), self._digests()
        self._counted = self._writes()

    def check(self) -> None:
        """Raise ModelChanged if a parameter differs from the parameter in the version."""
        if self._writes() != self._counted:
            self._suspected = _SUSPECTED
        if self._before is None or self._before[0] != self._landed():
            return
        now = self._digests()
        for name, digest in self._before[1].items():
            if now[name] != digest:
                raise ModelChanged(
                    f"the training loop has changed the parameter {name!r} itself, which the next"
                    " version from the servers would undo: give the job --kind local, with which"
                    " such changes are contributed, or change the model before attach()"
                )

    def _writes(self) -> int:
        """How many times the parameters were changed in place, as torch counts it. Versions that
        arrive do not count."""
        return sum([tensor._version for _, tensor in self._trained])

    def _digests(self) -> dict[str, int]:
        """A digest of every parameter, by name."""
        return {name: _digest(tensor.detach()) for name, tensor in self._trained}


def _digest(tensor: torch.Tensor) -> int:
    """The digest of a parameter, whose elements fill its memory without gaps, in any order."""
    return xxh3_64_intdigest(
        tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8).cpu().numpy().data
    )


SCALER_SKIPPED = "a GradScaler made no step, because a gradient holds NaN or infinity"
NO_STEP = "the training loop made no step with its last points"
NOT_MADE = "step"
"""The value of `NotFinite.what` for a step that the training loop has not made."""


def not_made() -> NotFinite:
    """The error for a training loop that has made no step."""
    return NotFinite(NO_STEP, what=NOT_MADE)


def reason_of(error: NotFinite) -> Reason:
    if error.what == NOT_MADE:
        return no_step(error.step, str(error))
    return not_finite(error.what, error.tensor, error.step, str(error))


class StepMaker:
    """`say` prints a message once for all workers of a job."""

    def __init__(
        self,
        node: WorkerNode,
        flat: FlatModel,
        models: AttachedModels,
        optimizers: Sequence[AttachedOptimizer],
        window: Window,
        say: Callable[[str], None],
    ) -> None:
        assert node.job is not None
        self.skips = node.job.on_nan == "skip"
        """Whether steps that are not finite are left out instead of ending the job."""
        self._worker = node.name
        self._made = 0
        """The number of steps of this worker since it attached its model."""
        self._flat = flat
        self._models = models
        self._window = window
        self._say = say
        self._on_servers = on_servers = models.steps_on_servers
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
        if not (closed or self._made or model.has_gradient):
            self._say(
                "the first optimizer.step() found no gradient, so it changes nothing: call"
                " loss.backward() before it"
            )
        if not closed and not self._is_finite(points, lambda: self._flat.check_gradients(number)):
            return False
        if not self._on_servers:
            model.step_locally(share(), prepare)
            # with a closure, the gradients are known only after the step
            if closed and not self._is_finite(points, self._flat.check_parameters):
                model.take_back()
                return False
            model.end_local_step()
        return True

    def finish(self, points: float, share: Callable[[], float]) -> bool:
        """Make a step with the gradients that the user's code has accumulated since its last step.
        Leave the step out if there are no gradients, or if they are still scaled for half
        precision. Returns whether the step was made."""
        model = self._models.only
        if model.scales or model.needs_closure or not model.has_gradient:
            scaled = self._models.take_scaled()
            self.leave_out(points, NotFinite(SCALER_SKIPPED) if scaled else not_made())
            return False
        return self.make(model, points, share)

    def _is_finite(self, points: float, check: Callable[[], None]) -> bool:
        """Whether the worker's step, over this many points, is finite. Otherwise the step is left
        out."""
        if self.skips:
            try:
                check()
            except NotFinite as error:
                self.leave_out(points, error)
                return False
        self._made += 1
        return True

    def leave_out(self, points: float, why: NotFinite) -> None:
        """Leave out a step over this many points."""
        self._made += 1
        self._window.leave_out(points, self.named(why), made=why.what != NOT_MADE)
        self._flat.restore_buffers(sums=False)

    def named(self, error: NotFinite) -> NotFinite:
        """The error, with the name of the worker and the number of its step added."""
        return error.at(self._worker, self._made)

    def changed(self, error: ModelChanged) -> ModelChanged:
        """The error about a changed model, with the name of the worker and the number of its step
        added."""
        return error.at(self._worker, self._made)

    def check(self) -> None:
        """Raise an error if the user's code has replaced a tensor of the model, or has written to a
        parameter that only the servers change."""
        try:
            self._models.check_tensors()
            self._flat.check_homes()
            if self._written is not None:
                self._written.check()
        except ModelChanged as error:
            raise self.changed(error) from None

    def on_version(self) -> None:
        """Remember the parameters of the new version with which the worker continues."""
        if self._written is not None:
            self._written.on_version()
