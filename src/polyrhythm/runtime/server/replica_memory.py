"""The replicas on a server: the parameters and the updater's state of slices whose primary is
another server.

A replica makes every step that the primary has made, with the same updater. Workers do not read
replicas. This module takes no locks; the caller must hold the lock of the slice.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch

from polyrhythm.core.kinds import quantised_nbytes
from polyrhythm.core.placement.slices import BUFFERS, Layout
from polyrhythm.runtime.slice_state import (
    PARAMETERS,
    SliceState,
    adopt_state,
    checked_tensor,
    export_state,
    is_sum,
    step_in,
    sum_state,
)
from polyrhythm.tensors.dtypes import held_dtype, tensor_over, wire_dtype
from polyrhythm.tensors.held import Held
from polyrhythm.tensors.kinds import updaters_for
from polyrhythm.tensors.quantised import read_quantised
from polyrhythm.tensors.rows import Incoming, read_rows, rows_nbytes
from polyrhythm.tensors.updater import Updater
from polyrhythm.wire.messages import Copy, JobSpec, ModelSpec, SliceStep, State


@dataclass(slots=True)
class _Kept:
    held: Held
    updater: Updater
    dtype: torch.dtype
    wire: torch.dtype
    step: SliceStep | None = None
    """With `--optimizer-on workers`: this copy holds the sum of gradients instead of parameters,
    and this is the step that workers make with the sum. None before the first fold."""


class ReplicaMemory:
    """`grows`: the primary sends the next version instead of an aggregate (with plain addition, the
    aggregate is the next version)."""

    def __init__(self, layout: Layout, job: JobSpec, spec: ModelSpec, *, grows: bool) -> None:
        self._layout = layout
        self._job = job
        self._spec = spec
        self._grows = grows
        self._kept: dict[int, _Kept] = {}

    def __contains__(self, slice_: int) -> bool:
        return slice_ in self._kept

    @property
    def ids(self) -> set[int]:
        return set(self._kept)

    def hold(self, slices: Iterable[int], states: Mapping[int, SliceState]) -> None:
        """Hold replicas of these slices and of no others. A new replica begins with its state in
        `states`, or with zeros if there is none."""
        slices = set(slices)
        for slice_ in self._kept.keys() - slices:
            del self._kept[slice_]
        for slice_ in slices - self._kept.keys():
            kept = self._kept[slice_] = self._make(slice_)
            if slice_ in states:
                adopt_state(kept.held, kept.updater, states[slice_])

    def _make(self, number: int) -> _Kept:
        slice_ = self._layout.slices[number]
        space = self._layout.spaces[slice_.space]
        dtype = held_dtype(space, self._job)
        zeros = torch.zeros(slice_.length, dtype=dtype)
        held = Held(slice_, zeros, torch.zeros(slice_.length, dtype=dtype))
        ((updater, _),) = updaters_for(self._layout, self._job, self._spec, [held]).values()
        return _Kept(held, updater, dtype, wire_dtype(space, self._job.wire_dtype))

    def wire(self, slice_: int) -> torch.dtype:
        return self._kept[slice_].wire

    def nbytes(self, slice_: int) -> int:
        """The size of the slice in the wire dtype."""
        kept = self._kept[slice_]
        return kept.held.slice.length * kept.wire.itemsize

    def step_nbytes(self, message: Copy) -> int:
        """The size of a step's payload in bytes. A contribution has the dtype of the wire; an
        aggregate has the dtype of the slice's parameters."""
        kept = self._kept[message.slice]
        if kept.updater.by_name:
            return len(message.differences) * kept.held.slice.length * kept.dtype.itemsize
        if message.quantised:
            return quantised_nbytes(self._layout, kept.held.slice)
        if message.indices is not None:
            return rows_nbytes(kept.held.slice, message.indices, kept.wire.itemsize)
        contribution = message.worker >= 0 and not kept.updater.takes_parts
        dtype = kept.wire if contribution or self._grows else kept.dtype
        return kept.held.slice.length * dtype.itemsize

    def seed(self, slice_: int, incoming: torch.Tensor) -> None:
        self._kept[slice_].held.parameters.copy_(incoming)

    def export(self, slice_: int) -> SliceState:
        kept = self._kept[slice_]
        return export_state(kept.held, kept.updater)

    def checked(self, message: State, data: memoryview) -> torch.Tensor:
        """One tensor of a slice's state. Raises LinkError if the slice cannot have such a
        tensor."""
        kept = self._kept[message.slice]
        return checked_tensor(message, data, kept.held, kept.updater)

    def adopt(self, slice_: int, state: SliceState) -> None:
        kept = self._kept[slice_] = self._make(
            slice_
        )  # make a new updater, which has nothing of the former state
        adopt_state(kept.held, kept.updater, state)

    def step(self, message: Copy, data: memoryview | None) -> None:
        """Make the step that the primary made: fold its aggregate, or one contribution."""
        kept = self._kept[message.slice]
        held, updater = kept.held, kept.updater
        if updater.by_name:
            _step_rows(message, data, kept, updater)
            return
        if data is None and message.indices == 0 and message.step.weight:
            # make the step even if the contribution has no rows of this slice
            data = memoryview(b"")
        if data is None:
            return  # nothing to fold: no worker has contributed to this slice in this round
        if message.worker >= 0 and not updater.takes_parts:
            incoming: Incoming
            if message.quantised:
                incoming = read_quantised(held.slice, data, kept.wire)
            elif message.indices is None:
                incoming = tensor_over(data, kept.wire)
            else:
                incoming = read_rows(held.slice, data, message.indices, kept.wire)
            updater.add(held, incoming, message.step.weight)
        elif self._grows:
            held.parameters.copy_(tensor_over(data, kept.wire))
            return
        elif updater.writes_on_aggregate:
            held.aggregate.copy_(tensor_over(data, kept.dtype))
        else:
            held.aggregate = tensor_over(data, kept.dtype)
        updater.fold([held], [held.parameters], [message.step])


class SummedReplicas(ReplicaMemory):
    """The replicas with `--optimizer-on workers`: of a slice of parameters they hold the sum of the
    gradients in the present version."""

    def hold(self, slices: Iterable[int], states: Mapping[int, SliceState]) -> None:
        sums = {id_: state for id_, state in states.items() if is_sum(state)}
        super().hold(slices, {id_: state for id_, state in states.items() if id_ not in sums})
        for id_ in sums.keys() & self.ids:
            self.adopt(id_, sums[id_])

    def export(self, slice_: int) -> SliceState:
        kept = self._kept[slice_]
        if kept.step is None:
            return super().export(slice_)
        return sum_state(kept.held.parameters, kept.step)

    def adopt(self, slice_: int, state: SliceState) -> None:
        if not is_sum(state):
            super().adopt(slice_, state)
            return
        kept = self._kept[slice_] = self._make(slice_)
        kept.held.parameters.copy_(state[PARAMETERS])
        kept.step = step_in(state)

    def step(self, message: Copy, data: memoryview | None) -> None:
        kept = self._kept[message.slice]
        if kept.held.slice.group == BUFFERS:
            super().step(message, data)
            return
        if data is not None:
            kept.held.parameters.copy_(tensor_over(data, kept.dtype))
        kept.step = message.step


def _step_rows(message: Copy, data: memoryview | None, kept: _Kept, updater: Updater) -> None:
    """Kind statistics: add the contributions in the payload to their rows."""
    held, named = kept.held, []
    if data is not None:
        values = tensor_over(data, kept.dtype).clone().reshape(len(message.differences), -1)
        named = list(zip(message.differences, values, strict=True))
    updater.enter(held, message.live, named)
    kept.updater.fold([held], [held.parameters], [message.step])
