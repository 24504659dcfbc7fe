"""The file format of tensors in a checkpoint: safetensors, written from memory without a copy.

A file begins with its index (8 bytes of length, then JSON), and the bytes of the tensors follow.
The index contains the digest of every tensor, and the manifest contains the digest of the index. So
one tensor can be read and verified without the rest of the file, and every byte of the file is
covered. Any safetensors library can read these files. polyrhythm writes them itself, because the
library's writer would copy every tensor.

Commands that list and verify checkpoints import this module and do not need torch, so torch is
imported only when tensors are made.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import xxhash

from polyrhythm.core.placement.slices import ITEM_NBYTES
from polyrhythm.errors import DamagedCheckpoint
from polyrhythm.store.objects import Store
from polyrhythm.wire.messages import FileEntry

if TYPE_CHECKING:
    import torch

_LENGTH_NBYTES = 8
_ALIGN = 64
_FIRST_READ_NBYTES = 64 * 1024
_READ_NBYTES = 64 * 1024 * 1024
"""Tensors are read in groups of about this size, so that a large file does not fill the memory."""
_DTYPES = {
    "F32": "float32",
    "F64": "float64",
    "BF16": "bfloat16",
    "F16": "float16",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "BOOL": "bool",
}
"""For each name of a dtype in safetensors, its name in torch."""
_NAMES = {f"torch.{dtype}": name for name, dtype in _DTYPES.items()}
_METADATA = "__metadata__"


class IndexedTensor(msgspec.Struct, frozen=True):
    """A tensor in the index. The offsets are in bytes and count from the end of the index."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Encoded:
    """A file that is to be written: first its index, then the memory of the tensors themselves.
    `digest` is the digest of the index."""

    buffers: list[memoryview]
    nbytes: int
    digest: str


@dataclass(frozen=True, slots=True)
class TensorIndex:
    places: dict[str, IndexedTensor]
    digests: dict[str, str]
    nbytes: int
    """The length of the index in bytes. The bytes of the tensors begin there."""


def digest_of(data: bytes | memoryview) -> str:
    return xxhash.xxh3_128_hexdigest(data)


def encode(tensors: "Mapping[str, torch.Tensor]") -> Encoded:
    """Make a file of these tensors. Contiguous tensors on the CPU are not copied, so they must not
    change until the file is written."""
    memories = {name: _memory(tensor) for name, tensor in tensors.items()}
    # safetensors allows no gaps, so tensors whose size is no multiple of the alignment come last
    order = sorted(
        tensors,
        key=lambda name: (memories[name].nbytes % _ALIGN > 0, -tensors[name].element_size()),
    )
    index: dict[str, IndexedTensor | dict[str, str]] = {
        _METADATA: {name: digest_of(memories[name]) for name in order}
    }
    end = 0
    for name in order:
        first, end = end, end + memories[name].nbytes
        tensor = tensors[name]
        index[name] = IndexedTensor(_NAMES[str(tensor.dtype)], tuple(tensor.shape), (first, end))
    text = msgspec.json.encode(index)
    text += b" " * (-(_LENGTH_NBYTES + len(text)) % _ALIGN)
    head = len(text).to_bytes(_LENGTH_NBYTES, "little") + text
    buffers = [memoryview(head), *(memories[name] for name in order if memories[name].nbytes)]
    return Encoded(buffers, len(head) + end, digest_of(head))


def read_index(store: Store, path: str, entry: FileEntry) -> TensorIndex:
    """Read and verify a file's index. Raise DamagedCheckpoint if the file's size or the digest of
    the index differs from the entry in the manifest."""
    if (there := store.nbytes_of(path)) != entry.nbytes:
        raise DamagedCheckpoint(
            f"{store.url_of(path)} is damaged: it has {there} bytes instead of {entry.nbytes}"
        )
    end = min(entry.nbytes, _FIRST_READ_NBYTES)
    (head,) = _ranges(store, path, [(0, end)])
    nbytes = _LENGTH_NBYTES + int.from_bytes(head[:_LENGTH_NBYTES], "little")
    if nbytes > entry.nbytes:
        raise DamagedCheckpoint(
            f"{store.url_of(path)} is damaged: its index is longer than the whole file"
        )
    if nbytes > end:
        (head,) = _ranges(store, path, [(0, nbytes)])
    head = head[:nbytes]
    if digest_of(head) != entry.digest:
        raise DamagedCheckpoint(
            f"{store.url_of(path)} is damaged: the digest of its index is wrong"
        )
    return _decode_index(head, entry.nbytes, store.url_of(path))


def _decode_index(head: memoryview, nbytes: int, where: str) -> TensorIndex:
    """Decode the index of a file with this size. `where`: the address of the file, for errors."""
    try:
        index = msgspec.json.decode(head[_LENGTH_NBYTES:], type=dict[str, msgspec.Raw])
        digests = msgspec.json.decode(index.pop(_METADATA, b"{}"), type=dict[str, str])
        places = {name: msgspec.json.decode(raw, type=IndexedTensor) for name, raw in index.items()}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise DamagedCheckpoint(f"{where} is damaged: its index is unusable") from None
    found = TensorIndex(places, digests, len(head))
    if (fault := _fault(found, nbytes)) is not None:
        raise DamagedCheckpoint(f"{where} is damaged: {fault}")
    return found


def verify_bytes(data: memoryview, where: str) -> TensorIndex:
    """Verify a whole file that is in memory, and return its index."""
    nbytes = _LENGTH_NBYTES + int.from_bytes(data[:_LENGTH_NBYTES], "little")
    if nbytes > len(data):
        raise DamagedCheckpoint(f"{where} is damaged: its index is longer than the whole file")
    index = _decode_index(data[:nbytes], len(data), where)
    for name, place in index.places.items():
        if digest_of(_bytes_of(data, index, place)) != index.digests[name]:
            raise DamagedCheckpoint(f"{where} is damaged: the digest of {name!r} is wrong")
    return index


def tensors_in(data: memoryview, where: str) -> "dict[str, torch.Tensor]":
    """Verify a whole file that is in memory, and return its tensors. They share its memory."""
    index = verify_bytes(data, where)
    return {
        name: _tensor(place, _bytes_of(data, index, place)) for name, place in index.places.items()
    }


def index_digest(data: memoryview) -> str:
    """The digest of the index of a whole file that is in memory and was verified."""
    return digest_of(data[: _LENGTH_NBYTES + int.from_bytes(data[:_LENGTH_NBYTES], "little")])


def _bytes_of(data: memoryview, index: TensorIndex, place: IndexedTensor) -> memoryview:
    first, end = place.data_offsets
    return data[index.nbytes + first : index.nbytes + end]


def stores(tensor: "torch.Tensor") -> bool:
    """Whether a file can contain tensors of this dtype."""
    return str(tensor.dtype) in _NAMES


def _fault(index: TensorIndex, nbytes: int) -> str | None:
    """Describe how an index contradicts itself or the size of its file; None if it does not. The
    digest shows that the index is undamaged, but not that polyrhythm wrote it."""
    end = 0
    for name, place in sorted(index.places.items(), key=lambda item: item[1].data_offsets):
        first, end_before, end = place.data_offsets[0], end, place.data_offsets[1]
        if name not in index.digests:
            return f"{name!r} has no digest"
        if place.dtype not in _DTYPES:
            return f"{name!r} has the unknown dtype {place.dtype!r}"
        size = math.prod(place.shape) * ITEM_NBYTES[_DTYPES[place.dtype]]
        if first != end_before or end - first != size or min(place.shape, default=0) < 0:
            return (
                f"the bytes {first} to {end} of {name!r} do not fit its shape {list(place.shape)}"
            )
    if index.nbytes + end != nbytes:
        return f"its tensors end at byte {index.nbytes + end}, but the file has {nbytes} bytes"
    return None


def read_tensors(
    store: Store, path: str, index: TensorIndex, names: Iterable[str]
) -> "Iterator[tuple[str, torch.Tensor]]":
    """Read and verify these tensors. They are in read-only memory."""
    for name, memory in read_bytes(store, path, index, names):
        yield name, _tensor(index.places[name], memory)


def read_bytes(
    store: Store, path: str, index: TensorIndex, names: Iterable[str]
) -> Iterator[tuple[str, memoryview]]:
    """Read and verify the bytes of these tensors."""
    order = sorted(names, key=lambda name: index.places[name].data_offsets)
    for group in _groups(order, index.places):
        wanted = [tuple(at + index.nbytes for at in index.places[n].data_offsets) for n in group]
        merged = wanted[0][0], wanted[-1][1]
        if merged[1] - merged[0] == sum(end - first for first, end in wanted):
            (memory,) = _ranges(store, path, [merged])
            parts = [memory[first - merged[0] : end - merged[0]] for first, end in wanted]
        else:
            parts = _ranges(store, path, [(first, end) for first, end in wanted])
        for name, part in zip(group, parts, strict=True):
            if digest_of(part) != index.digests[name]:
                raise DamagedCheckpoint(
                    f"{store.url_of(path)} is damaged: the digest of {name!r} is wrong"
                )
            yield name, part


def _groups(names: Sequence[str], places: Mapping[str, IndexedTensor]) -> Iterator[list[str]]:
    group: list[str] = []
    nbytes = 0
    for name in names:
        first, end = places[name].data_offsets
        if group and nbytes + end - first > _READ_NBYTES:
            yield group
            group, nbytes = [], 0
        group.append(name)
        nbytes += end - first
    if group:
        yield group


def _ranges(store: Store, path: str, ranges: list[tuple[int, int]]) -> list[memoryview]:
    """Read these ranges. An empty range is not requested, because stores refuse empty ranges."""
    full = [pair for pair in ranges if pair[0] < pair[1]]
    found = iter(store.get_ranges(path, full))
    return [next(found) if first < end else memoryview(b"") for first, end in ranges]


def _memory(tensor: "torch.Tensor") -> memoryview:
    import torch

    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data


def _tensor(place: IndexedTensor, memory: memoryview) -> "torch.Tensor":
    import torch

    from polyrhythm.tensors.dtypes import tensor_over

    dtype = getattr(torch, _DTYPES[place.dtype])
    if not memory.nbytes:
        return torch.empty(place.shape, dtype=dtype)
    return tensor_over(memory, dtype).reshape(place.shape)
