"""Checks and names of models.

This module decides whether servers can hold a model that a worker announces, whether it equals the
job's model, how model files are named, and how large the state may be that the user's code adds to
checkpoints (`worker.keep`).
"""

import math
from collections.abc import Iterable, Iterator, Sequence

from polyrhythm.core.placement.slices import BUFFERS, ITEM_NBYTES, SHARINGS
from polyrhythm.errors import StoreError
from polyrhythm.wire.messages import Division, ModelSpec, TensorSpec

_MOST_NBYTES = 2**42
"""The size limit in bytes. Cutting a larger model into slices would keep the lead busy for
minutes."""

_MOST_NAME = 64
_MOST_SERVERS = 1_000_000
_LEAST_SLICE_NBYTES = 64
_MOST_SLICES = 2**21
"""The number of slices of 2 MiB in a model of the largest size."""


def difference(ours: ModelSpec, theirs: ModelSpec) -> str | None:
    """The first difference between the job's model (`ours`) and a worker's model (`theirs`); None
    if there is none."""
    if _names(ours) != _names(theirs):
        return f"its models are {_listed(theirs)}, those of the job are {_listed(ours)}"
    for mine, other in zip(ours.tensors, theirs.tensors, strict=False):
        if (found := _difference_of_tensors(mine, other)) is not None:
            return found
    if len(ours.tensors) != len(theirs.tensors):
        return f"it has {len(theirs.tensors)} tensors, but the model of the job has {len(ours.tensors)}"
    if (ours.optimizer, ours.parts) != (theirs.optimizer, theirs.parts):
        return f"its optimizer is {theirs.optimizer}, the job's is {ours.optimizer}"
    if ours.state != theirs.state:
        return "the names in its state_dict differ from those of the job"
    if theirs.division not in (None, ours.division):
        return "its slices differ from those of the job"
    return None


def _difference_of_tensors(mine: TensorSpec, other: TensorSpec) -> str | None:
    if mine.name != other.name:
        return f"it has {_kind_and_name(other)} where the job has {_kind_and_name(mine)}"
    if mine.shape != other.shape:
        shapes = f"has shape {list(other.shape)}, in the job it has {list(mine.shape)}"
        return f"{_kind_and_name(other)} {shapes}"
    if mine.dtype != other.dtype:
        return f"{_kind_and_name(other)} has dtype {other.dtype}, in the job it has {mine.dtype}"
    if (mine.group == BUFFERS) != (other.group == BUFFERS):
        trained = "is not trained here, but the job trains it"
        untrained = "is trained here, but not in the job (there it is frozen, or a buffer)"
        return f"{other.name!r} {trained if other.group == BUFFERS else untrained}"
    if mine.group != other.group:
        groups = (
            f"is in parameter group {other.group} of the optimizer; in the job, in {mine.group}"
        )
        return f"{_kind_and_name(other)} {groups}"
    if mine.strides != other.strides:
        strides = f"has strides {list(other.strides)}, in the job it has {list(mine.strides)}"
        return f"{_kind_and_name(other)} {strides}: give all workers the same memory_format"
    if mine.sharing != other.sharing:
        shared = f"is {other.sharing!r} here, in the job it is {mine.sharing!r}"
        return (
            f"{_kind_and_name(other)} {shared}: call attach() with the same buffers= on all workers"
        )
    return None if mine == other else f"{_kind_and_name(other)} is {other}, in the job it is {mine}"


def _kind_and_name(tensor: TensorSpec) -> str:
    """The tensor's name and kind. The kind does not distinguish a frozen parameter from a buffer,
    because a spec does not."""
    what = "the buffer or frozen parameter" if tensor.group == BUFFERS else "the parameter"
    return f"{what} {tensor.name!r}"


def _names(spec: ModelSpec) -> list[str]:
    return [part.name for part in spec.parts]


def _listed(spec: ModelSpec) -> str:
    return ", ".join(_names(spec)) or "one without a name"


def nbytes_of(spec: ModelSpec) -> int:
    """The size of one copy of the model in bytes."""
    return sum(math.prod(tensor.shape) * ITEM_NBYTES[tensor.dtype] for tensor in spec.tensors)


def _nbytes_saved(spec: ModelSpec) -> int:
    """The size of the saved model in bytes. Tied weights count once for each of their names."""
    sizes = [math.prod(t.shape) * ITEM_NBYTES[t.dtype] for t in spec.tensors]
    return sum(sizes[entry.tensor] for entry in spec.state)


def nonsense(spec: ModelSpec) -> str | None:
    """Check the description of a model. Returns the first fault if it is inconsistent or too large;
    None if it has none."""
    for tensor in spec.tensors:
        if tensor.dtype not in ITEM_NBYTES:
            return f"{tensor.name!r} has the unknown dtype {tensor.dtype!r}"
        if any(size < 0 for size in tensor.shape) or len(tensor.shape) != len(tensor.strides):
            shape, strides = list(tensor.shape), list(tensor.strides)
            return f"{tensor.name!r} cannot have the shape {shape} and the strides {strides}"
        if tensor.sharing not in SHARINGS:
            return f"{tensor.name!r} is shared as {tensor.sharing!r}, which is not known"
        if not BUFFERS <= tensor.group < len(spec.optimizer.groups):
            return f"{tensor.name!r} is in group {tensor.group}, which the optimizer does not have"
    if not spec.tensors:
        return "it has no tensors"
    if not nbytes_of(spec):
        return "all of its tensors are empty"
    if spec.parts and (fault := _parts_fault(spec)) is not None:
        return fault
    if any(entry.tensor >= len(spec.tensors) for entry in spec.state):
        return "an entry of its state_dict refers to a tensor that is not in the list of tensors"
    if len({entry.name for entry in spec.state}) != len(spec.state):
        return "its state_dict has a name twice"
    if spec.division is not None and (fault := _division_fault(spec, spec.division)) is not None:
        return fault
    if (nbytes := max(nbytes_of(spec), _nbytes_saved(spec))) > _MOST_NBYTES:
        return f"it has {nbytes} bytes, but at most {_MOST_NBYTES} can be held"
    return None


def _division_fault(spec: ModelSpec, division: Division) -> str | None:
    if not 1 <= division.servers <= _MOST_SERVERS:
        return f"its number of servers, {division.servers}, is impossible"
    if division.slice_nbytes < _LEAST_SLICE_NBYTES:
        return f"the size of its slices, {division.slice_nbytes} bytes, is too small"
    if division.probes > _MOST_SERVERS:
        return f"its number of probe slices, {division.probes}, is impossible"
    if nbytes_of(spec) > _MOST_SLICES * division.slice_nbytes:
        return (
            f"it has {nbytes_of(spec)} bytes, which are more than {_MOST_SLICES} slices of"
            f" {division.slice_nbytes} bytes: give a larger --slice-size"
        )
    return None


def _parts_fault(spec: ModelSpec) -> str | None:
    """The first fault of the list of models; None if it has none."""
    names = _names(spec)
    if len(set(names)) < len(names) or not all(is_model_name(name) for name in names):
        return f"of the names {names} of its models, one is not valid or occurs twice"
    if sum(part.groups for part in spec.parts) != len(spec.optimizer.groups):
        return "its models do not have as many parameter groups as its optimizers"
    if sum(part.tensors for part in spec.parts) != len(spec.tensors):
        return "its models do not have as many tensors as the list of tensors"
    models, first = spec.models, 0
    for number, part in enumerate(spec.parts):
        for tensor in spec.tensors[first : first + part.tensors]:
            if not tensor.name.startswith(f"{part.name}."):
                return f"{tensor.name!r} is not a name for a tensor of the model {part.name!r}"
            if tensor.group != BUFFERS and models[tensor.group] != number:
                return f"{tensor.name!r} is in a parameter group of another model"
        first += part.tensors
    if any(not entry.name.startswith(tuple(f"{name}." for name in names)) for entry in spec.state):
        return "a name in its state_dict belongs to none of its models"
    return None


def is_model_name(name: str) -> bool:
    """Whether a model can have this name, which becomes part of a file's name (`model-NAME`)."""
    return name.isascii() and name.isidentifier() and len(name) <= _MOST_NAME and name != "best"


RUNS_FOLDER = "runs"
"""The usual folder of runs, in the folder where a command is called."""
SUFFIX = ".safetensors"
MODEL = f"model{SUFFIX}"
BEST = f"model-best{SUFFIX}"


def file_of(model: str = "", *, best: bool = False) -> str:
    """The name of the file of a model: `model.safetensors`, or in a job with several models a name
    such as `model-critic.safetensors`. `model`: the name of the model, if the job has several.
    `best`: the file of the best model, which a job with `--keep-best` keeps."""
    file = BEST if best else MODEL
    return f"{file.removesuffix(SUFFIX)}-{model}{SUFFIX}" if model else file


def files_of(models: Sequence[str], *, best: bool = False) -> str:
    """Write the files of these models as one text, which a shell expands to their names. `models`
    is empty for a job with one model."""
    return file_of("{" + ",".join(models) + "}" if models else "", best=best)


def models_of(files: str) -> list[str]:
    """Read the names of the models from a text that `files_of` has made."""
    if not files.endswith("}" + SUFFIX):
        return []
    return files.removesuffix("}" + SUFFIX).rpartition("{")[2].split(",")


def named(file: str, *, best: bool = False) -> str | None:
    """The model to which the file with this name belongs; None if the file does not belong to a job
    with several models."""
    prefix = f"{file_of(best=best).removesuffix(SUFFIX)}-"
    name = file.removesuffix(SUFFIX).removeprefix(prefix)
    known = name.isidentifier() and (best or name != "best")
    return name if known and file == file_of(name, best=best) else None


def choose(model: str | None, there: Iterable[str], *, best: bool = False) -> str:
    """The name of the file of this model; `model` is None for a job with one model. `there`: the
    files of the run. Raises StoreError if the job has no such model."""
    names = sorted(name for file in there if (name := named(file, best=best)) is not None)
    if model is None and names:
        raise StoreError(f"the job has several models: name one of {', '.join(names)}")
    if model is not None and model not in names:
        known = ", ".join(names) if names else "one model, without a name"
        raise StoreError(f"there is no model {model!r}: the job has {known}")
    return file_of(model or "", best=best)


PART_NBYTES = 4 * 1024 * 1024
"""A state is sent in parts of this size, so that heartbeats are sent between them and no frame is
large."""
_ALWAYS_NBYTES = 64 * 1024 * 1024
_COPIES = 4


def most_nbytes(spec: ModelSpec) -> int:
    """The largest size of a kept state. The lead's process holds one state in memory, so the limit
    depends on the size of the job's model."""
    return _ALWAYS_NBYTES + _COPIES * nbytes_of(spec)


def parts_of(nbytes: int) -> Iterator[tuple[int, int]]:
    """The first and the last byte (exclusive) of each part of a state."""
    for first in range(0, nbytes, PART_NBYTES):
        yield first, min(nbytes, first + PART_NBYTES)
