"""A checkpoint exists when its manifest exists. Reading it returns what was written, and a damaged
checkpoint is refused."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file

from polyrhythm.errors import DamagedCheckpoint, StoreError, StoreFull, StoreTaken
from polyrhythm.store.checkpoints import (
    load,
    newest,
    next_number,
    path_of,
    read_kept,
    read_record,
    read_slices,
    verify,
    write_kept,
    write_manifest,
    write_slices,
)
from polyrhythm.store.kept import decode_state, encode_state
from polyrhythm.store.listing import listing, prune, with_room
from polyrhythm.store.objects import Buffer, Store, open_store
from tests.store.samples import (
    MODEL,
    RECORD,
    SLICE_NBYTES,
    check_slices,
    layout_for,
    write_checkpoint,
)


def test_a_checkpoint_is_read_as_it_was_written(store: Store) -> None:
    written = write_checkpoint(store)
    found = newest(store, pytest.fail)
    assert found == written
    assert read_record(store, found, Any) == RECORD
    layout = layout_for(3)
    check_slices(read_slices(store, found, layout.slices), layout)


def test_chosen_slices_are_read_alone(store: Store) -> None:
    write_checkpoint(store)
    layout = layout_for(3)
    found = read_slices(store, load(store, 1), [layout.slices[1], layout.slices[-1]])
    assert found.keys() == {1, layout.slices[-1].id}
    check_slices(found, layout)


@pytest.mark.parametrize(("servers", "slice_nbytes"), [(1, 512), (7, 300), (1, 10**6), (2, 700)])
def test_slices_that_are_cut_in_another_way_are_assembled(
    store: Store, servers: int, slice_nbytes: int
) -> None:
    write_checkpoint(store)
    layout = layout_for(servers, slice_nbytes)
    assert layout.slices != layout_for(3).slices
    check_slices(read_slices(store, load(store, 1), layout.slices), layout)


def test_a_slice_without_a_step_counts_as_zero_when_slices_are_joined(store: Store) -> None:
    layout, wide = layout_for(3), layout_for(1, 10**6)
    slices: dict[int, dict[str, torch.Tensor]] = {
        s.id: {"parameters": torch.ones(s.length)} for s in layout.slices
    }
    stepped = layout.slices[1]
    slices[1] |= {"exp_avg": torch.full((stepped.length,), 3.0), "step": torch.tensor(2.0)}
    files = [write_slices(store, 1, 0, slices)]
    _write_manifest(store, files)
    found = read_slices(store, load(store, 1), wide.slices[:1])[0]
    expected = torch.zeros(wide.slices[0].length)
    expected[stepped.offset : stepped.offset + stepped.length] = 3.0
    assert torch.equal(found["exp_avg"], expected)
    assert found["step"] == 2.0


def test_a_file_of_slices_is_a_safetensors_file(tmp_path: Any) -> None:
    store = open_store(str(tmp_path))
    tensors = {
        "parameters": torch.randn(33).to(torch.bfloat16),
        "odd": torch.tensor([True, False, True]),
        "none": torch.empty(0),
        "step": torch.tensor(3.0),
        "wide": torch.arange(6).reshape(2, 3).t(),
    }
    entry = write_slices(store, 1, 0, {4: tensors})
    found = load_file(tmp_path / "checkpoints" / "00000001" / entry.name)
    assert found.keys() == {f"4.{name}" for name in tensors}
    for name, tensor in tensors.items():
        assert torch.equal(found[f"4.{name}"], tensor)


def test_a_kept_state_is_read_as_it_was_written(store: Store) -> None:
    kept = {"ema": {"weight": torch.randn(3, 4)}, "scheduler": {"rates": [0.1, 0.2], "last": 7}}
    entry = write_kept(store, 1, memoryview(b"".join(encode_state(kept).buffers)))
    slices = {s.id: {"parameters": torch.ones(s.length)} for s in layout_for(3).slices}
    written = _write_manifest(store, [write_slices(store, 1, 0, slices)], kept=entry)
    found = decode_state(read_kept(store, load(store, 1)))
    assert found["scheduler"] == kept["scheduler"]
    assert torch.equal(found["ema"]["weight"], kept["ema"]["weight"])  # type: ignore[arg-type]
    verify(store, written)


def test_the_kept_state_of_another_checkpoint_is_not_read(store: Store) -> None:
    """It has the same size, and its own digests are right."""
    entries = [
        write_kept(store, 1, memoryview(b"".join(encode_state({"n": n}).buffers))) for n in (1, 2)
    ]
    slices = {s.id: {"parameters": torch.ones(s.length)} for s in layout_for(3).slices}
    _write_manifest(store, [write_slices(store, 1, 0, slices)], kept=entries[0])
    assert entries[0].nbytes == entries[1].nbytes
    store.put(path_of(1, entries[0].name), store.get(path_of(1, entries[1].name)))
    with pytest.raises(DamagedCheckpoint, match="its digest differs"):
        read_kept(store, load(store, 1))


def test_without_a_manifest_there_is_no_checkpoint(store: Store) -> None:
    with pytest.raises(StoreError, match="there is no checkpoint in "):
        newest(store, pytest.fail)
    first = write_checkpoint(store, 1)
    write_slices(store, 2, 0, {0: {"parameters": torch.ones(3)}})
    told: list[str] = []
    assert newest(store, told.append) == first
    assert len(told) == 1
    assert "checkpoint 2" in told[0] and "it has no manifest" in told[0]
    assert next_number(store) == 3


def test_a_manifest_needs_every_slice(store: Store) -> None:
    slices = {s.id: {"parameters": torch.ones(s.length)} for s in layout_for(3).slices[1:]}
    with pytest.raises(StoreError, match="no file for slice 0"):
        _write_manifest(store, [write_slices(store, 1, 0, slices)])
    assert listing(store)[0].checkpoint is None


def test_two_jobs_in_one_store_collide_and_the_first_checkpoint_stays(store: Store) -> None:
    first = write_checkpoint(store, 1, seed=1)
    with pytest.raises(StoreError, match="another job has written checkpoint 1 or .*: give every"):
        write_checkpoint(store, 1, seed=2)
    assert newest(store, pytest.fail) == first
    check_slices(read_slices(store, first, layout_for(3).slices), layout_for(3), seed=1)


def test_prune_keeps_the_newest_and_removes_what_attempts_left(store: Store) -> None:
    for number in (1, 3, 4, 6):
        write_checkpoint(store, number)
    for number in (2, 5, 7):
        write_slices(store, number, 0, {0: {"parameters": torch.ones(3)}})
    assert prune(store, 2) == [1, 2, 3]
    assert [each.number for each in listing(store)] == [4, 5, 6, 7]
    assert prune(store, 2) == []
    assert newest(store, lambda _: None).number == 6


def test_prune_does_not_count_damaged_checkpoints_as_kept(store: Store) -> None:
    for number in (1, 2, 3):
        checkpoint = write_checkpoint(store, number)
    store.delete([f"checkpoints/00000003/{checkpoint.manifest.files[0].name}"])
    assert prune(store, 2) == []
    assert newest(store, lambda _: None).number == 2


def test_prune_refuses_to_keep_nothing(store: Store) -> None:
    write_checkpoint(store)
    with pytest.raises(StoreError, match="keep at least 1"):
        prune(store, 0)


def test_listing_shows_every_checkpoint_with_its_fault(store: Store) -> None:
    first, second = write_checkpoint(store, 1), write_checkpoint(store, 2)
    name = f"checkpoints/00000002/{second.manifest.files[1].name}"
    store.put(name, bytes(store.get(name))[:-1])
    listed = listing(store)
    assert [each.number for each in listed] == [1, 2]
    assert listed[0].checkpoint == first and listed[0].fault is None
    assert listed[1].fault is not None and name in listed[1].fault
    with pytest.raises(DamagedCheckpoint, match="bytes instead of"):
        verify(store, second)


def _write_manifest(store: Store, files: list[Any], **options: Any) -> Any:
    from polyrhythm.wire.messages import Division, JobSpec

    return write_manifest(
        store,
        1,
        round=1,
        model=msgspec.structs.replace(MODEL, division=Division(3, SLICE_NBYTES)),
        job=JobSpec(job="lenet"),
        files=files,
        record=RECORD,
        **options,
    )


@pytest.mark.parametrize(("last", "keep"), [(4, 2), (2, 1)])
def test_a_job_that_fell_behind_another_in_one_store_is_told(
    store: Store, last: int, keep: int
) -> None:
    """The other job has deleted its checkpoint 1 already. A new checkpoint 1 would count as older than
    all checkpoints of the other job, and would be deleted at once."""
    for number in range(1, last + 1):
        write_checkpoint(store, number)
    prune(store, keep)
    with pytest.raises(StoreTaken, match="give every job its own store"):
        write_checkpoint(store, 1)
    whole = [each.number for each in listing(store) if each.fault is None]
    assert whole == [*range(1, last + 1)][-keep:]


class Small(Store):
    """A store with room for a certain number of bytes."""

    room_nbytes = 0

    def put(self, name: str, data: Buffer | Sequence[Buffer]) -> None:
        super().put(name, data)
        if sum(info.nbytes for info in self.list()) > self.room_nbytes:
            self.delete([name])
            raise StoreFull(f"cannot write {name}: the store is full")


def small(store: Store, room_nbytes: int) -> Small:
    full = Small(store.url, store._objects, store.folder)
    full.room_nbytes = room_nbytes
    return full


def whole(store: Store) -> list[int]:
    return [each.number for each in listing(store) if each.fault is None]


def test_the_oldest_checkpoint_is_deleted_if_there_is_no_room_for_a_new_one(store: Store) -> None:
    nbytes = write_checkpoint(store, 1).nbytes
    full = small(store, 4 * nbytes)
    for number in range(2, 9):
        with_room(full, number, lambda number=number: write_checkpoint(full, number))  # type: ignore[misc]
    assert whole(store) == [6, 7, 8], "a manifest needs room too"


def test_an_incomplete_checkpoint_is_deleted_first(store: Store) -> None:
    nbytes = write_checkpoint(store, 1).nbytes
    store.put(path_of(2, "slices-0-00000000.safetensors"), bytes(nbytes))
    full = small(store, 3 * nbytes)
    with_room(full, 3, lambda: write_checkpoint(full, 3))
    assert whole(store) == [each.number for each in listing(store)] == [1, 3]


def test_the_last_checkpoint_that_is_whole_is_never_deleted(store: Store) -> None:
    for number in (1, 2):
        nbytes = write_checkpoint(store, number).nbytes
    full = small(store, nbytes)
    with pytest.raises(StoreFull):
        with_room(full, 3, lambda: write_checkpoint(full, 3))
    assert whole(store) == [2]


class Forgetful(Store):
    """A store that creates an object and reports that it was there before. This happens when the
    answer of a remote store is lost and the request is sent again."""

    def create(self, name: str, data: Buffer) -> bool:
        super().create(name, data)
        return False


def test_a_manifest_that_was_created_by_a_repeated_request_is_ones_own(store: Store) -> None:
    checkpoint = write_checkpoint(Forgetful(store.url, store._objects, store.folder))
    assert load(store, 1) == checkpoint
