"""The file with the state of the user's code (`worker.keep`): the tensors of the state, and one more
tensor that contains its tree of plain values as JSON.

A worker makes the file and sends it to the lead's process, which verifies it and writes it to the
store. The file contains no pickled object, so reading it runs no code.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from polyrhythm.errors import DamagedCheckpoint
from polyrhythm.store.plain import put_together, take_apart
from polyrhythm.store.tensor_file import Encoded, encode, tensors_in

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
    """The values that `encode_state` got. Raise DamagedCheckpoint if these bytes are not such a
    file."""
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
