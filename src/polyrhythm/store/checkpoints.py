"""Checkpoints in a store: writing one, finding the newest that is whole, and reading it.

    checkpoints/00000007/slices-0-5f2c9a41.safetensors   parameters and optimizer state, per server
    checkpoints/00000007/kept-c2d4e6f8.safetensors       state of the user's code, if any
    checkpoints/00000007/record-91b0c3d2.json            the lead's state
    checkpoints/00000007/manifest.json                   the list of the files; it is written last

A checkpoint exists if its manifest does. The names of the other files have a random part, so that a
job does not overwrite files of another job, or files that an interrupted attempt has left. Files
that the manifest does not name are ignored.
"""

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import msgspec

from polyrhythm.core.placement.slices import Layout, Slice, layout_of
from polyrhythm.errors import DamagedCheckpoint, ObjectMissing, StoreError, StoreTaken
from polyrhythm.release import VERSION
from polyrhythm.store.manifest import Manifest, OtherVersion, decode_manifest, encode_manifest
from polyrhythm.store.objects import ObjectInfo, Store
from polyrhythm.store.tensor_file import (
    digest_of,
    encode,
    index_digest,
    read_bytes,
    read_index,
    read_tensors,
    verify_bytes,
)
from polyrhythm.wire.messages import FileEntry, JobSpec, ModelSpec

if TYPE_CHECKING:
    import torch


Tensors: TypeAlias = "dict[str, torch.Tensor]"


def overlapping(there: Sequence[Slice], slice_: Slice) -> list[Slice]:
    """The slices of a checkpoint that cover the range of this slice."""
    if slice_.id < len(there) and _same_range(there[slice_.id], slice_):
        return [there[slice_.id]]
    return [
        old
        for old in there
        if old.space == slice_.space
        and old.offset < slice_.offset + slice_.length
        and slice_.offset < old.offset + old.length
    ]


def assembled(slice_: Slice, sources: list[Slice], read: Mapping[int, Tensors]) -> Tensors:
    """The tensors of a slice, from the tensors of the checkpoint's slices that cover its range.

    A model has one flat buffer (space) of parameters per dtype, whatever the number of servers.
    Only the places where it is divided into slices depend on that number. So a slice is a range of
    a space, and the slices of the checkpoint that overlap the range contain all its elements.
    """
    if len(sources) == 1 and _same_range(sources[0], slice_):
        return read[sources[0].id]
    names = {name for source in sources for name in read[source.id]}
    return {name: _joined(slice_, sources, read, name) for name in sorted(names)}


def _joined(
    slice_: Slice, sources: list[Slice], read: Mapping[int, Tensors], name: str
) -> "torch.Tensor":
    """One tensor of a slice. A tensor with one element per parameter is put together from the
    sources; a source that lacks it has not made a step yet, and its elements are zero. Any other
    tensor, such as a count of steps, is the maximum over the sources."""
    import torch

    found = [(source, read[source.id].get(name)) for source in sources]
    known = [(source, tensor) for source, tensor in found if tensor is not None]
    first, sample = known[0]
    if sample.shape != (first.length,):
        return torch.stack([tensor for _, tensor in known]).amax(0)
    joined = torch.zeros(slice_.length, dtype=sample.dtype)
    for source, tensor in known:
        begin = max(source.offset, slice_.offset)
        end = min(source.offset + source.length, slice_.offset + slice_.length)
        joined[begin - slice_.offset : end - slice_.offset] = tensor[
            begin - source.offset : end - source.offset
        ]
    return joined


def _same_range(one: Slice, other: Slice) -> bool:
    return (one.space, one.offset, one.length) == (other.space, other.offset, other.length)


FOLDER = "checkpoints"
MANIFEST = "manifest.json"
PARAMETERS = "parameters"
"""The name of the tensor with a slice's parameters. The other tensors of a slice are optimizer
state and have torch's names."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    number: int
    manifest: Manifest

    @property
    def layout(self) -> Layout:
        """The division of the model into slices when the checkpoint was made."""
        return layout_of(self.manifest.model, self.manifest.job)

    @property
    def tensor_files(self) -> tuple[FileEntry, ...]:
        """The files of slices, and the file of the state that `worker.keep` added, if any."""
        kept = self.manifest.kept
        return self.manifest.files if kept is None else (*self.manifest.files, kept)

    @property
    def nbytes(self) -> int:
        return sum(file.nbytes for file in (*self.tensor_files, self.manifest.record))


# -- writing ---------------------------------------------------------------------------------------


def write_slices(
    store: Store, number: int, server: int, slices: "Mapping[int, Mapping[str, torch.Tensor]]"
) -> FileEntry:
    """Write the slices of one server: for each slice its `parameters` and its optimizer state. The
    tensors are written from their own memory and must not change before this returns."""
    tensors = {
        f"{slice_}.{name}": tensor
        for slice_, named in slices.items()
        for name, tensor in named.items()
    }
    file = encode(tensors)
    name = f"slices-{server}-{_token()}.safetensors"
    store.put(path_of(number, name), file.buffers)
    return FileEntry(name, file.nbytes, file.digest, tuple(sorted(slices)))


def delete_unused(store: Store, number: int, file: FileEntry) -> None:
    """Delete this file of a checkpoint if the checkpoint has no manifest. Call this for a file that
    the caller has written, when the checkpoint is complete or given up."""
    try:
        store.nbytes_of(path_of(number, MANIFEST))
    except ObjectMissing:
        store.delete([path_of(number, file.name)])


def write_kept(store: Store, number: int, state: memoryview) -> FileEntry:
    """Write the state that `worker.keep` added, as `kept.encode_state` has made it. Raise
    DamagedCheckpoint if it is not such a state."""
    verify_bytes(state, "the state of worker.keep")
    name = f"kept-{_token()}.safetensors"
    store.put(path_of(number, name), state)
    return FileEntry(name, state.nbytes, index_digest(state))


def write_manifest(
    store: Store,
    number: int,
    *,
    round: int,
    model: ModelSpec,
    job: JobSpec,
    files: Sequence[FileEntry],
    record: Any,
    kept: FileEntry | None = None,
) -> Checkpoint:
    """Write the record and then the manifest; after that the checkpoint exists. Call this when all
    servers have written their files. `record` must be a value that msgspec can encode as JSON.

    Raise StoreTaken if another job has written a checkpoint with this number or a higher one. Two
    jobs then use one store, and the caller must stop making checkpoints there. Beside a checkpoint
    with a higher number, `listing.prune` would soon delete this one."""
    data = msgspec.json.encode(record)
    name = f"record-{_token()}.json"
    store.put(path_of(number, name), data)
    manifest = Manifest(
        number=number,
        round=round,
        made_s=time.time(),
        version=VERSION,
        model=model,
        job=job,
        files=tuple(files),
        record=FileEntry(name, len(data), digest_of(data)),
        kept=kept,
    )
    checkpoint = Checkpoint(number, manifest)
    if missing := _missing_slices(checkpoint):
        raise StoreError(f"checkpoint {number} has no file for slice {missing[0]}")
    if not _is_latest(store, number) or not _created(store, number, encode_manifest(manifest)):
        raise StoreTaken(
            f"another job has written checkpoint {number} or a later one to {store.url}, so this job"
            " makes no more checkpoints: give every job its own store"
        )
    return checkpoint


def numbers(store: Store) -> list[int]:
    """The numbers of all checkpoints, including damaged and incomplete ones, in ascending order."""
    return sorted(objects_of(store))


def next_number(store: Store) -> int:
    """The number of the next checkpoint: one more than the highest number in the store, including
    numbers of incomplete checkpoints."""
    return max(numbers(store), default=0) + 1


# -- reading ---------------------------------------------------------------------------------------


def load(store: Store, number: int) -> Checkpoint:
    """Read the manifest of one checkpoint."""
    path = path_of(number, MANIFEST)
    try:
        data = store.get(path)
    except ObjectMissing:
        if number not in numbers(store):
            raise StoreError(f"there is no checkpoint {number} in {store.url}") from None
        raise DamagedCheckpoint(
            f"checkpoint {number} in {store.url} is incomplete: it has no manifest"
        ) from None
    manifest = decode_manifest(data, store.url_of(path))
    if manifest.number != number:
        raise DamagedCheckpoint(
            f"{store.url_of(path)} is damaged: it is the manifest of checkpoint {manifest.number}"
        )
    return Checkpoint(number, manifest)


def newest(store: Store, tell: Callable[[str], None]) -> Checkpoint:
    """The newest checkpoint that is whole. Every byte of it is read and verified. `tell` gets one
    line for each newer checkpoint that is damaged or incomplete.

    A newer checkpoint of another version is not skipped but raises OtherVersion: to continue from
    an older one would silently discard progress."""
    found = numbers(store)
    if not found:
        raise StoreError(f"there is no checkpoint in {store.url}")
    for number in reversed(found):
        try:
            checkpoint = load(store, number)
            verify(store, checkpoint)
        except (DamagedCheckpoint, ObjectMissing) as error:
            tell(f"checkpoint {number} is not used: {error}")
        else:
            return checkpoint
    damaged = "the only one is damaged" if len(found) == 1 else f"all {len(found)} are damaged"
    raise StoreError(f"no checkpoint in {store.url} is whole: {damaged}")


def verify(store: Store, checkpoint: Checkpoint) -> None:
    """Read and verify every byte of a checkpoint. Raise DamagedCheckpoint or ObjectMissing at the
    first fault, and StoreError if the store cannot be read."""
    if missing := _missing_slices(checkpoint):
        raise DamagedCheckpoint(f"checkpoint {checkpoint.number} has no slice {missing[0]}")
    read_record(store, checkpoint, Any)
    for entry in checkpoint.tensor_files:
        path = path_of(checkpoint.number, entry.name)
        index = read_index(store, path, entry)
        for _ in read_bytes(store, path, index, index.places):
            pass


def read_record(store: Store, checkpoint: Checkpoint, kind: type[T]) -> T:
    """Read and verify the lead's record, and decode it as a value of this type."""
    entry = checkpoint.manifest.record
    path = path_of(checkpoint.number, entry.name)
    data = store.get(path)
    if data.nbytes != entry.nbytes or digest_of(data) != entry.digest:
        raise DamagedCheckpoint(f"{store.url_of(path)} is damaged: its digest differs")
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.MsgspecError as error:
        raise OtherVersion(
            f"{store.url_of(path)} was written by another version of polyrhythm: {error}"
        ) from None


def read_kept(store: Store, checkpoint: Checkpoint) -> memoryview:
    """Read and verify the state that `worker.keep` added. It is empty if there is none."""
    if (entry := checkpoint.manifest.kept) is None:
        return memoryview(b"")
    path = path_of(checkpoint.number, entry.name)
    data = store.get(path)
    if data.nbytes != entry.nbytes or index_digest(data) != entry.digest:
        raise DamagedCheckpoint(f"{store.url_of(path)} is damaged: its digest differs")
    verify_bytes(data, store.url_of(path))
    return data


def read_slices(
    store: Store, checkpoint: Checkpoint, slices: Iterable[Slice]
) -> dict[int, Tensors]:
    """Read the tensors of these slices. The checkpoint may divide the model into other slices. Only
    slices of the checkpoint that overlap these slices are read; they are verified. Tensors may be
    in read-only memory, so the caller must copy them."""
    wanted = list(slices)
    there = checkpoint.layout.slices
    sources = {slice_.id: overlapping(there, slice_) for slice_ in wanted}
    needed = {source.id for found in sources.values() for source in found}
    read = _read_whole_slices(store, checkpoint, needed)
    for number, tensors in read.items():
        parameters = tensors.get(PARAMETERS)
        if parameters is None or parameters.shape != (there[number].length,):
            raise DamagedCheckpoint(
                f"checkpoint {checkpoint.number} in {store.url} has no parameters of slice {number}"
            )
    return {slice_.id: assembled(slice_, sources[slice_.id], read) for slice_ in wanted}


# -- parts -----------------------------------------------------------------------------------------


def _is_latest(store: Store, number: int) -> bool:
    """Whether no checkpoint with a higher number has a manifest."""
    return not any(
        later > number and path_of(later, MANIFEST) in {info.name for info in infos}
        for later, infos in objects_of(store).items()
    )


def _created(store: Store, number: int, manifest: bytes) -> bool:
    """Create the manifest. Return False if there is one of another job. If the store's answer to
    the first request was lost and the request was sent again, the store reports that the manifest
    exists already: then it is compared with this one."""
    path = path_of(number, MANIFEST)
    return store.create(path, manifest) or store.get(path) == manifest


def _token() -> str:
    return os.urandom(4).hex()


def path_of(number: int, name: str) -> str:
    """The path of this file of a checkpoint."""
    return f"{FOLDER}/{number:08d}/{name}"


def objects_of(store: Store) -> dict[int, list[ObjectInfo]]:
    """The objects of each checkpoint, by its number."""
    found: dict[int, list[ObjectInfo]] = {}
    for info in store.list(FOLDER):
        parts = info.name.split("/")
        if len(parts) == 3 and parts[1].isdecimal() and len(parts[1]) >= 8:
            found.setdefault(int(parts[1]), []).append(info)
    return found


def _missing_slices(checkpoint: Checkpoint) -> list[int]:
    written = {slice_ for file in checkpoint.manifest.files for slice_ in file.slices}
    return [slice_.id for slice_ in checkpoint.layout.slices if slice_.id not in written]


def _read_whole_slices(
    store: Store, checkpoint: Checkpoint, needed: set[int]
) -> dict[int, Tensors]:
    read: dict[int, Tensors] = {number: {} for number in needed}
    for entry in checkpoint.manifest.files:
        if needed.isdisjoint(entry.slices):
            continue
        path = path_of(checkpoint.number, entry.name)
        index = read_index(store, path, entry)
        owners = {name: name.partition(".") for name in index.places}
        wanted = {str(number): number for number in needed}
        names = [name for name, (slice_, _, _) in owners.items() if slice_ in wanted]
        for name, tensor in read_tensors(store, path, index, names):
            slice_, _, part = owners[name]
            read[wanted[slice_]][part] = tensor
    return read
