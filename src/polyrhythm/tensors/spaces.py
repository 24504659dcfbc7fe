"""The memory of a model's spaces, and the places of its tensors and of their gradients in it."""

from collections.abc import Iterator

import torch

from polyrhythm.core.placement.slices import Layout, TensorPlace
from polyrhythm.tensors.copying import copy
from polyrhythm.tensors.dtypes import DTYPES, tensor_over
from polyrhythm.tensors.finite import all_finite, not_finite

_HOT = 1 << 19
"""A large gradient is checked and copied in pieces of this many elements. A piece is still in the
cache when it is copied after the check."""
_CHUNK_NBYTES = 8 << 20
"""Numbers that are computed while they are copied from or to a device are handled in chunks of this
size."""


def pieces_of(flat: torch.Tensor) -> Iterator[tuple[int, int]]:
    """Ranges (first, end) of elements that cover a flat tensor."""
    length = max(1, _CHUNK_NBYTES // flat.element_size())
    for first in range(0, flat.numel(), length):
        yield first, min(first + length, flat.numel())


def allocate_spaces(layout: Layout) -> tuple[list[memoryview], list[torch.Tensor]]:
    memory = [memoryview(bytearray(space.nbytes)) for space in layout.spaces]
    flat = [
        tensor_over(part, DTYPES[space.dtype])
        if space.length
        else torch.empty(0, dtype=DTYPES[space.dtype])
        for part, space in zip(memory, layout.spaces, strict=True)
    ]
    return memory, flat


def in_order(layout: Layout, count: int) -> list[TensorPlace]:
    """Return the places of the tensors in the order of the model's spec. The layout has them
    grouped by space."""
    assert count == len(layout.places)
    return sorted(layout.places, key=lambda place: place.index)


def view_of(flat: torch.Tensor, place: TensorPlace) -> torch.Tensor:
    part = flat[place.offset : place.offset + place.length]
    return part.as_strided(place.tensor.shape, place.tensor.strides)


def lay(push: torch.Tensor, view: torch.Tensor, place: TensorPlace, gradient: torch.Tensor) -> None:
    """Copy a gradient to its place in the push buffer, unless it is there already. Raise NotFinite
    if an element is not finite; then nothing of the contribution is sent."""
    if gradient.data_ptr() == view.data_ptr():
        finite = all_finite(view)
    elif place.length > _HOT and _as_it_is(push, place, gradient):
        finite = _lay_hot(push, place, gradient.detach())
    else:
        copy(view, gradient.detach())
        finite = all_finite(view)
    if not finite:
        raise not_finite("gradient", place.tensor.name)


def _as_it_is(push: torch.Tensor, place: TensorPlace, gradient: torch.Tensor) -> bool:
    """Whether the gradient has the dtype and the strides of its place in the push buffer, so that
    its bytes can be copied."""
    return gradient.dtype == push.dtype and gradient.stride() == place.tensor.strides


def _lay_hot(push: torch.Tensor, place: TensorPlace, gradient: torch.Tensor) -> bool:
    """Check and copy a gradient piece by piece, so that a piece is still in the cache when it is
    copied. Return whether all elements are finite."""
    flat = push[place.offset : place.offset + place.length]
    source = gradient.as_strided((place.length,), (1,))
    for at in range(0, place.length, _HOT):
        piece = source[at : at + _HOT]
        if not all_finite(piece):
            return False
        copy(flat[at : at + _HOT], piece)
    return True
