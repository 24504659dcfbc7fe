"""The kinds of contributions: what a worker sends, and how servers add it up and fold it.

*gradient*: the worker sends the mean gradient of its points, and the servers make the optimizer's
step. *local*: the worker makes optimizer steps of its own and sends the change of its parameters;
the servers add the mean of these changes, or make a step of the outer optimizer with it
(`core/outer.py`). A new kind is one class here, one entry in `KINDS`, and its traits in
`core/kinds.py`.
"""

from collections.abc import Sequence
from typing import ClassVar, Protocol

import torch

from polyrhythm.core.kinds import GRADIENT, LOCAL
from polyrhythm.core.outer import only_scales, parse_outer
from polyrhythm.core.placement.slices import Layout
from polyrhythm.core.sync.registry import traits_of
from polyrhythm.tensors.buffers import Buffers
from polyrhythm.tensors.dtypes import DTYPES
from polyrhythm.tensors.flat import FlatModel
from polyrhythm.tensors.held import Held
from polyrhythm.tensors.optimizers import can_fuse
from polyrhythm.tensors.updaters import Addition, Mean, Optimizer, Sum, Updater
from polyrhythm.wire.messages import JobSpec, ModelSpec, OptimizerSpec


class Kind(Protocol):
    steps_on_servers: ClassVar[bool]
    """Whether servers run the optimizer. Otherwise the worker runs it, between contributions."""

    def updater(
        self, layout: Layout, job: JobSpec, spec: ModelSpec, held: Sequence[Held]
    ) -> Updater:
        """Return the updater that adds up and folds contributions to these slices of parameters."""

    def remember(self, model: FlatModel) -> None:
        """A worker has a new version: store the values from which the changes in its next
        contribution are computed."""

    def gather(self, model: FlatModel, points: float) -> None:
        """Add the gradients of a micro-batch of this many points to the sums for the next
        contribution."""

    def fill(self, model: FlatModel, push: Sequence[torch.Tensor], gathered: float | None) -> None:
        """Write a contribution into the push buffers. `gathered`: the total points of the
        micro-batches that `gather` added; None: the contribution is the current gradients."""


class Gradient:
    steps_on_servers: ClassVar[bool] = GRADIENT.steps_on_servers

    def updater(
        self, layout: Layout, job: JobSpec, spec: ModelSpec, held: Sequence[Held]
    ) -> Updater:
        return Optimizer(spec.optimizer, held, fused=_can_fuse(layout, spec.optimizer))

    def remember(self, model: FlatModel) -> None:
        model.remember(parameters=False)

    def gather(self, model: FlatModel, points: float) -> None:
        with torch.no_grad():
            model.gather(points)

    def fill(self, model: FlatModel, push: Sequence[torch.Tensor], gathered: float | None) -> None:
        if gathered is None:
            model.fill_gradients(push)
        else:
            model.fill_gathered(push, gathered)


class Local:
    steps_on_servers: ClassVar[bool] = LOCAL.steps_on_servers

    def updater(
        self, layout: Layout, job: JobSpec, spec: ModelSpec, held: Sequence[Held]
    ) -> Updater:
        outer = parse_outer(job.outer)
        if outer is None or only_scales(outer):
            return Mean(by_rate=outer is not None)
        outer = OptimizerSpec(outer.name, outer.groups * len(spec.optimizer.groups))
        return Optimizer(outer, held, fused=_can_fuse(layout, outer), all_present=True)

    def remember(self, model: FlatModel) -> None:
        model.remember(parameters=True)

    def gather(self, model: FlatModel, points: float) -> None:
        """Do nothing: the changes are already in the parameters."""

    def fill(self, model: FlatModel, push: Sequence[torch.Tensor], gathered: float | None) -> None:
        model.fill_changes(push)


def _can_fuse(layout: Layout, optimizer: OptimizerSpec) -> bool:
    dtypes = [DTYPES[space.dtype] for space in layout.spaces if not space.buffers]
    return can_fuse(optimizer, dtypes)


KINDS: dict[str, Kind] = {"gradient": Gradient(), "local": Local()}


def updaters_for(
    layout: Layout, job: JobSpec, spec: ModelSpec, held: Sequence[Held]
) -> dict[bool, tuple[Updater, list[Held]]]:
    """Return the updaters of the parameters (False) and of the buffers (True), each with its
    slices."""
    parameters = [h for h in held if not layout.spaces[h.slice.space].buffers]
    buffers = [h for h in held if layout.spaces[h.slice.space].buffers]
    found: dict[bool, tuple[Updater, list[Held]]] = {}
    if parameters:
        found[False] = (_updater(layout, job, spec, parameters), parameters)
    if buffers:
        found[True] = (Buffers(), buffers)
    return found


def _updater(layout: Layout, job: JobSpec, spec: ModelSpec, held: Sequence[Held]) -> Updater:
    if job.updater == "addition":
        return Addition() if traits_of(job.sync).rounds else Sum()
    return KINDS[job.kind].updater(layout, job, spec, held)
