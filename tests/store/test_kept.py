"""The file of a kept state: however the file is damaged, reading it never gives another state."""

from typing import Any

import pytest
import torch

from polyrhythm.errors import DamagedCheckpoint
from polyrhythm.store.kept import decode_state, encode_state
from polyrhythm.store.tensor_file import encode

STATE: dict[str, Any] = {"ema": {"w": torch.arange(6.0).reshape(2, 3)}, "count": {"steps": 3}}


def file_of(state: dict[str, Any]) -> bytearray:
    return bytearray(b"".join(encode_state(state).buffers))


def test_a_state_is_a_copy_and_its_values_are_those_that_were_kept() -> None:
    weight = torch.ones(3)
    encoded = encode_state({"ema": {"w": weight, "n": (1, None, "x", 2.5, True)}})
    weight.add_(1)
    found = decode_state(memoryview(b"".join(encoded.buffers)))
    assert torch.equal(found["ema"].pop("w"), torch.ones(3))
    assert found == {"ema": {"n": (1, None, "x", 2.5, True)}}


def test_a_flipped_byte_is_found_wherever_it_is() -> None:
    data = file_of(STATE)
    for at in range(len(data)):
        data[at] ^= 4
        try:
            found = decode_state(memoryview(data))
        except DamagedCheckpoint:
            pass
        else:
            # only a change in the index may go unnoticed here: the manifest has a digest of the
            # index
            assert at < 8 + int.from_bytes(data[:8], "little"), found
        data[at] ^= 4


@pytest.mark.parametrize("nbytes", [0, 1, 8, 50, -1])
def test_a_truncated_state_is_refused(nbytes: int) -> None:
    data = file_of(STATE)
    with pytest.raises(DamagedCheckpoint):
        decode_state(memoryview(data)[:nbytes])


@pytest.mark.parametrize(
    "tree",
    [b"", b"[1]", b"{", b'{"a": ["tensor", "b"]}', b'{"a": ' + b"[" * 5000 + b"]" * 5000 + b"}"],
)
def test_a_tree_that_no_worker_has_made_is_refused(tree: bytes) -> None:
    tensor = torch.tensor(list(tree), dtype=torch.uint8)
    forged = b"".join(encode({".tree": tensor}).buffers)
    with pytest.raises(DamagedCheckpoint):
        decode_state(memoryview(forged))


def test_a_file_without_a_tree_is_refused() -> None:
    forged = b"".join(encode({"a": torch.ones(2)}).buffers)
    with pytest.raises(DamagedCheckpoint, match="no tree"):
        decode_state(memoryview(forged))
