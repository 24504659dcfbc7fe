"""Builds the tensors of a slice from a checkpoint that divides the model into other slices.

A model has one flat buffer (space) of parameters per dtype, whatever the number of servers. Only
the places where it is divided into slices depend on that number. So a slice is a range of a space,
and the slices of the checkpoint that overlap the range contain all its elements.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from polyrhythm.core.placement.slices import Slice

if TYPE_CHECKING:
    import torch

Tensors: TypeAlias = "dict[str, torch.Tensor]"


def overlapping(there: Sequence[Slice], slice_: Slice) -> list[Slice]:
    """The slices of a checkpoint that cover the range of this slice."""
    if slice_.id < len(there) and _same_range(there[slice_.id], slice_):
        return [there[slice_.id]]
    return [
        old
        for old in there
        if old.space == slice_.space
        and old.offset < slice_.offset + slice_.length
        and slice_.offset < old.offset + old.length
    ]


def assembled(slice_: Slice, sources: list[Slice], read: Mapping[int, Tensors]) -> Tensors:
    """The tensors of a slice, from the tensors of the checkpoint's slices that cover its range."""
    if len(sources) == 1 and _same_range(sources[0], slice_):
        return read[sources[0].id]
    names = {name for source in sources for name in read[source.id]}
    return {name: _joined(slice_, sources, read, name) for name in sorted(names)}


def _joined(
    slice_: Slice, sources: list[Slice], read: Mapping[int, Tensors], name: str
) -> "torch.Tensor":
    """One tensor of a slice. A tensor with one element per parameter is put together from the
    sources; a source that lacks it has not made a step yet, and its elements are zero. Any other
    tensor, such as a count of steps, is the maximum over the sources."""
    import torch

    found = [(source, read[source.id].get(name)) for source in sources]
    known = [(source, tensor) for source, tensor in found if tensor is not None]
    first, sample = known[0]
    if sample.shape != (first.length,):
        return torch.stack([tensor for _, tensor in known]).amax(0)
    joined = torch.zeros(slice_.length, dtype=sample.dtype)
    for source, tensor in known:
        begin = max(source.offset, slice_.offset)
        end = min(source.offset + source.length, slice_.offset + slice_.length)
        joined[begin - slice_.offset : end - slice_.offset] = tensor[
            begin - source.offset : end - source.offset
        ]
    return joined


def _same_range(one: Slice, other: Slice) -> bool:
    return (one.space, one.offset, one.length) == (other.space, other.offset, other.length)
