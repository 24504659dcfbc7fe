"""Reads a model's file into a model, after a check that both have the same tensors.

*A file is copied into a model only if all names, shapes and dtypes agree. The error message names
the first difference.*
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from polyrhythm.errors import UsageError
from polyrhythm.store.model_open import opened

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


def load_into(model: torch.nn.Module, path: Path) -> None:
    """Copy the tensors of a file into a model, in place. Raises UsageError, and changes nothing, if
    the file is of another model."""
    known = {id(tensor) for tensor in (*model.parameters(), *model.buffers())}
    state = {
        name: value
        for name, value in model.state_dict(keep_vars=True).items()
        if id(value) in known  # a model file has no extra state of modules
    }
    with opened(path) as file:
        if (fault := _difference(file, state)) is not None:
            raise UsageError(f"{path} is not of this model: {fault}")
        with torch.no_grad():
            for name, tensor in state.items():
                tensor.copy_(file.get_tensor(name))


def _difference(file: Any, state: Mapping[str, torch.Tensor]) -> str | None:
    """How the file first differs from this state; None if it does not."""
    there = set(file.keys())
    for name, tensor in state.items():
        if name not in there:
            return f"it has no {name!r}"
        found = file.get_slice(name)
        shape, code = found.get_shape(), found.get_dtype()
        if list(shape) != list(tensor.shape):
            return f"{name!r} has shape {list(shape)}, but shape {list(tensor.shape)} in the model"
        if _DTYPES.get(code) != tensor.dtype:
            dtype = _DTYPES.get(code, code)
            return f"{name!r} is {_word(dtype)}, but {_word(tensor.dtype)} in the model"
    if extra := sorted(there - state.keys()):
        more = "" if len(extra) == 1 else f" and {len(extra) - 1} more"
        return f"the model has no {extra[0]!r}{more}"
    return None


def _word(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")
