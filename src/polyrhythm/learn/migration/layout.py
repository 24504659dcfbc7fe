"""Points as bytes in a declared layout, without pickle.

A point of a data set is a tensor, an array, a number, a text, or a tuple, list or dict of these.
All points of a part have the same structure and shapes, so each value of the structure becomes a
column: an array whose first dimension counts the points. The structure is JSON: a whole number is
the index of a column, `["tuple", ...]` and `["list", ...]` contain structures, and `{...}` is a
dict. `columns` says that the data set is read in whole columns instead of single points.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from polyrhythm.errors import LinkError, UsageError
from polyrhythm.wire.messages import ColumnSpec

COLUMNS = "columns"
Column = npt.NDArray[Any]
_DEEPEST = 8
_BFLOAT16 = "bfloat16"
"""numpy has no bfloat16: its bits are sent as int16."""
_DTYPES = {
    *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
    *("float16", "float32", "float64", "complex64", "complex128", _BFLOAT16),
}
_NUMBERS: dict[type, str] = {bool: "bool", int: "int64", float: "float64"}


@dataclass(frozen=True, slots=True)
class Packed:
    """Points in columns. `structure`: how the values of the columns form a point."""

    structure: str
    specs: tuple[ColumnSpec, ...]
    columns: tuple[Column, ...]

    @property
    def nbytes(self) -> int:
        return sum(column.nbytes for column in self.columns)

    def buffers(self) -> list[memoryview]:
        flat = [column.reshape(-1).view(np.uint8) for column in self.columns if column.nbytes]
        return [column.data for column in flat]


class Ragged(Exception):
    """The points differ in shape, so they cannot be packed into common columns."""


def pack_columns(tensors: Sequence[torch.Tensor]) -> Packed:
    """Pack points that were read as whole columns."""
    specs, columns = [], []
    for tensor in tensors:
        spec, column = column_of(tensor)
        specs.append(ColumnSpec("tensor", spec, tuple(tensor.shape[1:])))
        columns.append(column)
    return Packed(COLUMNS, tuple(specs), tuple(columns))


def pack(samples: Sequence[Any]) -> Packed:
    """Pack points. Raises Ragged if they differ in shape, and UsageError if a value cannot be
    sent."""
    leaves: list[list[Any]] = []
    structure = _structure(samples[0], leaves, 0)
    for sample in samples[1:]:
        again: list[list[Any]] = []
        if _structure(sample, again, 0) != structure:
            raise Ragged
        for column, (value,) in zip(leaves, again, strict=True):
            column.append(value)
    found = [_column(values) for values in leaves]
    return Packed(
        json.dumps(structure), tuple(spec for spec, _ in found), tuple(array for _, array in found)
    )


def _structure(value: Any, leaves: list[list[Any]], depth: int) -> Any:
    if depth > _DEEPEST:
        raise UsageError("its points are nested too deeply")
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise UsageError("its points are dicts with keys that are not text")
        return {key: _structure(each, leaves, depth + 1) for key, each in value.items()}
    if type(value) in (tuple, list):
        return [type(value).__name__, *(_structure(each, leaves, depth + 1) for each in value)]
    leaves.append([value])
    return len(leaves) - 1


def _column(values: list[Any]) -> tuple[ColumnSpec, Column]:
    first = values[0]
    if any(type(value) is not type(first) for value in values):
        raise Ragged
    if isinstance(first, torch.Tensor):
        if any(each.shape != first.shape or each.dtype != first.dtype for each in values):
            raise Ragged
        dtype, column = column_of(torch.stack([each.detach().cpu() for each in values]))
        return ColumnSpec("tensor", dtype, tuple(first.shape)), column
    if isinstance(first, np.ndarray | np.generic):
        if any(each.shape != first.shape or each.dtype != first.dtype for each in values):
            raise Ragged
        kind = "array" if isinstance(first, np.ndarray) else "scalar"
        return ColumnSpec(kind, _known(first.dtype.name), first.shape), np.stack(values)
    if type(first) is str:
        texts = [value.encode() for value in values]
        longest = max(1, *map(len, texts)) if len(texts) > 1 else max(1, len(texts[0]))
        if any(b"\0" in text for text in texts):
            raise UsageError("its points contain text with a NUL character")
        array = np.array(texts, dtype=f"S{longest}").view(np.uint8).reshape(len(texts), longest)
        return ColumnSpec("str", "uint8", (longest,)), np.ascontiguousarray(array)
    if type(first) in _NUMBERS:
        dtype = _NUMBERS[type(first)]
        try:
            return ColumnSpec(type(first).__name__, dtype, ()), np.array(values, dtype=dtype)
        except OverflowError:
            raise UsageError("its points contain a whole number of more than 64 bits") from None
    raise UsageError(
        f"its points contain a {type(first).__name__}; give tensors, arrays, numbers or text, in tuples,"
        " lists or dicts"
    )


def column_of(tensor: torch.Tensor) -> tuple[str, Column]:
    """The name of the type of a tensor, and its values as an array."""
    name = str(tensor.dtype).removeprefix("torch.")
    tensor = tensor.detach().cpu().contiguous()
    if name == _BFLOAT16:
        return name, tensor.view(torch.int16).numpy()
    return _known(name), tensor.numpy()


def _known(name: str) -> str:
    if name not in _DTYPES:
        raise UsageError(f"its points contain values of type {name}, which cannot be sent")
    return name


def unpack(structure: str, specs: Sequence[ColumnSpec], count: int, payload: memoryview) -> Packed:
    """Read columns from bytes, and copy them. Raises LinkError if the bytes do not match."""
    columns, at = [], 0
    for spec in specs:
        if spec.dtype not in _DTYPES:
            raise LinkError(f"a chunk contains values of the unknown type {spec.dtype!r}")
        dtype = np.dtype("int16" if spec.dtype == _BFLOAT16 else spec.dtype)
        size = dtype.itemsize * count
        for length in spec.shape:
            size *= length
        if at + size > len(payload):
            raise LinkError("a part of a chunk has fewer bytes than its columns need")
        array = np.frombuffer(payload[at : at + size], dtype).reshape(count, *spec.shape)
        columns.append(array.copy())
        at += size
    if at != len(payload):
        raise LinkError("a part of a chunk has more bytes than its columns need")
    if structure != COLUMNS:
        _check(_parsed(structure), len(specs), 0)
    return Packed(structure, tuple(specs), tuple(columns))


def _parsed(structure: str) -> Any:
    try:
        return json.loads(structure)
    except (ValueError, RecursionError):
        raise LinkError("the structure of a chunk's points is not understood") from None


def _check(structure: Any, columns: int, depth: int) -> None:
    good = depth <= _DEEPEST
    if type(structure) is int:
        good = good and 0 <= structure < columns
    elif isinstance(structure, dict):
        for each in structure.values():
            _check(each, columns, depth + 1)
    elif isinstance(structure, list) and structure and structure[0] in ("tuple", "list"):
        for each in structure[1:]:
            _check(each, columns, depth + 1)
    else:
        good = False
    if not good:
        raise LinkError("the structure of a chunk's points is not understood")


class Samples:
    """The points of a part, one by one."""

    def __init__(self, packed: Packed) -> None:
        self._packed = packed
        columns = packed.structure == COLUMNS
        self._structure = (
            ["tuple", *range(len(packed.specs))] if columns else _parsed(packed.structure)
        )

    def __getitem__(self, row: int) -> Any:
        return self._made(self._structure, row)

    def _made(self, structure: Any, row: int) -> Any:
        if type(structure) is int:
            return self._value(structure, row)
        if isinstance(structure, dict):
            return {key: self._made(each, row) for key, each in structure.items()}
        values = [self._made(each, row) for each in structure[1:]]
        return tuple(values) if structure[0] == "tuple" else values

    def _value(self, column: int, row: int) -> Any:
        spec, value = self._packed.specs[column], self._packed.columns[column][row]
        if spec.kind == "tensor":
            return tensor_of(spec, self._packed.columns[column][row : row + 1])[0].clone()
        if spec.kind == "array":
            return value.copy()
        if spec.kind == "scalar":
            return value
        if spec.kind == "str":
            return value.tobytes().rstrip(b"\0").decode()
        return value.item()


def tensor_of(spec: ColumnSpec, column: Column) -> torch.Tensor:
    """A column as a tensor, which shares its memory."""
    tensor = torch.from_numpy(column)
    return tensor.view(torch.bfloat16) if spec.dtype == _BFLOAT16 else tensor
