"""A fingerprint of a data set. The lead compares the fingerprints of all workers, and refuses a
worker with other data (`core/fingerprints.py`).

*The fingerprint uses only stored data: some rows of tensors, arrays and lists with a value for each
point, and some bytes of files.* It does not read points through the data set, because an
augmentation draws random numbers, and the same data set would give different fingerprints. Only the
last part of a file's path counts, because folders differ between machines.

A data set that computes its points, or stores them in another way, has no fingerprint and is not
compared. An attribute `fingerprint` of the data set, a text, replaces all this; with an empty text,
the data set is not compared.
"""

import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset

from polyrhythm.core.fingerprints import PROJECTIONS, SCALES, made
from polyrhythm.core.values import plain
from polyrhythm.errors import UsageError
from polyrhythm.learn.data.row_groups import RowGroups
from polyrhythm.learn.data.tables import Table
from polyrhythm.learn.data.torch_points import DatasetSource
from polyrhythm.learn.loading import tensors_of
from polyrhythm.learn.migration.layout import column_of
from polyrhythm.learn.pointwise.source import ArraySource

_ROWS = 16
"""The fingerprint uses this many rows of a tensor, and this many blocks of a file."""
_MOST = 4_096
"""It uses at most this many elements of a row, and this many bytes of a block."""
_FILES = 64
"""It uses at most this many files of a folder."""
_LONGEST = 64
_DEEPEST = 4
_OF_MEANS = 2
"""This many projections use the means of columns; the others use the differences from the means."""
_TINY = 1e-6


def fingerprint_of(dataset: Any) -> str:
    """A short text by which workers' data sets are compared; empty if nothing is known."""
    given = getattr(dataset, "fingerprint", None)
    if isinstance(given, str):
        return plain(given)[:_LONGEST]
    sketch = _Sketch()
    _describe(dataset, sketch, 0)
    return sketch.text


class _Sketch:
    def __init__(self) -> None:
        self._form = hashlib.blake2b(digest_size=4)
        self._values = hashlib.blake2b(digest_size=4)
        self._known = False
        self._columns: list[tuple[list[float], list[float]]] = []
        """For each column of floating-point numbers, its projections and scales."""

    def add_form(self, *parts: object) -> None:
        """Add parts of the data set's form: types, shapes, names, and the number of points."""
        self._known = True
        _update(self._form, parts)

    def add(self, *parts: object) -> None:
        """Add values that must be equal."""
        self._known = True
        _update(self._values, parts)

    def add_column(self, column: Any) -> None:
        """Add some rows of a tensor, an array or a sparse matrix."""
        if isinstance(column, torch.Tensor):
            kind, shape = str(column.dtype).removeprefix("torch."), tuple(column.shape)
        else:
            kind, shape = str(column.dtype), tuple(column.shape)
        self.add_form(kind, shape)
        at = _spread(shape[0], _ROWS)
        if not at or 0 in shape:
            return
        try:
            rows = _rows(column, at)
        except UsageError:  # values of this type have no bytes that could be compared
            return
        if rows.dtype.kind == "f":
            self._add_floats(rows.astype(np.float64))
        elif rows.dtype.kind in "biuSU":
            self.add(rows.tobytes())

    def _add_floats(self, rows: npt.NDArray[np.float64]) -> None:
        finite = np.isfinite(rows)
        self.add(np.packbits(finite).tobytes())
        rows = np.where(finite, rows, 0.0)
        size = max(float(np.abs(rows).max()), 1e-300)
        rows = rows / size  # so that no sum overflows
        mean = rows.mean(axis=0)
        apart = (rows - mean).reshape(-1)
        whole = float(np.abs(rows).mean(axis=0).sum())
        spread = float(np.abs(apart).sum()) + _TINY * whole * len(rows)
        lines = [
            float(_signs(apart.size, number) @ apart) / spread if spread else 0.0
            for number in range(PROJECTIONS - _OF_MEANS)
        ] + [
            float(_signs(mean.size, number) @ mean) / whole if whole else 0.0
            for number in range(_OF_MEANS)
        ]
        sizes = [_log(spread * size / apart.size), _log(whole * size / mean.size)]
        self._columns.append((lines, sizes))

    @property
    def text(self) -> str:
        if not self._known:
            return ""
        digests = self._form.hexdigest(), self._values.hexdigest()
        if not self._columns:
            return made(*digests, [], [])
        count = len(self._columns)
        lines = [sum(c[0][at] for c in self._columns) / count for at in range(PROJECTIONS)]
        sizes = [sum(c[1][at] for c in self._columns) / count for at in range(SCALES)]
        return made(*digests, lines, sizes)


def _update(digest: hashlib.blake2b, parts: Iterable[object]) -> None:
    for part in parts:
        data = part if isinstance(part, bytes) else repr(part).encode()
        digest.update(len(data).to_bytes(8, "little") + data)


def _log(size: float) -> float:
    return math.log2(size) if size > 0 else -math.inf


def _spread(count: int, most: int) -> list[int]:
    """At most `most` numbers from 0 to `count` - 1, evenly spread."""
    if count <= most:
        return list(range(count))
    return [(count - 1) * number // (most - 1) for number in range(most)]


def _rows(column: Any, at: list[int]) -> npt.NDArray[Any]:
    """These rows of a column, each as a flat array with at most `_MOST` elements."""
    rows = column[at]
    if isinstance(rows, torch.Tensor):
        if rows.is_floating_point():
            rows = rows.double()
        found = column_of(rows)[1]
    else:
        found = np.asarray(rows.toarray() if hasattr(rows, "toarray") else rows)
    flat = found.reshape(len(at), -1)
    return np.ascontiguousarray(flat[:, _spread(flat.shape[1], _MOST)])


def _signs(count: int, number: int) -> npt.NDArray[np.float64]:
    """This many signs (+1 or -1) for the projection with this number. They are the same on every
    worker."""
    bits = hashlib.shake_128(f"fingerprint {number}".encode()).digest(-(-count // 8))
    drawn = np.unpackbits(np.frombuffer(bits, np.uint8))[:count]
    return drawn.astype(np.float64) * 2 - 1


# -- what data sets store --------------------------------------------------------------------------


def _describe(dataset: Any, sketch: _Sketch, depth: int) -> None:
    tensors = tensors_of(dataset)
    if tensors is not None:
        for tensor in tensors:
            sketch.add_column(tensor)
    elif isinstance(dataset, RowGroups):
        sketch.add_form(dataset._given[1:3])  # the columns of labels and features
        _describe(dataset.source, sketch, depth)
    elif isinstance(dataset, Table):
        sketch.add_form(len(dataset), dataset.groups())
        _describe_file(dataset.path, sketch)
    elif isinstance(dataset, ArraySource):
        points = dataset.points
        for column in (points.x, points.y, points.weight):
            if column is not None:
                sketch.add_column(column)
    elif isinstance(dataset, DatasetSource):
        _describe(dataset._dataset, sketch, depth)
    elif depth < _DEEPEST and hasattr(dataset, "__len__"):
        _describe_attributes(dataset, sketch, depth)


def _describe_attributes(dataset: Any, sketch: _Sketch, depth: int) -> None:
    count = len(dataset)
    if isinstance(dataset, ConcatDataset):
        for each in dataset.datasets:
            _describe(each, sketch, depth + 1)
        return
    if isinstance(dataset, Subset):
        sketch.add_column(np.asarray(dataset.indices))
        _describe(dataset.dataset, sketch, depth + 1)
        return
    for name, value in sorted(getattr(dataset, "__dict__", {}).items()):
        if isinstance(value, Dataset):
            _describe(value, sketch, depth + 1)
        for column in _columns(value, count):
            sketch.add_form(name)
            if isinstance(column, list):
                sketch.add(column)
            else:
                sketch.add_column(column)


def _columns(value: Any, count: int) -> Iterator[Any]:
    """What an attribute stores for each of the points: arrays, or some of the values of a list."""
    if _is_column(value, count):
        yield value
    elif isinstance(value, list | tuple):
        if 0 < len(value) <= _ROWS and all(_is_column(each, count) for each in value):
            yield from value
        elif len(value) == count:
            found = [_plain(value[at]) for at in _spread(count, _ROWS)]
            if None not in found:
                yield found


def _is_column(value: Any, count: int) -> bool:
    return isinstance(value, torch.Tensor | np.ndarray) and value.ndim > 0 and len(value) == count


def _plain(value: Any) -> Any:
    """The value in a form that workers can compare: a path is replaced by its last part, because
    folders differ between machines. None if the value cannot be compared."""
    if isinstance(value, str | PurePath):
        return PurePath(str(value).replace("\\", "/")).name
    if isinstance(value, bool | int):
        return int(value)
    if isinstance(value, tuple | list) and len(value) <= _ROWS:
        parts = [_plain(each) for each in value]
        return None if None in parts else parts
    return None


def _describe_file(path: Path, sketch: _Sketch) -> None:
    """Add some blocks of a file to the fingerprint, or of the files of a folder."""
    files: Sequence[Path] = [path]
    if path.is_dir():
        every = sorted(each for each in path.rglob("*.parquet") if each.is_file())
        sketch.add_form(len(every))
        files = [every[at] for at in _spread(len(every), _FILES)]
    for file in files:
        nbytes = file.stat().st_size
        sketch.add(nbytes)
        with file.open("rb") as opened:
            for at in _spread(max(1, nbytes - _MOST), _ROWS if len(files) == 1 else 2):
                opened.seek(at)
                sketch.add(opened.read(_MOST))
