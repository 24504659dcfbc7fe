"""Points as bytes: every kind of value comes back as it was, and bytes that do not match are refused."""

import json
from typing import Any

import numpy as np
import pytest
import torch

from polyrhythm.errors import LinkError, UsageError
from polyrhythm.learn.migration.layout import (
    COLUMNS,
    Packed,
    Ragged,
    Samples,
    pack,
    pack_columns,
    tensor_of,
    unpack,
)
from polyrhythm.wire.messages import ColumnSpec


def sent(packed: Packed, count: int) -> Packed:
    """The points as the receiver decodes them."""
    payload = memoryview(b"".join(packed.buffers()))
    return unpack(packed.structure, packed.specs, count, payload)


def same(left: Any, right: Any) -> bool:
    if type(left) is not type(right):
        return False
    if isinstance(left, torch.Tensor):
        return left.dtype == right.dtype and torch.equal(left, right)
    if isinstance(left, np.ndarray):
        return left.dtype == right.dtype and np.array_equal(left, right)
    if isinstance(left, tuple | list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    return bool(left == right)


POINTS = {
    "a tensor": [torch.arange(6.0).reshape(2, 3), torch.ones(2, 3)],
    "bfloat16": [torch.tensor([1.5, -2.0], dtype=torch.bfloat16)] * 2,
    "complex numbers": [torch.tensor([1 + 2j])] * 3,
    "booleans": [torch.tensor(True), torch.tensor(False)],
    "an array": [np.arange(3, dtype=np.uint16), np.ones(3, np.uint16)],
    "a scalar of numpy": [np.float32(1.5), np.float32(2.5)],
    "numbers": [(1, 2.5, True), (-3, 0.0, False)],
    "text": ["a", "longer ü", ""],
    "an empty tensor": [torch.empty(0, 4), torch.empty(0, 4)],
    "nested values": [
        {"x": (torch.zeros(2), [n, f"name {n}"]), "y": {"z": np.full((1, 2), n)}} for n in range(3)
    ],
    "a transposed array": [np.arange(6.0).reshape(2, 3).T],
}


@pytest.mark.parametrize("points", POINTS.values(), ids=POINTS)
def test_points_come_back_as_they_were(points: list[Any]) -> None:
    samples = Samples(sent(pack(points), len(points)))
    assert all(same(samples[row], point) for row, point in enumerate(points))


def test_columns_come_back_as_they_were() -> None:
    columns = (torch.arange(6).reshape(3, 2), torch.rand(3).to(torch.bfloat16))
    packed = sent(pack_columns(columns), 3)
    assert packed.structure == COLUMNS
    for spec, column, before in zip(packed.specs, packed.columns, columns, strict=True):
        assert same(tensor_of(spec, column), before)


@pytest.mark.parametrize(
    "points",
    [
        [torch.zeros(2), torch.zeros(3)],
        [torch.zeros(2), torch.zeros(2, dtype=torch.int64)],
        [np.zeros(2), np.zeros(3)],
        [1, 2.0],
        [(1,), (1, 2)],
        [{"a": 1}, {"b": 1}],
    ],
)
def test_points_of_different_shapes_are_not_columns(points: list[Any]) -> None:
    with pytest.raises(Ragged):
        pack(points)


@pytest.mark.parametrize(
    ("point", "words"),
    [
        (object(), "its points contain a object"),
        (None, "its points contain a NoneType"),
        ({1: 2}, "keys that are not text"),
        (2**70, "more than 64 bits"),
        ("a\0b", "NUL character"),
        (np.array(["a"]), "values of type str"),
    ],
)
def test_values_that_cannot_be_sent_are_refused_in_one_line(point: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        pack([point])


FLOATS = ColumnSpec("tensor", "float32", (2,))


@pytest.mark.parametrize(
    ("structure", "spec", "nbytes"),
    [
        ("0", FLOATS, 15),
        ("0", FLOATS, 17),
        ("0", ColumnSpec("tensor", "object", (2,)), 16),
        ("1", FLOATS, 16),
        ("-1", FLOATS, 16),
        ("true", FLOATS, 16),
        ("null", FLOATS, 16),
        ("[]", FLOATS, 16),
        ('["set", 0]', FLOATS, 16),
        ("{", FLOATS, 16),
        ('["list",' * 9 + "0" + "]" * 9, FLOATS, 16),
        ("[" * 4000, FLOATS, 16),
        (json.dumps({"a": "0"}), FLOATS, 16),
    ],
)
def test_bytes_that_do_not_match_are_refused(structure: str, spec: ColumnSpec, nbytes: int) -> None:
    with pytest.raises(LinkError):
        unpack(structure, (spec,), 2, memoryview(bytes(nbytes)))
