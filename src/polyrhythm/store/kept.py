"""The file with the state of the user's code (`worker.keep`): the tensors of the state, and one
more tensor that contains its tree of plain values as JSON.

A worker makes the file and sends it to the lead's process, which verifies it and writes it to the
store. The file contains no pickled object, so reading it runs no code.
"""

import math
from collections import Counter, OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from polyrhythm.errors import DamagedCheckpoint, UsageError
from polyrhythm.store.tensor_file import Encoded, encode, stores, tensors_in

if TYPE_CHECKING:
    import torch


_MOST_DEPTH = 64
_LARGE = 2**53
"""Integers whose absolute value is this or larger are stored as text, because some JSON readers
would round them."""
_MAPPINGS: dict[type, str] = {dict: "dict", OrderedDict: "ordered", Counter: "counter"}
_MAKE: dict[str, type] = {kind: type_ for type_, kind in _MAPPINGS.items()}
_KEYS = (str, int, float, bool, type(None))


def take_apart(value: Any, path: str) -> "tuple[Any, dict[str, torch.Tensor]]":
    """The tree of a value, and its tensors by name. `path` is the name of the value; the names of
    its tensors begin with it. Tensors are not copied. Raise UsageError if a value cannot be stored.

    Such states are stored in checkpoints without pickle, so that loading a checkpoint runs no code.
    A value that is neither a tensor nor a plain value is refused before anything is written; the
    error names its path. The tree is JSON: numbers, text, true, false and null stand for
    themselves, and every other value is a list that begins with the kind of the value.
    """
    tensors: dict[str, torch.Tensor] = {}
    return _tree(value, path, tensors, 0), tensors


def put_together(tree: Any, tensors: "Mapping[str, torch.Tensor]") -> Any:
    """The value that `take_apart` has taken apart. Its tensors are copies. Raise DamagedCheckpoint
    for a tree that `take_apart` cannot have made."""
    try:
        return _value(tree, tensors, 0)
    except (KeyError, ValueError, TypeError) as error:
        raise DamagedCheckpoint(f"a kept state is unusable: {error!r}") from None


def _tree(value: Any, path: str, tensors: "dict[str, torch.Tensor]", depth: int) -> Any:
    import torch

    if depth > _MOST_DEPTH:
        raise UsageError(f"{path} cannot be kept: it is more than {_MOST_DEPTH} levels deep")
    if isinstance(value, torch.Tensor):
        return _kept_tensor(value, path, tensors)
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return int(value) if abs(value) < _LARGE else ["int", str(int(value))]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else ["float", repr(float(value))]
    if type(value) in (list, tuple):
        items = [_tree(e, f"{path}[{n}]", tensors, depth + 1) for n, e in enumerate(value)]
        return [type(value).__name__, *items]
    if type(value) in _MAPPINGS:
        return [_MAPPINGS[type(value)], *_pairs(value, path, tensors, depth)]
    raise UsageError(
        f"{path} cannot be kept: it is of type {type(value).__name__}, and only tensors, numbers,"
        " text, lists, tuples and dicts are kept"
    )


def _kept_tensor(tensor: "torch.Tensor", path: str, tensors: "dict[str, torch.Tensor]") -> Any:
    import torch

    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_complex():
        raise UsageError(f"{path} cannot be kept: it is not a dense tensor of real numbers")
    if not stores(tensor):
        raise UsageError(f"{path} cannot be kept: the dtype {tensor.dtype} is not supported")
    name = path
    while name in tensors:  # two values can have one path: the keys 1 and "1" of a dict
        name += "'"
    tensors[name] = tensor
    return ["tensor", name]


def _pairs(
    mapping: Mapping[Any, Any], path: str, tensors: "dict[str, torch.Tensor]", depth: int
) -> list[Any]:
    pairs = []
    for key, value in mapping.items():
        if type(key) not in _KEYS:
            raise UsageError(
                f"{path} cannot be kept: it has a key of type {type(key).__name__}, and only"
                " numbers and text are kept as keys"
            )
        below = f"{path}.{key}"
        pairs.append([_tree(key, below, tensors, depth), _tree(value, below, tensors, depth + 1)])
    return pairs


def _value(tree: Any, tensors: "Mapping[str, torch.Tensor]", depth: int) -> Any:
    if depth > _MOST_DEPTH:
        raise ValueError(f"it is more than {_MOST_DEPTH} levels deep")
    if not isinstance(tree, list):
        if isinstance(tree, dict):
            raise ValueError("it contains a value of an unknown type")
        return tree
    kind, *parts = tree
    if kind == "tensor":
        (name,) = parts
        return tensors[name].clone()
    if kind in ("int", "float"):
        (text,) = parts
        return int(text) if kind == "int" else float(text)
    if kind in ("list", "tuple"):
        items = [_value(part, tensors, depth + 1) for part in parts]
        return items if kind == "list" else tuple(items)
    made = _MAKE[kind]()
    for key, value in parts:
        made[_value(key, tensors, depth)] = _value(value, tensors, depth + 1)
    return made


_TREE = ".tree"
"""The name of the tensor with the tree. It begins with a dot, unlike all names of kept tensors."""
_WHERE = "the state of worker.keep"


def encode_state(states: Mapping[str, Any]) -> Encoded:
    """Make a file of these values, by their names. The file is a copy, so the values may change
    afterwards. Raise UsageError for a value that cannot be stored; the error names its path."""
    import torch

    trees: dict[str, Any] = {}
    tensors: dict[str, torch.Tensor] = {}
    for name, state in states.items():
        trees[name], found = take_apart(state, name)
        tensors.update({key: tensor.detach().clone() for key, tensor in found.items()})
    text = bytearray(msgspec.json.encode(trees))
    tensors[_TREE] = torch.frombuffer(text, dtype=torch.uint8)
    return encode(tensors)


def decode_state(data: memoryview) -> dict[str, Any]:
    """Decode the values that `encode_state` has encoded. Raise DamagedCheckpoint if these bytes are
    not such a file."""
    tensors = tensors_in(data, _WHERE)
    tree = tensors.pop(_TREE, None)
    if tree is None:
        raise DamagedCheckpoint(f"{_WHERE} is damaged: it has no tree of plain values")
    try:
        trees = msgspec.json.decode(tree.numpy().tobytes(), type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, TypeError):
        raise DamagedCheckpoint(
            f"{_WHERE} is damaged: its tree of plain values is unusable"
        ) from None
    return {name: put_together(tree, tensors) for name, tree in trees.items()}
