"""As in torch, a parameter without a gradient does not change, even with weight decay or momentum.

A contribution consists of numbers and cannot contain None. A worker without a gradient for a
parameter therefore sends -0.0. Adding -0.0 changes no number, so a sum is -0.0 only if no worker
had a gradient. (0.0 does not have this property: -0.0 + 0.0 is 0.0.) A gradient that is -0.0 in
every element is treated as absent.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy.typing as npt
import torch

from polyrhythm.core.placement.slices import Slice

NO_GRADIENT = -0.0
Parts = tuple[tuple[int, int], ...]
"""Ranges (first, end) of elements inside a slice. Each range is one tensor, or the piece of a
tensor that is in the slice."""

_BITS = {2: (torch.int16, -(1 << 15)), 4: (torch.int32, -(1 << 31)), 8: (torch.int64, -(1 << 63))}
"""For each size of a floating-point number in bytes: the integer type of this size, and the integer
that has the bits of -0.0."""


def bits_of(tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
    """The bits of a tensor of floating-point numbers as integers, and the integer that has the bits
    of -0.0."""
    integer, nothing = _BITS[tensor.element_size()]
    return tensor.view(integer), nothing


class Absences:
    """Finds the tensors for which no worker had a gradient. It looks at the first element of every
    tensor, and at the other elements only if the first is -0.0."""

    def __init__(self, slices: Iterable[Slice]) -> None:
        self._firsts = {
            slice_.id: [first for first, _ in slice_.parts] for slice_ in slices if slice_.parts
        }
        self._bits: dict[int, dict[int, npt.NDArray[Any]]] = {id_: {} for id_ in self._firsts}
        """Per slice, its one or two aggregates as integer arrays, by address. The arrays keep the
        memory alive, so that no other memory gets the same address."""

    def absorb(self, other: "Absences") -> None:
        """Add the slices that `other` watches."""
        self._firsts |= other._firsts
        self._bits |= other._bits

    def drop(self, slice_: Slice) -> None:
        self._firsts.pop(slice_.id, None)
        self._bits.pop(slice_.id, None)

    def of(self, slice_: Slice, aggregate: torch.Tensor) -> Parts:
        firsts = self._firsts.get(slice_.id)
        if firsts is None:
            return ()
        integer, nothing = _BITS[aggregate.element_size()]
        known = self._bits[slice_.id]
        bits = known.get(aggregate.data_ptr())
        if bits is None:
            bits = known[aggregate.data_ptr()] = aggregate.view(integer).numpy()
        if nothing not in map(bits.item, firsts):
            return ()
        return tuple(
            (first, end) for first, end in slice_.parts if (bits[first:end] == nothing).all()
        )


@contextmanager
def keep(
    optimizer: torch.optim.Optimizer, absent: Mapping[torch.nn.Parameter, Parts]
) -> Iterator[None]:
    """Restore these parts, and their optimizer state, after the optimizer's steps in this
    context."""
    saved: list[tuple[torch.Tensor, torch.Tensor]] = []
    fresh: list[torch.nn.Parameter] = []
    for parameter, parts in absent.items():
        state = _state(optimizer, parameter)
        if not state:
            fresh.append(parameter)
        for tensor in (parameter.data, *state):
            saved += [(tensor[first:end], tensor[first:end].clone()) for first, end in parts]
    yield
    for there, before in saved:
        there.copy_(before)
    # these parameters had no state before this step, and the step may have put weight decay into
    # the state
    for parameter in fresh:
        if any(group.get("weight_decay") for group in optimizer.param_groups):
            for tensor in _state(optimizer, parameter):
                for first, end in absent[parameter]:
                    tensor[first:end].zero_()


def _state(optimizer: torch.optim.Optimizer, parameter: torch.nn.Parameter) -> list[torch.Tensor]:
    """The tensors of a parameter's state that have one element per parameter element. The count of
    steps is not among them: it counts for the whole slice."""
    return [
        value
        for value in optimizer.state.get(parameter, {}).values()
        if isinstance(value, torch.Tensor) and value.shape == parameter.shape
    ]
