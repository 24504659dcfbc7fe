"""The updater of `torch.optim.SparseAdam`: a step changes only the rows that workers have sent, and
their state.

Every slice has its own optimizer, whose only parameter is the slice as a table of rows. A step
of a slice without rows still counts: torch counts the steps of the whole tensor.
"""

from collections.abc import Sequence

import torch

from polyrhythm.core.placement.slices import Slice
from polyrhythm.tensors.held import Held, State
from polyrhythm.tensors.optimizers import options_of
from polyrhythm.tensors.rows import in_rows, sent_rows
from polyrhythm.tensors.updaters import Averaging, carry_over
from polyrhythm.wire.messages import OptimizerSpec, SliceStep

_COUNT = "step"


class SparseAdam(Averaging):
    def __init__(self, spec: OptimizerSpec, slices: Sequence[Held]) -> None:
        self._params: dict[int, torch.nn.Parameter] = {}
        self._optimizers: dict[int, torch.optim.SparseAdam] = {}
        for held in slices:
            id_ = held.slice.id
            self._params[id_] = torch.nn.Parameter(in_rows(held.slice, held.parameters))
            options = options_of(spec, held.slice.group)
            self._optimizers[id_] = torch.optim.SparseAdam([self._params[id_]], **options)

    def _complete(self, held: Held) -> None:
        """Leave the slice as it is if no worker had a gradient for the tensor: then the step has no
        weight."""
        if not held.present:
            held.weight = 0.0

    def fold(
        self, slices: Sequence[Held], target: Sequence[torch.Tensor], steps: Sequence[SliceStep]
    ) -> None:
        carry_over(slices, target)
        for held, place, step in zip(slices, target, steps, strict=True):
            self._params[held.slice.id].data = in_rows(held.slice, place)
            if step.weight:
                self._step(held, step)

    def _step(self, held: Held, step: SliceStep) -> None:
        parameter, optimizer = self._params[held.slice.id], self._optimizers[held.slice.id]
        rows = sent_rows(held.slice, held.aggregate)
        values = in_rows(held.slice, held.aggregate)[rows]
        if step.weight != 1.0:
            values.div_(step.weight)
        parameter.grad = torch.sparse_coo_tensor(
            rows.view(1, -1), values, parameter.shape, check_invariants=False, is_coalesced=True
        )
        optimizer.param_groups[0]["lr"] = step.rate * step.scale
        optimizer.step()  # type: ignore[no-untyped-call]
        parameter.grad = None

    def export(self, held: Held) -> State:
        state = self._optimizers[held.slice.id].state[self._params[held.slice.id]]
        return {key: _flat(held.slice, value) for key, value in state.items()}

    def adopt(self, held: Held, state: State) -> None:
        mine = self._optimizers[held.slice.id].state[self._params[held.slice.id]]
        for key, value in state.items():
            mine[key] = int(value) if key == _COUNT else in_rows(held.slice, value)

    def absorb(self, other: "SparseAdam") -> None:
        self._params |= other._params
        self._optimizers |= other._optimizers

    def drop(self, held: Held) -> None:
        del self._params[held.slice.id], self._optimizers[held.slice.id]


def _flat(slice_: Slice, value: torch.Tensor | int) -> torch.Tensor:
    """A value of the state as it is sent and stored: the count of steps as a number, a table as a
    tensor of the slice's length."""
    if not isinstance(value, torch.Tensor):
        return torch.tensor(value)
    flat = torch.zeros(slice_.length, dtype=value.dtype)
    in_rows(slice_, flat).copy_(value)
    return flat
