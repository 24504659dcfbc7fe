"""The state of one slice as tensors with names: its parameters, and what its updater keeps. Servers send
it to each other when slices move; with `--optimizer-on workers` it goes between workers and servers.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from polyrhythm.errors import LinkError
from polyrhythm.tensors.dtypes import DTYPES, HALVES, NAMES, tensor_over
from polyrhythm.tensors.held import Held
from polyrhythm.tensors.updater import Updater
from polyrhythm.wire.messages import Given, Shared, SliceStep, State

PARAMETERS = "parameters"
_LONGEST_NAME = 100
SliceState = dict[str, torch.Tensor]
"""The state of a slice after its last step: its parameters and the tensors of its updater, by
name."""


def export_state(held: Held, updater: Updater) -> SliceState:
    return {PARAMETERS: held.parameters, **updater.export(held)}


def adopt_state(held: Held, updater: Updater, state: SliceState) -> None:
    """Begin a slice with this state. The parameters are copied. The other tensors are used without
    a copy, so the caller must not use them any more. Tensors of half precision, from checkpoints of
    earlier versions of polyrhythm, are converted."""
    held.parameters.copy_(state[PARAMETERS])
    dtype = held.parameters.dtype
    rest = {
        name: tensor.to(dtype) if tensor.dtype in HALVES else tensor
        for name, tensor in state.items()
        if name != PARAMETERS
    }
    if rest:
        updater.adopt(held, rest)


_WEIGHT, _RATE, _SCALE, _PER_ROUND = "weight", "rate", "scale", "per round"


def sum_state(total: torch.Tensor, step: SliceStep) -> SliceState:
    """With `--optimizer-on workers`, the content of a slice on servers: the sum of its gradients in
    the present version, and the step that workers make with it."""
    numbers = {
        _WEIGHT: step.weight,
        _RATE: step.rate,
        _SCALE: step.scale,
        _PER_ROUND: step.per_round,
    }
    values = {name: torch.tensor(value, dtype=torch.float64) for name, value in numbers.items()}
    return {PARAMETERS: total, **values}


def is_sum(state: Mapping[str, torch.Tensor]) -> bool:
    """Whether a state was made by `sum_state`."""
    return _SCALE in state


def step_in(state: Mapping[str, torch.Tensor]) -> SliceStep:
    names = (_WEIGHT, _RATE, _SCALE, _PER_ROUND)
    weight, rate, scale, per_round = (float(state[name]) for name in names)
    return SliceStep(weight, rate, scale=scale, per_round=per_round)


def checked_tensor(
    message: State | Shared | Given, data: memoryview, held: Held, updater: Updater
) -> torch.Tensor:
    """One tensor of the state of a slice. Raises LinkError if the slice cannot have such a tensor."""
    fault = _fault_of(message, len(data), held, updater.most_tensors)
    if fault is not None:
        raise LinkError(
            f"the peer sent a state of slice {message.slice} that is not valid: {fault}"
        )
    return tensor_over(data, DTYPES[message.dtype]).reshape(message.shape)


def _fault_of(
    message: State | Shared | Given, nbytes: int, held: Held, most_tensors: int
) -> str | None:
    """Describe what is wrong with one tensor of a state; None if it is valid. Only scalars and
    tensors of the slice's length are accepted, so the memory that a peer can make this process use
    is limited to a few times the slice."""
    length = held.slice.length
    dtype = DTYPES.get(message.dtype)
    if dtype is None:
        return f"its dtype {message.dtype[:_LONGEST_NAME]!r} is not known"
    if not 0 < message.parts <= 1 + most_tensors or not 0 <= message.part < message.parts:
        return f"it cannot be part {message.part} of {message.parts}"
    if message.shape not in ((), (1,), (length,)):
        return f"its shape, of {len(message.shape)} dimensions, does not fit the slice"
    if nbytes != math.prod(message.shape) * dtype.itemsize:
        return f"its {nbytes} bytes do not fit its shape and dtype"
    if len(message.name) > _LONGEST_NAME:
        return f"its name is too long: it has {len(message.name)} characters"
    if message.name == PARAMETERS and (message.shape, dtype) != (
        (length,),
        held.parameters.dtype,
    ):
        return f"its parameters are {message.dtype}, which does not fit the dtype or length of the slice"
    return None


def parts_of_state(state: SliceState) -> Iterator[tuple[dict[str, Any], memoryview]]:
    """The fields of the message for each tensor of a state, and a copy of the tensor's bytes."""
    for number, (name, tensor) in enumerate(state.items()):
        dtype, shape = NAMES[tensor.dtype], tuple(tensor.shape)
        fields = {"name": name, "dtype": dtype, "shape": shape, "part": number, "parts": len(state)}
        flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
        yield fields, memoryview(bytes(flat.numpy()))
