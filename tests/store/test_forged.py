"""Forged manifests and indexes, whose digests are right, are refused with one line."""

from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from polyrhythm.core.placement.slices import lay_out
from polyrhythm.errors import DamagedCheckpoint
from polyrhythm.store.checkpoints import (
    Checkpoint,
    load,
    read_slices,
    verify,
    write_manifest,
    write_slices,
)
from polyrhythm.store.manifest import Manifest, decode_manifest, encode_manifest
from polyrhythm.store.objects import Store, open_store
from polyrhythm.store.tensor_file import digest_of
from polyrhythm.wire.messages import (
    Division,
    FileEntry,
    JobSpec,
    ModelSpec,
    OptimizerSpec,
    TensorSpec,
)
from tests.store.samples import MODEL, layout_for, write_checkpoint


@pytest.fixture
def store(request: pytest.FixtureRequest) -> Store:
    return open_store(f"memory://{request.node.name}")


@pytest.fixture
def whole(store: Store) -> Checkpoint:
    return write_checkpoint(store, 1)


def cut(*division: int) -> ModelSpec:
    return msgspec.structs.replace(MODEL, division=Division(*division))


def forged_manifest(manifest: Manifest, **changes: Any) -> bytes:
    return encode_manifest(msgspec.structs.replace(manifest, **changes))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"model": cut(0, 64)}, "its number of servers, 0, is impossible"),
        ({"model": cut(10**9, 64)}, "servers, 1000000000, is impossible"),
        ({"model": cut(1, 0)}, "0 bytes"),
        ({"model": cut(1, 64, 10**9)}, "probe slices, 1000000000, is impossible"),
        ({"model": MODEL}, "it does not say how its model is cut into slices"),
        ({"model": ModelSpec((), MODEL.optimizer)}, "its model is impossible: it has no tensors"),
        ({"record": FileEntry("../../secret.json", 5, "x")}, "names a file '../../secret.json'"),
        ({"files": (FileEntry("/etc/passwd", 5, "x"),)}, "names a file"),
        ({"kept": FileEntry("", 5, "x")}, "names a file"),
    ],
)
def test_a_forged_manifest_is_refused(whole: Checkpoint, changes: dict[str, Any], why: str) -> None:
    with pytest.raises(DamagedCheckpoint, match="there is damaged: ") as caught:
        decode_manifest(forged_manifest(whole.manifest, **changes), "there")
    assert why in str(caught.value)


def test_a_manifest_that_lacks_a_slice_is_refused(store: Store, whole: Checkpoint) -> None:
    path = "checkpoints/00000001/manifest.json"
    store.put(path, forged_manifest(whole.manifest, files=whole.manifest.files[1:]))
    with pytest.raises(DamagedCheckpoint, match="has no slice 0"):
        verify(store, load(store, 1))


def forge_index(store: Store, whole: Checkpoint, text: bytes, body: bytes | None = None) -> None:
    """Replace the index of the first file, and its tensors if a body is given. The manifest's entry
    for the file is updated to match."""
    entry = whole.manifest.files[0]
    path = f"checkpoints/00000001/{entry.name}"
    if body is None:
        data = bytes(store.get(path))
        body = data[8 + int.from_bytes(data[:8], "little") :]
    head = len(text).to_bytes(8, "little") + text
    store.put(path, [head, body])
    forged = FileEntry(entry.name, len(head) + len(body), digest_of(head), entry.slices)
    files = (forged, *whole.manifest.files[1:])
    store.put("checkpoints/00000001/manifest.json", forged_manifest(whole.manifest, files=files))


def read_all(store: Store) -> None:
    checkpoint = load(store, 1)
    verify(store, checkpoint)
    read_slices(store, checkpoint, layout_for(3).slices)


@pytest.mark.parametrize(
    "index",
    [
        b"",
        b"null",
        b"[]",
        b"\xff",
        b'{"a":1}',
        b'{"__metadata__":[]}',
        b'{"__metadata__":{},"0.parameters":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}',
        b'{"__metadata__":{"x":"0"},"x":{"dtype":"F9","shape":[1],"data_offsets":[0,4]}}',
        b'{"__metadata__":{"x":"0"},"x":{"dtype":"F32","shape":[-1],"data_offsets":[0,-4]}}',
        b'{"__metadata__":{"x":"0"},"x":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}',
        b'{"__metadata__":{"x":"0"},"x":{"dtype":"F32","shape":[99],"data_offsets":[0,396]}}',
        b'{"__metadata__":{"x":"0"},"x":{"dtype":"F32","shape":[1],"data_offsets":[0,400]}}',
        b'{"__metadata__":{"x":"0"},"x":{"dtype":"F32","shape":[1.5],"data_offsets":[0,4]}}',
    ],
)
def test_a_forged_index_is_refused(store: Store, whole: Checkpoint, index: bytes) -> None:
    forge_index(store, whole, index, b"\0\0\0\0")
    with pytest.raises(DamagedCheckpoint, match="is damaged"):
        read_all(store)


@pytest.mark.parametrize("offsets", [((0, 4), (0, 4)), ((0, 4), (8, 12)), ((4, 8), (8, 12))])
def test_tensors_that_overlap_or_leave_gaps_are_refused(
    store: Store, whole: Checkpoint, offsets: tuple[tuple[int, int], ...]
) -> None:
    """Bytes between two tensors would have no digest. The digests in this index are right."""
    body = b"\0" * offsets[-1][1]
    index: dict[str, Any] = {"__metadata__": {name: digest_of(b"\0" * 4) for name in "xy"}}
    for name, place in zip("xy", offsets, strict=True):
        index[name] = {"dtype": "F32", "shape": [1], "data_offsets": place}
    forge_index(store, whole, msgspec.json.encode(index), body)
    with pytest.raises(DamagedCheckpoint, match="do not fit its shape"):
        read_all(store)


@pytest.mark.parametrize("name", ["parameters", "x.parameters", "0.other", "-1.parameters", "0"])
def test_a_file_without_the_parameters_of_its_slices_is_refused(
    store: Store, whole: Checkpoint, name: str
) -> None:
    tensor = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
    index = {"__metadata__": {name: digest_of(b"\0\0\0\0")}, name: tensor}
    forge_index(store, whole, msgspec.json.encode(index), b"\0\0\0\0")
    with pytest.raises(DamagedCheckpoint, match="has no parameters of slice 0"):
        read_all(store)


@given(
    sizes=st.lists(st.tuples(st.integers(0, 300), st.integers(-1, 1)), min_size=1, max_size=6),
    before=st.tuples(st.integers(1, 5), st.integers(64, 900)),
    after=st.tuples(st.integers(1, 9), st.integers(64, 900)),
)
def test_slices_of_any_cut_are_read_from_any_other_cut(
    sizes: list[tuple[int, int]], before: tuple[int, int], after: tuple[int, int]
) -> None:
    model = ModelSpec(
        tuple(
            TensorSpec(f"t{number}", (size,), "float32", group, (1,))
            for number, (size, group) in enumerate([*sizes, (5, 0)])
        ),
        OptimizerSpec("SGD", ({}, {})),
    )
    old, new = lay_out(model, *before), lay_out(model, *after)
    flat = [torch.randn(space.length) for space in old.spaces]
    store = open_store("memory://any-cut")
    store.delete_under("checkpoints")
    written = {
        s.id: {"parameters": flat[s.space][s.offset : s.offset + s.length]} for s in old.slices
    }
    files = [
        write_slices(store, 1, server, {i: t for i, t in written.items() if i % 2 == server})
        for server in range(2)
    ]
    checkpoint = write_manifest(
        store,
        1,
        round=1,
        model=msgspec.structs.replace(model, division=Division(*before)),
        job=JobSpec(job="x"),
        files=files,
        record={},
    )
    found = read_slices(store, checkpoint, new.slices)
    for slice_ in new.slices:
        end = slice_.offset + slice_.length
        assert torch.equal(found[slice_.id]["parameters"], flat[slice_.space][slice_.offset : end])
