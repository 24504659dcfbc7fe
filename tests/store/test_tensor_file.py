"""Reading parts of a file of tensors."""

import pytest
import torch

from polyrhythm.errors import DamagedCheckpoint
from polyrhythm.store.objects import open_store
from polyrhythm.store.tensor_file import encode, read_index, read_tensors, verify_bytes
from polyrhythm.wire.messages import FileEntry


def test_an_index_longer_than_the_first_read_is_read_as_a_whole() -> None:
    tensors = {f"{'layer' * 20}.{number}": torch.full((2,), float(number)) for number in range(900)}
    encoded = encode(tensors)
    assert encoded.buffers[0].nbytes > 64 * 1024, "the index must not fit into the first read"
    store = open_store("memory://tensor-file")
    store.create("file", b"".join(encoded.buffers))
    entry = FileEntry("file", encoded.nbytes, encoded.digest)
    index = read_index(store, "file", entry)
    assert index.places.keys() == tensors.keys()
    names = [list(tensors)[number] for number in (0, 450, 899)]
    found = dict(read_tensors(store, "file", index, names))
    assert all(torch.equal(found[name], tensors[name]) for name in names)


def test_tensors_begin_where_their_elements_can_be_read() -> None:
    """Also behind tensors of odd sizes. A tensor of whole cache lines begins with one."""
    tensors = {
        "bytes": torch.ones(3, dtype=torch.uint8),
        "odd": torch.ones(5),
        "doubles": torch.ones(3, dtype=torch.float64),
        "whole": torch.ones(32),
        "halves": torch.ones(7, dtype=torch.float16),
        "whole doubles": torch.ones(8, dtype=torch.float64),
    }
    encoded = encode(tensors)
    store = open_store("memory://aligned")
    store.create("file", b"".join(encoded.buffers))
    index = read_index(store, "file", FileEntry("file", encoded.nbytes, encoded.digest))
    begins = {name: index.nbytes + place.data_offsets[0] for name, place in index.places.items()}
    for name, tensor in tensors.items():
        unit = 64 if name.startswith("whole") else tensor.element_size()
        assert begins[name] % unit == 0, name


@pytest.mark.parametrize("rest", [b"", b"\0", b"\0" * 64])
def test_a_file_with_bytes_behind_its_tensors_is_damaged(rest: bytes) -> None:
    data = memoryview(b"".join([*encode({"weight": torch.ones(5)}).buffers, rest]))
    if rest:
        with pytest.raises(DamagedCheckpoint, match="its tensors end at byte"):
            verify_bytes(data, "file")
    else:
        assert verify_bytes(data, "file").places.keys() == {"weight"}


@pytest.mark.parametrize("nbytes", [0, 7, 8, 9, 60])
def test_a_file_that_ends_within_its_index_is_damaged(nbytes: int) -> None:
    data = b"".join(encode({"weight": torch.ones(5)}).buffers)[:nbytes]
    with pytest.raises(DamagedCheckpoint, match="its index is longer than the whole file"):
        verify_bytes(memoryview(data), "file")


def test_a_file_with_an_empty_index_is_damaged() -> None:
    with pytest.raises(DamagedCheckpoint, match="its index is unusable"):
        verify_bytes(memoryview(bytes(64)), "file")
