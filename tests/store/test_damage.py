"""A damaged checkpoint is never loaded. The checkpoint before it is loaded instead, with a
message."""

import uuid
from pathlib import Path

import msgspec
import pytest

from polyrhythm.errors import DamagedCheckpoint, StoreError
from polyrhythm.store.checkpoints import Checkpoint, load, newest, read_slices, verify
from polyrhythm.store.listing import listing, prune
from polyrhythm.store.manifest import FORMAT, OtherVersion, decode_manifest, encode_manifest
from polyrhythm.store.objects import Store, open_store
from tests.commands.start import start_script
from tests.store.samples import check_slices, layout_for, write_checkpoint

FILES = ("manifest", "record", "first slices", "last slices")


@pytest.fixture
def memory() -> Store:
    return open_store(f"memory://{uuid.uuid4().hex}")


def path_of(checkpoint: Checkpoint, file: str) -> str:
    manifest = checkpoint.manifest
    names = {
        "manifest": "manifest.json",
        "record": manifest.record.name,
        "first slices": manifest.files[0].name,
        "last slices": manifest.files[-1].name,
    }
    return f"checkpoints/{checkpoint.number:08d}/{names[file]}"


def check_fallback(store: Store, before: Checkpoint, damaged: int) -> None:
    """Assert that the checkpoint before the damaged one is found, with one message."""
    told: list[str] = []
    assert newest(store, told.append) == before
    assert len(told) == 1
    assert told[0].startswith(f"checkpoint {damaged} is not used: ") and "\n" not in told[0]


def flip(data: bytes, position: int, bit: int = 0) -> bytes:
    return data[:position] + bytes([data[position] ^ 1 << bit]) + data[position + 1 :]


@pytest.mark.parametrize("file", FILES)
def test_a_flipped_byte_is_found_in_every_store(store: Store, file: str) -> None:
    first, second = write_checkpoint(store, 1), write_checkpoint(store, 2, seed=1)
    path = path_of(second, file)
    data = bytes(store.get(path))
    store.put(path, flip(data, len(data) // 2))
    check_fallback(store, first, 2)
    store.put(path, data)
    assert newest(store, pytest.fail) == second


@pytest.mark.parametrize("file", FILES)
def test_no_flipped_byte_goes_unnoticed(memory: Store, file: str) -> None:
    """The test flips one bit at a time, at up to 400 places of a file. The earlier checkpoint has one
    file of slices, because it is read again after every change."""
    first = write_checkpoint(memory, 1, servers=1)
    second = write_checkpoint(memory, 2, seed=1)
    path = path_of(second, file)
    data = bytes(memory.get(path))
    places = [*range(0, len(data), -(-len(data) // 400)), len(data) - 1]
    for place in places:
        memory.put(path, flip(data, place, place % 8))
        check_fallback(memory, first, 2)


def test_an_index_that_names_another_dtype_is_found(memory: Store) -> None:
    """The changed index has no contradictions, so only its digest shows that it was changed."""
    first, second = write_checkpoint(memory, 1), write_checkpoint(memory, 2, seed=1)
    path = path_of(second, "first slices")
    data = bytes(memory.get(path))
    memory.put(path, data.replace(b'"dtype":"F32"', b'"dtype":"I32"'))
    check_fallback(memory, first, 2)


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("kept", [0.0, 0.5, -1])
def test_a_truncated_file_is_found(store: Store, file: str, kept: float) -> None:
    first, second = write_checkpoint(store, 1), write_checkpoint(store, 2)
    path = path_of(second, file)
    data = bytes(store.get(path))
    store.put(path, data[:-1] if kept < 0 else data[: int(len(data) * kept)])
    check_fallback(store, first, 2)


@pytest.mark.parametrize("file", FILES)
def test_a_file_that_grew_is_found(store: Store, file: str) -> None:
    first, second = write_checkpoint(store, 1), write_checkpoint(store, 2)
    path = path_of(second, file)
    store.put(path, [store.get(path), b"x"])
    check_fallback(store, first, 2)


@pytest.mark.parametrize("file", FILES)
def test_a_missing_file_is_found(store: Store, file: str) -> None:
    first, second = write_checkpoint(store, 1), write_checkpoint(store, 2)
    store.delete([path_of(second, file)])
    check_fallback(store, first, 2)


def test_a_file_of_another_checkpoint_is_found(store: Store) -> None:
    first, second = write_checkpoint(store, 1), write_checkpoint(store, 2, seed=1)
    for file in ("first slices", "manifest"):
        own = bytes(store.get(path_of(second, file)))
        store.put(path_of(second, file), store.get(path_of(first, file)))
        check_fallback(store, first, 2)
        store.put(path_of(second, file), own)


def test_without_a_whole_checkpoint_one_line_says_so(store: Store) -> None:
    for number in (1, 2):
        store.delete([path_of(write_checkpoint(store, number), "record")])
    told: list[str] = []
    with pytest.raises(StoreError, match="no checkpoint in .* is whole: all 2 are damaged"):
        newest(store, told.append)
    assert len(told) == 2


def test_damage_in_a_slice_that_is_not_read_does_not_stop_a_reader(store: Store) -> None:
    """A server verifies only the slices that it reads."""
    checkpoint = write_checkpoint(store, 1)
    path = path_of(checkpoint, "first slices")
    data = bytes(store.get(path))
    store.put(path, flip(data, len(data) - 1))
    layout = layout_for(3)
    damaged = []
    for slice_ in layout.slices:
        try:
            check_slices(read_slices(store, checkpoint, [slice_]), layout)
        except DamagedCheckpoint:
            damaged.append(slice_.id)
    assert len(damaged) == 1 and damaged[0] in checkpoint.manifest.files[0].slices


def test_a_store_that_cannot_be_read_is_not_taken_for_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a fault of the network counted as damage, a job would continue from an older
    checkpoint."""
    store = open_store(str(tmp_path))
    write_checkpoint(store, 1)
    second = write_checkpoint(store, 2)
    path = tmp_path / path_of(second, "first slices")
    path.unlink()
    path.mkdir()  # reading a folder as a file gives an input/output error, even for root
    with pytest.raises(StoreError) as caught:
        verify(store, second)
    assert not isinstance(caught.value, DamagedCheckpoint)


# -- versions --------------------------------------------------------------------------------------


def of_another_version(data: bytes) -> bytes:
    """Write a manifest as a later version would: with the same outer form and other contents."""
    from polyrhythm.store.manifest import _digest, _Envelope

    raw = msgspec.json.encode({"number": 2, "news": ["x"]})
    return msgspec.json.encode(_Envelope(FORMAT + 1, _digest(FORMAT + 1, raw), msgspec.Raw(raw)))


def test_a_checkpoint_of_another_version_is_not_skipped(store: Store) -> None:
    write_checkpoint(store, 1)
    second = write_checkpoint(store, 2)
    path = path_of(second, "manifest")
    store.put(path, of_another_version(bytes(store.get(path))))
    with pytest.raises(OtherVersion, match=r"another version of polyrhythm \(checkpoint format 3"):
        newest(store, pytest.fail)
    assert [each.other_version for each in listing(store)] == [False, True]


def test_prune_leaves_checkpoints_of_another_version(store: Store) -> None:
    for number in (1, 2, 3):
        checkpoint = write_checkpoint(store, number)
        if number == 1:
            path = path_of(checkpoint, "manifest")
            store.put(path, of_another_version(bytes(store.get(path))))
    assert prune(store, 1) == [2]
    assert [each.number for each in listing(store)] == [1, 3]


def test_a_manifest_without_a_field_is_of_another_version(memory: Store) -> None:
    manifest = write_checkpoint(memory, 1).manifest
    fields = msgspec.json.decode(msgspec.json.encode(manifest))
    del fields["version"]
    with pytest.raises(OtherVersion, match="version"):
        decode_manifest(encode_manifest(fields), "there")


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"null", b"\xff\xfe", b'{"format":"x"}'])
def test_other_bytes_are_no_manifest(data: bytes) -> None:
    with pytest.raises(DamagedCheckpoint, match="there is damaged"):
        decode_manifest(data, "there")


# -- kills -----------------------------------------------------------------------------------------

WRITES = ("slices 0", "slices 1", "slices 2", "record", "manifest")
WRITERS = """
import os, signal, sys
sys.path.insert(0, os.getcwd())
from polyrhythm.store.objects import Store, open_store
from tests.store.samples import write_checkpoint

def dying(write, last, when):
    def wrapper(*arguments):
        global count
        count += 1
        if count == last and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        done = write(*arguments)
        if count == last:
            os.kill(os.getpid(), signal.SIGKILL)
        return done
    return wrapper

for last in range(1, 6):
    for when in ("before", "after"):
        if pid := os.fork():
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
            continue
        store = open_store(f"{sys.argv[1]}/{when}-{last}", make=True)
        write_checkpoint(store, 1)
        count = 0
        Store.put, Store.create = dying(Store.put, last, when), dying(Store.create, last, when)
        write_checkpoint(store, 2, seed=1)
"""


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stores whose writer was killed during its second checkpoint, in each store at a different
    write."""
    folder = tmp_path_factory.mktemp("killed")
    script, root = folder / "reporting.py", Path(__file__).parents[2]
    script.write_text(WRITERS)
    writers = start_script(script, str(folder), cwd=root)
    assert writers.wait(100) == 0
    return folder


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("write", WRITES)
def test_a_checkpoint_exists_from_its_last_write_on(killed: Path, write: str, when: str) -> None:
    store = open_store(str(killed / f"{when}-{WRITES.index(write) + 1}"))
    told: list[str] = []
    found = newest(store, told.append)
    if (write, when) == ("manifest", "after"):
        assert found.number == 2 and not told
        check_slices(read_slices(store, load(store, 2), layout_for(3).slices), layout_for(3), 1)
    elif (write, when) == ("slices 0", "before"):
        assert found.number == 1 and not told
    else:
        assert found.number == 1 and len(told) == 1
        assert "checkpoint 2" in told[0] and "it has no manifest" in told[0]
