"""Reading parts of a file of tensors."""

import torch

from polyrhythm.store.objects import open_store
from polyrhythm.store.tensor_file import encode, read_index, read_tensors
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
