"""Names of dtypes on the wire, and the torch dtypes that they stand for."""

import warnings

import torch

from polyrhythm.core.placement.slices import Space
from polyrhythm.wire.messages import JobSpec

DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int64": torch.int64,
    "int32": torch.int32,
    "int16": torch.int16,
    "int8": torch.int8,
    "uint8": torch.uint8,
    "bool": torch.bool,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


def wire_dtype(space: Space, wire: str) -> torch.dtype:
    """Return the dtype in which a space's slices are sent. With `bf16`, this is bfloat16 for
    float32 parameters; buffers are always sent in their own dtype."""
    if wire == "bf16" and space.dtype == "float32" and not space.buffers:
        return torch.bfloat16
    return DTYPES[space.dtype]


HALVES = (torch.bfloat16, torch.float16)


def held_dtype(space: Space, job: JobSpec) -> torch.dtype:
    """Return the dtype in which servers hold a space. *Parameters of half precision have master
    copies in float32*: a step that is too small to change a half-precision number is not lost.
    Plain addition, which only benchmarks use, keeps the dtype of the model."""
    dtype = DTYPES[space.dtype]
    masters = dtype in HALVES and not space.buffers and job.updater != "addition"
    return torch.float32 if masters else dtype


def tensor_over(memory: memoryview, dtype: torch.dtype) -> torch.Tensor:
    """Return this memory as a flat tensor, without a copy. The tensor keeps the memory alive."""
    return torch.frombuffer(memory, dtype=dtype)


with warnings.catch_warnings():
    # torch warns once per process when a tensor is made over read-only memory. A peer's segment is
    # read-only on purpose, so the warning is triggered and ignored here, before any thread runs.
    warnings.simplefilter("ignore")
    torch.frombuffer(memoryview(b"\0"), dtype=torch.uint8)
