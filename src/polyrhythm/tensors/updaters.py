"""How contributions are added up and what a fold does with the sum, slice by slice.

A worker sends the mean gradient g of its points, and the number of points as the weight. A server
computes `aggregate.add_(g, alpha=weight)`, and the fold divides by the sum of the weights. Every
slice has its own sum, because the contribution of a worker that died while it sent may be in some
slices and not in others.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch

from polyrhythm.tensors.absent import Absences, Parts, keep
from polyrhythm.tensors.buffers import Parts as PartNumbers
from polyrhythm.tensors.copying import copy_all
from polyrhythm.tensors.held import Held
from polyrhythm.tensors.held import State as State
from polyrhythm.tensors.kernels import kernel_of
from polyrhythm.tensors.momentum import Settle, settle_for
from polyrhythm.tensors.optimizers import bare_step, build_optimizer
from polyrhythm.tensors.rows import Incoming, Rows, add_rows, average_rows, fill_unsent, weigh_rows
from polyrhythm.tensors.updater import Stateless, without_rows
from polyrhythm.wire.messages import OptimizerSpec, SliceStep


def add_weighted(held: Held, incoming: Incoming, weight: float) -> None:
    """Add `weight` times the contribution to the aggregate. The first contribution after a fold
    overwrites the aggregate, so that it need not be set to zero."""
    if isinstance(incoming, Rows):
        add_rows(held, incoming, weight)
        return
    held.present = True
    if held.weight:
        held.aggregate.add_(incoming, alpha=weight)
    elif incoming.dtype == held.aggregate.dtype:
        torch.mul(incoming, weight, out=held.aggregate)
    else:
        held.aggregate.copy_(incoming).mul_(weight)


def carry_over(slices: Sequence[Held], target: Sequence[torch.Tensor]) -> None:
    """Copy the current version to the targets, except where the target is the current version's own
    memory."""
    for held, place in zip(slices, target, strict=True):
        if place.data_ptr() != held.parameters.data_ptr():
            copy_all(place, held.parameters)


def add_change(held: Held, incoming: Incoming, weight: float) -> None:
    """Add a contribution of kind *local*."""
    assert isinstance(incoming, torch.Tensor)
    if held.slice.width:
        weigh_rows(held, incoming, weight)
    add_weighted(held, incoming, weight)


class Mean(Stateless):
    """Adds the weighted mean of the workers' changes to the parameters. For the kind *local*.
    `by_rate`: multiply the mean by the step's rate, which is the rate of an outer optimizer without
    state."""

    def __init__(self, *, by_rate: bool = False) -> None:
        self._by_rate = by_rate

    def add(self, held: Held, incoming: Incoming, weight: float, parts: PartNumbers = None) -> None:
        add_change(held, incoming, weight)

    def settle(
        self,
        held: Held,
        scales: Mapping[int, float] | None = None,
        *,
        forwarded: bool = False,
    ) -> None:
        average_rows(held)

    def fold(
        self, slices: Sequence[Held], target: Sequence[torch.Tensor], steps: Sequence[SliceStep]
    ) -> None:
        for held, place, step in zip(slices, target, steps, strict=True):
            if step.weight:
                scale = step.scale * step.rate if self._by_rate else step.scale
                alpha = scale / step.weight
                torch.add(held.parameters, held.aggregate, alpha=alpha, out=place)
            elif place.data_ptr() != held.parameters.data_ptr():
                place.copy_(held.parameters)


class Addition(Stateless):
    """Plain addition, for benchmarks of parameter servers. The aggregate begins as a copy of the
    current version and becomes the next version, so a fold copies nothing."""

    def add(self, held: Held, incoming: Incoming, weight: float, parts: PartNumbers = None) -> None:
        assert isinstance(incoming, torch.Tensor)
        if held.weight:
            held.aggregate.add_(incoming)
        else:
            torch.add(held.parameters, incoming, out=held.aggregate)

    def fold(
        self, slices: Sequence[Held], target: Sequence[torch.Tensor], steps: Sequence[SliceStep]
    ) -> None:
        for held, place, step in zip(slices, target, steps, strict=True):
            if not step.weight:
                place.copy_(held.parameters)


class Sum(Stateless):
    """Plain addition without rounds: each contribution is added to the parameters when it
    arrives."""

    def add(self, held: Held, incoming: Incoming, weight: float, parts: PartNumbers = None) -> None:
        assert isinstance(incoming, torch.Tensor)
        if held.weight:
            held.aggregate.add_(incoming)
        else:
            held.aggregate.copy_(incoming)

    def fold(
        self, slices: Sequence[Held], target: Sequence[torch.Tensor], steps: Sequence[SliceStep]
    ) -> None:
        for held, place, step in zip(slices, target, steps, strict=True):
            if step.weight:
                torch.add(held.parameters, held.aggregate, out=place)
            elif place.data_ptr() != held.parameters.data_ptr():
                place.copy_(held.parameters)


class Averaging:
    """An updater that makes steps of an optimizer with the weighted mean of all contributions."""

    takes_parts: ClassVar[bool] = False
    takes_rows: ClassVar[bool] = True
    by_name: ClassVar[bool] = False
    writes_on_aggregate: ClassVar[bool] = True
    most_tensors: ClassVar[int] = 15
    enter = without_rows

    def add(self, held: Held, incoming: Incoming, weight: float, parts: PartNumbers = None) -> None:
        add_weighted(held, incoming, weight)

    def settle(
        self,
        held: Held,
        scales: Mapping[int, float] | None = None,
        *,
        forwarded: bool = False,
    ) -> None:
        """If replicas read the aggregate, divide it by its weight now. A fold would do it in place
        later, while replicas read."""
        self._complete(held)
        if forwarded and held.weight:
            held.aggregate.div_(held.weight)
            held.weight = 1.0

    def _complete(self, held: Held) -> None:
        """Prepare the slice for its step: all contributions of the round are added."""
        raise NotImplementedError


class Optimizer(Averaging):
    """Makes a `torch.optim` step with the mean gradient over all points (kind *gradient*)."""

    def __init__(
        self,
        spec: OptimizerSpec,
        slices: Sequence[Held],
        *,
        fused: bool,
    ) -> None:
        """`fused`: use torch's fused kernels. The value must be the same for all slices of the model
        (`can_fuse`)."""
        self._params = {
            held.slice.id: torch.nn.Parameter(held.parameters, requires_grad=True)
            for held in slices
        }
        groups: dict[int, list[torch.nn.Parameter]] = {}
        for held in slices:
            groups.setdefault(held.slice.group, []).append(self._params[held.slice.id])
        self._optimizer = build_optimizer(spec, groups, fused=fused)
        self._absences = Absences(held.slice for held in slices)
        self._bare_step = bare_step(self._optimizer)
        self._groups = dict(zip(sorted(groups), self._optimizer.param_groups, strict=True))
        self._fused = fused
        self._kernel = kernel_of(self._optimizer) if self._fused else None
        self._settle = settle_for(self._optimizer)
        self._scale = torch.ones((), dtype=torch.float32)
        self._scale_number = self._scale.numpy()

    def fold(
        self, slices: Sequence[Held], target: Sequence[torch.Tensor], steps: Sequence[SliceStep]
    ) -> None:
        carry_over(slices, target)
        for held, place in zip(slices, target, strict=True):
            self._params[held.slice.id].data = place
            self._complete(held)
        due = [pair for pair in zip(slices, steps, strict=True) if pair[1].weight]
        absent: dict[torch.nn.Parameter, Parts] = {}
        for held, _ in due:
            if parts := self._absences.of(held.slice, held.aggregate):
                absent[self._params[held.slice.id]] = parts
        if not absent:
            self._step_all(due)
            return
        params = self._params
        present = [p for p in due if absent.get(params[p[0].slice.id]) != p[0].slice.parts]
        with keep(self._optimizer, absent):
            self._step_all(present)

    def _complete(self, held: Held) -> None:
        """Fill the rows that no sparse gradient contained with 0, as torch's SGD and Adagrad
        treat them."""
        if held.slice.width:
            fill_unsent(held)

    def _step_all(self, due: Sequence[tuple[Held, SliceStep]]) -> None:
        for step, rates, part in _passes(due):
            for group, rate in rates.items():
                self._groups[group]["lr"] = rate * step.scale
            self._step(step.weight, part)
            if self._settle is not None and step.per_round > 1:
                self._settle_momentum(self._settle, step.per_round, part)

    def _settle_momentum(self, settle: Settle, per_round: float, part: list[Held]) -> None:
        """Correct the momentum of these slices. After the step, their aggregates contain the mean
        gradient."""
        with torch.no_grad():
            for held in part:
                parameter, group = self._params[held.slice.id], self._groups[held.slice.group]
                state = self._optimizer.state[parameter]
                settle(group, per_round, state, parameter, held.aggregate)

    def _step(self, weight: float, part: list[Held]) -> None:
        # If the kernel gets a scale, it writes the divided gradients back to memory. Without a
        # scale it only reads the gradients.
        scale = None if weight == 1.0 else self._scale
        if self._fused and scale is not None:
            self._scale_number[()] = weight
        if self._step_directly(scale, part):
            return
        # torch's SGD uses momentum for all parameters of a step or for none, so slices that have a
        # state and slices that have none make separate steps
        state = self._optimizer.state
        begun = [held for held in part if state.get(self._params[held.slice.id])]
        for alike in (begun, [held for held in part if held not in begun]):
            if alike:
                self._step_by_torch(weight, scale, alike)

    def _step_directly(self, scale: torch.Tensor | None, part: list[Held]) -> bool:
        """Call the kernel directly. Return False, and do nothing, if `step()` must be called: if
        there is no kernel, or if the slices belong to several parameter groups."""
        group = part[0].slice.group
        if self._kernel is None or any(held.slice.group != group for held in part):
            return False
        with torch.no_grad():
            return self._kernel(
                self._groups[group],
                self._optimizer.state,
                [self._params[held.slice.id] for held in part],
                [held.aggregate for held in part],
                scale,
            )

    def _step_by_torch(self, weight: float, scale: torch.Tensor | None, part: list[Held]) -> None:
        if self._fused:
            self._optimizer.grad_scale = scale  # type: ignore[attr-defined]
        for held in part:
            if not self._fused and weight != 1.0:
                held.aggregate.div_(weight)
            gradient = held.aggregate
            if not self._fused and self._settle is not None:
                # torch writes Nesterov's look-ahead into the gradient; `settle` needs the original
                gradient = gradient.clone()
            self._params[held.slice.id].grad = gradient
        with torch.no_grad():
            self._bare_step(self._optimizer)
        for held in part:
            self._params[held.slice.id].grad = None

    def export(self, held: Held) -> State:
        state = self._optimizer.state[self._params[held.slice.id]]
        return {
            key: value.clone() if isinstance(value, torch.Tensor) else torch.tensor(value)
            for key, value in state.items()
            if value is not None
        }

    def adopt(self, held: Held, state: State) -> None:
        mine = self._optimizer.state[self._params[held.slice.id]]
        for key, value in state.items():
            mine[key] = value

    def absorb(self, other: "Optimizer") -> None:
        self._params |= other._params
        for number, group in other._groups.items():
            if number in self._groups:
                self._groups[number]["params"] += group["params"]
            else:
                self._optimizer.add_param_group(group)
                self._groups[number] = self._optimizer.param_groups[-1]
        self._optimizer.state.update(other._optimizer.state)
        self._settle = settle_for(self._optimizer)
        self._absences.absorb(other._absences)

    def drop(self, held: Held) -> None:
        gone = self._params.pop(held.slice.id)
        group = self._groups[held.slice.group]
        group["params"] = [param for param in group["params"] if param is not gone]
        self._optimizer.state.pop(gone, None)
        self._absences.drop(held.slice)


class Outer(Optimizer):
    """The outer optimizer of kind *local*: makes a step with the mean change as a negative gradient.
    Every contribution has a change of every parameter, which may be zero. So a parameter that no
    worker has changed takes part in the step, and moves with its momentum."""

    takes_rows: ClassVar[bool] = False

    def __init__(self, spec: OptimizerSpec, slices: Sequence[Held], *, fused: bool) -> None:
        super().__init__(spec, slices, fused=fused)
        self._absences = Absences(())

    def add(self, held: Held, incoming: Incoming, weight: float, parts: PartNumbers = None) -> None:
        add_change(held, incoming, weight)

    def _complete(self, held: Held) -> None:
        average_rows(held)


def _passes(
    due: Sequence[tuple[Held, SliceStep]],
) -> list[tuple[SliceStep, dict[int, float], list[Held]]]:
    """Split the slices into passes; each pass is one call of the optimizer. Usually one pass is
    enough. A call has one learning rate per parameter group, and one value of all other numbers of
    a `SliceStep`. Slices that differ in these need different passes."""
    passes: list[tuple[SliceStep, dict[int, float], list[Held]]] = []
    for held, step in due:
        group = held.slice.group
        for first, rates, part in passes:
            if step.alike(first) and rates.get(group, step.rate) == step.rate:
                rates[group] = step.rate
                part.append(held)
                break
        else:
            passes.append((step, {group: step.rate}, [held]))
    return passes
