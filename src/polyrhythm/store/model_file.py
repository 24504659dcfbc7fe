"""Models as files in the safetensors format, under the names of the models' own `state_dict`:
writing them, loading them, and making them from a checkpoint.

A file is written slice by slice, each range of a slice to its place in the file, so that the model
is never in memory as a whole. *The file gets its name when it is complete and on the disk; until
then it is called `NAME.part`.* Slices contain the elements of a tensor in the order of its memory.
If that is not the order of its shape (channels_last), the tensor is reordered in the file at the
end. Tied weights are stored once for each of their names, because the format has no references.
"""

import contextlib
import errno
import json
import math
import mmap
import os
import tempfile
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from msgspec.structs import replace
from safetensors import SafetensorError, safe_open

from polyrhythm.core.model import SUFFIX, choose, file_of, files_of
from polyrhythm.core.placement.slices import ITEM_NBYTES, Layout
from polyrhythm.errors import StoreError, UsageError
from polyrhythm.store import checkpoints
from polyrhythm.store.model_open import opened
from polyrhythm.store.objects import Store, open_store
from polyrhythm.tensors.dtypes import DTYPES, tensor_over
from polyrhythm.wire.messages import ModelSpec, StateName, TensorSpec

_CODES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}
_ALIGN = 8
_CHUNK_NBYTES = 1 << 24


class CannotWrite(StoreError):
    """The disk is full or fails. A later attempt may succeed."""


class ModelFile:
    """A file that is being written. Not safe for several threads."""

    def __init__(
        self,
        path: Path,
        spec: ModelSpec,
        layout: Layout,
        about: Mapping[str, str] | None = None,
        store: Store | None = None,
    ) -> None:
        """`about` is stored as metadata. The folder of the file is made if it does not exist.
        `store`: the file is made in memory, and becomes the object of this name in this store."""
        self.path = path
        self._place = _Folder(path) if store is None else _InStore(store, path.name)
        self._spec = spec
        self._layout = layout
        header, self._places = _plan(spec, about or {})
        self._first: dict[int, int] = {}
        """The offset in the file of each tensor of the spec, under the first of its names. Tensors
        that are not saved have no entry."""
        for name in reversed(spec.saved):
            self._first[name.tensor] = self._places[name.name]
        self.nbytes = len(header) + sum(_nbytes(spec.tensors[s.tensor]) for s in spec.saved)
        self._missing = {slice_.id for slice_ in layout.slices}
        self._ranges = _ranges(layout)
        self._fd = -1
        with self._faults():
            self._fd = self._place.open()
            _reserve(self._fd, self.nbytes)
            _write(self._fd, memoryview(header), 0)

    def write(self, slice_: int, data: memoryview) -> None:
        """Write the parameters of a slice, which are in the dtype of the model, to their places."""
        item = self._layout.spaces[self._layout.slices[slice_].space].item_nbytes
        with self._faults():
            for tensor, begin, end, at in self._ranges[slice_]:
                if tensor in self._first:
                    piece = data[begin * item : end * item]
                    _write(self._fd, piece, self._first[tensor] + at * item)
        self._missing.discard(slice_)

    def commit(self) -> None:
        """Complete the file, and give it its name when it is on the disk."""
        assert not self._missing, "slices are missing"
        with self._faults():
            self._reorder()
            self._repeat()
            self._place.keep(self._fd)
            os.close(self._fd)
            self._fd = -1

    def discard(self) -> None:
        """Remove the unfinished file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            self._place.discard()

    def _reorder(self) -> None:
        """Rewrite tensors with permuted strides in the order of their shape."""
        for index, at in self._first.items():
            tensor = self._spec.tensors[index]
            if _is_in_order(tensor) or not _nbytes(tensor):
                continue
            memory = memoryview(bytearray(_nbytes(tensor)))
            _read(self._fd, memory, at)
            flat = tensor_over(memory, DTYPES[tensor.dtype])
            ordered = flat.as_strided(tensor.shape, tensor.strides).contiguous()
            _write(self._fd, _bytes_of(ordered), at)

    def _repeat(self) -> None:
        """Copy tied weights in the file to the places of their other names."""
        for entry in self._spec.saved:
            source, target = self._first[entry.tensor], self._places[entry.name]
            nbytes = _nbytes(self._spec.tensors[entry.tensor]) if source != target else 0
            for begin in range(0, nbytes, _CHUNK_NBYTES):
                piece = memoryview(bytearray(min(_CHUNK_NBYTES, nbytes - begin)))
                _read(self._fd, piece, source + begin)
                _write(self._fd, piece, target + begin)

    @contextlib.contextmanager
    def _faults(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.discard()
            words = f"cannot write {self.path}: {error.strerror or error}"
            raise CannotWrite(words) from None


class _Folder:
    """An unfinished file beside its final name."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._part = path.with_name(f"{path.name}.part")

    def open(self) -> int:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(self._part, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o666)

    def keep(self, fd: int) -> None:
        os.fsync(fd)
        _verify(self._part)
        self._part.replace(self._path)
        _sync_folder(self._path.parent)

    def discard(self) -> None:
        with contextlib.suppress(OSError):  # the folder, and the file with it, may be gone
            self._part.unlink()


class _InStore:
    """An unfinished file in memory."""

    def __init__(self, store: Store, name: str) -> None:
        self._store = store
        self._name = name

    def open(self) -> int:
        if hasattr(os, "memfd_create"):
            return os.memfd_create("polyrhythm-model")
        with tempfile.TemporaryFile() as file:
            return os.dup(file.fileno())

    def keep(self, fd: int) -> None:
        _verify(Path(f"/dev/fd/{fd}"))
        with mmap.mmap(fd, 0, access=mmap.ACCESS_READ) as memory:
            view = memoryview(memory)
            try:
                self._store.put(self._name, view)
            finally:
                view.release()

    def discard(self) -> None:
        pass


def _plan(spec: ModelSpec, about: Mapping[str, str]) -> tuple[bytes, dict[str, int]]:
    """The header of the file, and the offset of each named tensor in the file. Dtypes with larger
    elements come first, so that every tensor is aligned."""
    saved = sorted(spec.saved, key=lambda s: -ITEM_NBYTES[spec.tensors[s.tensor].dtype])
    table: dict[str, Any] = {"__metadata__": {"format": "pt", **about}}
    offsets, end = {}, 0
    for entry in saved:
        tensor = spec.tensors[entry.tensor]
        offsets[entry.name], begin = end, end
        end += _nbytes(tensor)
        table[entry.name] = {
            "dtype": _CODES[tensor.dtype],
            "shape": tensor.shape,
            "data_offsets": [begin, end],
        }
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGN)
    header = len(text).to_bytes(8, "little") + text
    return header, {name: len(header) + offset for name, offset in offsets.items()}


def _ranges(layout: Layout) -> list[list[tuple[int, int, int, int]]]:
    """For each slice, the pieces of tensors in it: the index of the tensor, the range [first, end)
    of elements in the slice, and the first element in the tensor."""
    ends = [(place.space, place.offset + place.length) for place in layout.places]
    found: list[list[tuple[int, int, int, int]]] = []
    for slice_ in layout.slices:
        ranges, end = [], slice_.offset + slice_.length
        for place in layout.places[bisect_right(ends, (slice_.space, slice_.offset)) :]:
            if place.space != slice_.space or place.offset >= end:
                break
            first = max(place.offset, slice_.offset)
            last = min(place.offset + place.length, end)
            if first < last:
                within = (first - slice_.offset, last - slice_.offset, first - place.offset)
                ranges.append((place.index, *within))
        found.append(ranges)
    return found


def _nbytes(tensor: TensorSpec) -> int:
    return math.prod(tensor.shape) * ITEM_NBYTES[tensor.dtype]


def _is_in_order(tensor: TensorSpec) -> bool:
    """Whether the elements are in the order of the shape (row-major)."""
    expected = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.strides), strict=True):
        if size > 1 and stride != expected:
            return False
        expected *= size
    return True


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    return tensor.reshape(-1).view(torch.uint8).numpy().data


def _reserve(fd: int, nbytes: int) -> None:
    """Reserve the space of the file, so that a full disk is noticed at once."""
    try:
        os.posix_fallocate(fd, 0, nbytes)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
            raise
        os.ftruncate(fd, nbytes)  # this file system cannot reserve space, so only the size is set


def _write(fd: int, data: memoryview, at: int) -> None:
    while len(data):
        written = os.pwrite(fd, data, at)
        data, at = data[written:], at + written


def _read(fd: int, into: memoryview, at: int) -> None:
    while len(into):
        read = os.preadv(fd, [into], at)
        into, at = into[read:], at + read


def _verify(path: Path) -> None:
    """Let the safetensors library read the header. The library checks that every byte belongs to
    one tensor."""
    try:
        with safe_open(path, "pt"):
            pass
    except SafetensorError as error:
        raise StoreError(f"{path} was not written as a safetensors file: {error}") from None


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def spec_of(spec: ModelSpec, name: str) -> ModelSpec:
    """The spec that saves only this one of several models, under the names of the model's own
    `state_dict`. The other tensors stay in the spec, because slices are numbered for all models."""
    prefix = f"{name}."
    state = tuple(
        StateName(entry.name.removeprefix(prefix), entry.tensor)
        for entry in spec.saved
        if entry.name.startswith(prefix)
    )
    return replace(spec, state=state)


class ModelFiles:
    """The files of all models of a job, which are written together. A job with one model has one
    file. Not safe for several threads.
    """

    def __init__(
        self,
        path: Path,
        spec: ModelSpec,
        layout: Layout,
        about: Mapping[str, str] | None = None,
        store: Store | None = None,
    ) -> None:
        """`path`: the file of a job with one model. With several models, each has a file whose name
        has the model's name too. `store`: write objects of these names to this store instead."""
        names = [part.name for part in spec.parts]
        best = path.name == files_of((), best=True)
        shown = path.with_name(files_of(names, best=best)) if names else path
        self.path = str(shown) if store is None else store.url_of(shown.name)
        """With several models, a text that stands for all their files."""
        self._in_folder = store is None
        self._files: list[ModelFile] = []
        try:
            if not names:
                self._files.append(ModelFile(path, spec, layout, about, store))
            for name in names:
                file = path.with_name(f"{path.name.removesuffix(SUFFIX)}-{name}{SUFFIX}")
                known = {**(about or {}), "model": name}
                self._files.append(ModelFile(file, spec_of(spec, name), layout, known, store))
        except StoreError:
            self.discard()
            raise

    @property
    def nbytes(self) -> int:
        return sum(file.nbytes for file in self._files)

    @property
    def files(self) -> list[Path]:
        """The files in the folder; none if they are objects of a store."""
        return [file.path for file in self._files] if self._in_folder else []

    def write(self, slice_: int, data: memoryview) -> None:
        for file in self._files:
            file.write(slice_, data)

    def commit(self) -> None:
        for file in self._files:
            file.commit()

    def discard(self) -> None:
        for file in self._files:
            with suppress(OSError):
                file.discard()


_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


def load_into(model: torch.nn.Module, path: Path) -> None:
    """Copy the tensors of a file into a model, in place. Raises UsageError, and changes nothing, if
    the file is of another model.

    *A file is copied into a model only if all names, shapes and dtypes agree. The error message
    names the first difference.*
    """
    known = {id(tensor) for tensor in (*model.parameters(), *model.buffers())}
    state = {
        name: value
        for name, value in model.state_dict(keep_vars=True).items()
        if id(value) in known  # a model file does not contain the extra state of modules
    }
    with opened(path) as file:
        if (fault := _difference(file, state)) is not None:
            raise UsageError(f"{path} is not of this model: {fault}")
        with torch.no_grad():
            for name, tensor in state.items():
                tensor.copy_(file.get_tensor(name))


def _difference(file: Any, state: Mapping[str, torch.Tensor]) -> str | None:
    """The first difference between the file and this state; None if there is none."""
    there = set(file.keys())
    for name, tensor in state.items():
        if name not in there:
            return f"it has no {name!r}"
        found = file.get_slice(name)
        shape, code = found.get_shape(), found.get_dtype()
        if list(shape) != list(tensor.shape):
            return f"{name!r} has shape {list(shape)}, but shape {list(tensor.shape)} in the model"
        if _DTYPES.get(code) != tensor.dtype:
            dtype = _DTYPES.get(code, code)
            return f"{name!r} is {_word(dtype)}, but {_word(tensor.dtype)} in the model"
    if extra := sorted(there - state.keys()):
        more = "" if len(extra) == 1 else f" and {len(extra) - 1} more"
        return f"the model has no {extra[0]!r}{more}"
    return None


def _word(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


_AT_ONCE = 16


def export_checkpoint(
    url: str,
    number: int | None,
    path: Path,
    tell: Callable[[str], None],
    model: str | None = None,
) -> None:
    """Write the parameters and buffers of checkpoint `number` in the store `url` to the file
    `path`. If `number` is None, take the newest checkpoint that is whole; `tell` then gets one line
    for each newer one that is damaged or incomplete. `model`: which model, if the job has several.
    Every byte that is read is verified."""
    store = open_store(url)
    checkpoint = (
        checkpoints.newest(store, tell) if number is None else checkpoints.load(store, number)
    )
    layout, manifest = checkpoint.layout, checkpoint.manifest
    about = {"job": manifest.job.name, "rounds": str(manifest.round)}
    spec = manifest.model
    choose(model, [file_of(part.name) for part in spec.parts])
    file = ModelFile(path, spec if model is None else spec_of(spec, model), layout, about)
    try:
        for first in range(0, len(layout.slices), _AT_ONCE):
            some = layout.slices[first : first + _AT_ONCE]
            for slice_, tensors in checkpoints.read_slices(store, checkpoint, some).items():
                dtype = DTYPES[layout.spaces[layout.slices[slice_].space].dtype]
                flat = tensors[checkpoints.PARAMETERS].to(dtype).contiguous().reshape(-1)
                file.write(slice_, flat.view(torch.uint8).numpy().data)
        file.commit()
    finally:
        file.discard()  # this removes an unfinished file, and does nothing after `commit`
