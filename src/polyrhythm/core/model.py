"""Checks of a model that a worker announces: whether servers can hold it, and whether it is equal
to the job's model."""

import math

from polyrhythm.core.placement.slices import BUFFERS, ITEM_NBYTES
from polyrhythm.wire.messages import ModelSpec, TensorSpec

_MOST_NBYTES = 2**42
"""The size limit in bytes. Cutting a larger model into slices would keep the lead busy for
minutes."""


def difference(ours: ModelSpec, theirs: ModelSpec) -> str | None:
    """The first difference between the job's model (`ours`) and a worker's model (`theirs`); None
    if there is none."""
    for mine, other in zip(ours.tensors, theirs.tensors, strict=False):
        if (found := _difference_of_tensors(mine, other)) is not None:
            return found
    if len(ours.tensors) != len(theirs.tensors):
        return f"it has {len(theirs.tensors)} tensors, the job has {len(ours.tensors)}"
    if ours.optimizer != theirs.optimizer:
        return f"its optimizer is {theirs.optimizer}, the job's is {ours.optimizer}"
    if ours.state != theirs.state:
        return "its state_dict has other names than the job's"
    return None


def _difference_of_tensors(mine: TensorSpec, other: TensorSpec) -> str | None:
    if mine.name != other.name:
        return f"it has {_named(other)} where the job has {_named(mine)}"
    if mine.shape != other.shape:
        shapes = f"has shape {list(other.shape)}, in the job it has {list(mine.shape)}"
        return f"{_named(other)} {shapes}"
    if mine.dtype != other.dtype:
        return f"{_named(other)} has dtype {other.dtype}, in the job it has {mine.dtype}"
    if (mine.group == BUFFERS) != (other.group == BUFFERS):
        trained = "is not trained here, and in the job it is"
        untrained = "is trained here, and in the job it is not (it is frozen, or a buffer)"
        return f"{other.name!r} {trained if other.group == BUFFERS else untrained}"
    if mine.group != other.group:
        groups = f"is in parameter group {other.group} of the optimizer, in the job in {mine.group}"
        return f"{_named(other)} {groups}"
    if mine.strides != other.strides:
        strides = f"has strides {list(other.strides)}, in the job it has {list(mine.strides)}"
        return f"{_named(other)} {strides}: give all workers the same memory_format"
    return None if mine == other else f"{_named(other)} is {other}, in the job it is {mine}"


def _named(tensor: TensorSpec) -> str:
    """The tensor with its kind. A spec does not tell a frozen parameter from a buffer."""
    what = "the buffer or frozen parameter" if tensor.group == BUFFERS else "the parameter"
    return f"{what} {tensor.name!r}"


def nbytes_of(spec: ModelSpec) -> int:
    """The size of one copy of the model in bytes."""
    return sum(math.prod(tensor.shape) * ITEM_NBYTES[tensor.dtype] for tensor in spec.tensors)


def _nbytes_saved(spec: ModelSpec) -> int:
    """The size of the saved model in bytes. Tied weights count once for each of their names."""
    sizes = [math.prod(t.shape) * ITEM_NBYTES[t.dtype] for t in spec.tensors]
    return sum(sizes[entry.tensor] for entry in spec.state)


def nonsense(spec: ModelSpec) -> str | None:
    """The first fault of a model description that is inconsistent or too large; None if it has
    none."""
    for tensor in spec.tensors:
        if tensor.dtype not in ITEM_NBYTES:
            return f"{tensor.name!r} has the unknown dtype {tensor.dtype!r}"
        if any(size < 0 for size in tensor.shape) or len(tensor.shape) != len(tensor.strides):
            return f"{tensor.name!r} has shape {list(tensor.shape)}, strides {list(tensor.strides)}"
        if not BUFFERS <= tensor.group < len(spec.optimizer.groups):
            return f"{tensor.name!r} is in group {tensor.group}, which the optimizer does not have"
    if not spec.tensors:
        return "it has no tensors"
    if any(entry.tensor >= len(spec.tensors) for entry in spec.state):
        return "an entry of its state_dict refers to a tensor that is not in the list of tensors"
    if len({entry.name for entry in spec.state}) != len(spec.state):
        return "its state_dict has a name twice"
    if (nbytes := max(nbytes_of(spec), _nbytes_saved(spec))) > _MOST_NBYTES:
        return f"it has {nbytes} bytes, and at most {_MOST_NBYTES} can be held"
    return None
