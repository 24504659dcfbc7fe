"""The kinds of contributions: what a worker sends, and how servers add it up and fold it.

*gradient*: the worker sends the mean gradient of its points, and the servers make the optimizer's
step. *local*: the worker's optimizer makes steps, and the worker sends the change of its
parameters; the servers add the mean of these changes, or make a step of the outer optimizer with it
(`core/kinds.py`). *statistics*: the worker sends the change of its row of statistics; the servers
keep the rows and publish their sum (`tensors/statistics.py`). A new kind is one class here, one
entry in `KINDS`, and its traits in `core/kinds.py`.
"""

from collections.abc import Sequence
from typing import ClassVar, Protocol

import torch

from polyrhythm.core.kinds import GRADIENT, LOCAL, STATISTICS, keeps_rows, only_scales, parse_outer
from polyrhythm.core.placement.slices import BUFFERS, Layout, Slice
from polyrhythm.core.sync.registry import traits_of
from polyrhythm.tensors.buffers import Buffers
from polyrhythm.tensors.dtypes import held_dtype
from polyrhythm.tensors.flat import FlatModel
from polyrhythm.tensors.held import Held
from polyrhythm.tensors.optimizers import SPARSE_ADAM, can_fuse
from polyrhythm.tensors.sparse_adam import SparseAdam
from polyrhythm.tensors.statistics import Latest, RowSums
from polyrhythm.tensors.updater import Updater
from polyrhythm.tensors.updaters import Addition, Mean, Optimizer, Outer, Sum
from polyrhythm.wire.messages import JobSpec, ModelSpec, OptimizerSpec


class Kind(Protocol):
    steps_on_servers: ClassVar[bool]
    """Whether servers run the optimizer. Otherwise the worker runs it, between contributions."""

    def updater(
        self, layout: Layout, job: JobSpec, optimizer: OptimizerSpec, held: Sequence[Held]
    ) -> Updater:
        """Return the updater that adds up and folds contributions to these slices of one model's
        parameters. `optimizer`: the optimizer of this model, with the parameter groups of all
        models."""

    def remember(self, model: FlatModel) -> None:
        """Store the values of a new version. The changes in the worker's next contribution are
        relative to them."""

    def gather(self, model: FlatModel, points: float) -> None:
        """Add the gradients of a micro-batch of this many points to the sums for the next
        contribution."""

    def fill(
        self,
        model: FlatModel,
        push: Sequence[torch.Tensor],
        gathered: float | None,
        stepped: int | None = None,
    ) -> None:
        """Write a contribution into the push buffers. `gathered`: the total points of the
        micro-batches that `gather` added; None: the contribution is the current gradients.
        `stepped`: the number of the model that makes the step, if there are several."""


class Gradient:
    steps_on_servers: ClassVar[bool] = GRADIENT.steps_on_servers

    def updater(
        self, layout: Layout, job: JobSpec, optimizer: OptimizerSpec, held: Sequence[Held]
    ) -> Updater:
        if optimizer.name == SPARSE_ADAM:
            return SparseAdam(optimizer, held)
        return Optimizer(optimizer, held, fused=_can_fuse(layout, job, optimizer))

    def remember(self, model: FlatModel) -> None:
        model.remember(parameters=False)

    def gather(self, model: FlatModel, points: float) -> None:
        with torch.no_grad():
            model.gather(points)

    def fill(
        self,
        model: FlatModel,
        push: Sequence[torch.Tensor],
        gathered: float | None,
        stepped: int | None = None,
    ) -> None:
        if gathered is None:
            model.fill_gradients(push, stepped)
        else:
            model.fill_gathered(push, gathered)


class _Ungathered:
    """A kind whose workers gather nothing between two contributions."""

    def gather(self, model: FlatModel, points: float) -> None:
        """Does nothing: the changes are in the parameters, or the worker adds up differences."""


class Local(_Ungathered):
    steps_on_servers: ClassVar[bool] = LOCAL.steps_on_servers

    def updater(
        self, layout: Layout, job: JobSpec, optimizer: OptimizerSpec, held: Sequence[Held]
    ) -> Updater:
        outer = parse_outer(job.outer)
        if outer is None or only_scales(outer):
            return Mean(by_rate=outer is not None)
        outer = OptimizerSpec(outer.name, outer.groups * len(optimizer.groups))
        return Outer(outer, held, fused=_can_fuse(layout, job, outer))

    def remember(self, model: FlatModel) -> None:
        model.remember(parameters=True)

    def fill(
        self,
        model: FlatModel,
        push: Sequence[torch.Tensor],
        gathered: float | None,
        stepped: int | None = None,
    ) -> None:
        model.fill_changes(push)


class Statistics(_Ungathered):
    """Kind statistics: point-wise algorithms fill their contributions themselves
    (`learn/pointwise`)."""

    steps_on_servers: ClassVar[bool] = STATISTICS.steps_on_servers

    def updater(
        self, layout: Layout, job: JobSpec, optimizer: OptimizerSpec, held: Sequence[Held]
    ) -> Updater:
        return RowSums()

    def remember(self, model: FlatModel) -> None:
        model.remember(parameters=False)

    def fill(
        self,
        model: FlatModel,
        push: Sequence[torch.Tensor],
        gathered: float | None,
        stepped: int | None = None,
    ) -> None:
        raise AssertionError("a point-wise algorithm fills its contributions itself")


def _can_fuse(layout: Layout, job: JobSpec, optimizer: OptimizerSpec) -> bool:
    dtypes = [held_dtype(space, job) for space in layout.spaces if not space.buffers]
    return can_fuse(optimizer, dtypes)


KINDS: dict[str, Kind] = {
    "gradient": Gradient(),
    "local": Local(),
    "statistics": Statistics(),
}


def model_of(slice_: Slice, spec: ModelSpec) -> int:
    """The number of the model to which a slice of parameters belongs; BUFFERS for a slice of
    buffers. Each number has its own updater."""
    return BUFFERS if slice_.group == BUFFERS else spec.models[slice_.group]


def updaters_for(
    layout: Layout, job: JobSpec, spec: ModelSpec, held: Sequence[Held]
) -> dict[int, tuple[Updater, list[Held]]]:
    """Return the updaters of the parameters, by the number of the model, and of the buffers
    (BUFFERS), each with its slices."""
    slices: dict[int, list[Held]] = {}
    for each in held:
        slices.setdefault(model_of(each.slice, spec), []).append(each)
    return {
        model: (_updater(layout, job, spec, model, mine), mine) for model, mine in slices.items()
    }


def _updater(
    layout: Layout, job: JobSpec, spec: ModelSpec, model: int, held: Sequence[Held]
) -> Updater:
    if model == BUFFERS:
        return Latest() if keeps_rows(job.kind) else Buffers()
    if job.updater == "addition":
        return Addition() if traits_of(job.sync).rounds else Sum()
    # A slice has the number of its parameter group among the groups of all models, so the optimizer
    # gets all groups.
    optimizer = OptimizerSpec(spec.optimizers[model].name, spec.optimizer.groups)
    return KINDS[job.kind].updater(layout, job, optimizer, held)
