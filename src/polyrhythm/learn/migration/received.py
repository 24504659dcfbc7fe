"""The points of other workers that this worker has received, and batches that contain such points.

*A receiving thread adds points; the thread of the user's loop reads points and drops them. A chunk
is read only when all its points are there.*
"""

import threading
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from polyrhythm.errors import LinkError
from polyrhythm.learn.migration.layout import (
    COLUMNS,
    Column,
    Packed,
    Samples,
    column_of,
    tensor_of,
    unpack,
)
from polyrhythm.learn.points import Indices
from polyrhythm.wire.messages import ChunkPart, ColumnSpec

_MOST_EDGES = 8
"""If the points of a batch change from one chunk to another more often than this, they are first
sorted by chunk."""


@dataclass(slots=True)
class _Arrived:
    """The parts of one chunk that have arrived."""

    number: int
    points: int
    parts: list[Packed] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    samples: list[Samples] = field(default_factory=list)
    """The points of each part, if points were read one by one."""
    count: int = 0

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)

    def part_of(self, position: int) -> int:
        """The index of the part that contains this point."""
        return bisect_right(self.offsets, position) - 1

    def complete(self) -> None:
        """Note that all parts have arrived. Parts with the same layout are joined, so that many
        points can be read at once."""
        first = self.parts[0]
        if len(self.parts) > 1 and all(
            (each.structure, each.specs) == (first.structure, first.specs) for each in self.parts
        ):
            columns = zip(*(part.columns for part in self.parts), strict=True)
            whole = tuple(np.concatenate(column) for column in columns)
            self.parts, self.offsets = [Packed(first.structure, first.specs, whole)], [0]

    def sample(self, position: int) -> Any:
        """The point at this position of the chunk. Call this only when all parts have arrived."""
        if not self.samples:
            self.samples = [Samples(part) for part in self.parts]
        at = self.part_of(position)
        return self.samples[at][position - self.offsets[at]]


class ReceivedPoints:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._chunks: dict[int, _Arrived] = {}
        self._arriving: dict[tuple[int, int], _Arrived] = {}
        """Per chunk and delivery, the parts that have arrived so far."""
        self._dropped: set[int] = set()
        """The numbers of the deliveries that were dropped before all their parts had arrived."""

    def add(self, part: ChunkPart, payload: memoryview) -> int | None:
        """Add a part of a chunk. Returns the number of bytes of the chunk if it is now complete,
        otherwise None. *Parts of a dropped delivery are ignored: the worker that sends them may get
        its new lease later than this worker.*"""
        packed = unpack(part.structure, part.columns, part.count, payload)
        key = (part.chunk, part.number)
        with self._lock:
            if part.number in self._dropped:
                return None
            if not part.offset:
                self._arriving[key] = _Arrived(part.number, part.points)
            arrived = self._arriving.get(key)
            if arrived is None or arrived.count != part.offset or arrived.points != part.points:
                raise LinkError("the parts of a chunk came out of order")
            arrived.parts.append(packed)
            arrived.offsets.append(part.offset)
            arrived.count += part.count
            if arrived.count < part.points:
                return None
            del self._arriving[key]
            arrived.complete()
            self._chunks[part.chunk] = arrived
            return arrived.nbytes

    def keep(self, chunks: Collection[int], delivery: int) -> None:
        """Drop all chunks except these. Chunks of later deliveries than number `delivery` stay
        too."""
        with self._lock:
            for chunk, arrived in list(self._chunks.items()):
                if chunk not in chunks and arrived.number <= delivery:
                    del self._chunks[chunk]
            for key in [key for key in self._arriving if key[0] not in chunks]:
                if key[1] <= delivery:
                    del self._arriving[key]
                    self._dropped.add(key[1])

    def drop(self, delivery: int) -> None:
        """Drop the points of deliveries up to this number: they were sent to an earlier incarnation
        of this worker. *Points for its present incarnation may have arrived before its first
        lease.*"""
        self.keep((), delivery)

    def __contains__(self, chunk: int) -> bool:
        return chunk in self._chunks

    def at(self, chunk: int, position: int) -> tuple[Packed, int]:
        """The part that contains the point at this position of the chunk, and the row of the point in
        that part."""
        arrived = self._chunks[chunk]
        at = arrived.part_of(position)
        return arrived.parts[at], position - arrived.offsets[at]

    def sample(self, chunk: int, position: int) -> Any:
        """The point at this position of the chunk."""
        return self._chunks[chunk].sample(position)

    def rows(self, chunk: int, first: int, last: int) -> Packed:
        """The points [first, last) of a chunk, up to the end of the part that contains the first of
        them."""
        part, row = self.at(chunk, first)
        end = row + last - first
        return Packed(part.structure, part.specs, tuple(column[row:end] for column in part.columns))


class Fetcher:
    """Gives batches of points, of which some may be received. `native` reads a batch from this
    worker's own data set, which has `own` points; `sample` reads one point, and `collate` makes a batch
    of points. With `columns`, a batch is a tuple of tensors instead."""

    def __init__(
        self,
        received: ReceivedPoints,
        native: Callable[[Indices], Any],
        sample: Callable[[int], Any],
        collate: Callable[[list[Any]], Any],
        own: int,
        *,
        columns: bool,
        arrays: Sequence[Column] | None = None,
    ) -> None:
        """`arrays`: the columns of the worker's own data set, if these are arrays in memory."""
        self._received = received
        self._native, self._sample, self._collate = native, sample, collate
        self._own = own
        self._columns = columns
        self._chunk = np.empty(0, np.int64)
        """For each point, the received chunk that contains it; -1 for a point of this worker's data
        set."""
        self._position = np.empty(0, np.int64)
        """For each point, its position in the received chunk, or its number in this worker's data
        set."""
        self._own_devices: list[torch.device] | None = None
        self._arrays = arrays
        self._tables: dict[int, Sequence[Column]] | None = None
        """Per chunk of `_chunk`, the arrays that contain its points, if the arrays of all chunks
        have the same type. The rows of a batch are then taken from these arrays."""
        self._points: dict[int, Indices] = {}
        """Per chunk in `served`, the numbers of its points."""
        self.served: frozenset[int] = frozenset()
        """The chunks of the present lease whose points came from other workers."""

    def take(self, chunks: Iterable[tuple[int, Indices]]) -> bool:
        """Serve the chunks of the lease, each with its points. Returns whether the set of chunks
        with received points has changed."""
        served = {number: points for number, points in chunks if number in self._received}
        before = self._points
        same = {n for n, points in served.items() if n in before and before[n][0] == points[0]}
        if len(same) == len(served) == len(before):
            return False
        last = max((int(points.max()) for points in served.values()), default=-1)
        if (count := max(self._own, last + 1)) > len(self._chunk):
            more = len(self._chunk)
            self._chunk = np.append(self._chunk, np.full(count - more, -1))
            self._position = np.append(self._position, np.arange(more, count))
        for number in before.keys() - same:
            points = before[number]
            self._chunk[points], self._position[points] = -1, points
        for number in served.keys() - same:
            points = served[number]
            self._chunk[points], self._position[points] = number, np.arange(len(points))
        self._points, self.served = served, frozenset(served)
        self._tables = self._alike()
        return True

    def _alike(self) -> dict[int, Sequence[Column]] | None:
        """The arrays of the worker's own points and of each received chunk. None if their types or
        shapes differ, or if the worker's own arrays are unknown."""
        own = self._arrays
        if own is None:
            return None
        tables: dict[int, Sequence[Column]] = {-1: own}
        wanted = [(array.dtype.name, array.shape[1:]) for array in own]
        for number in self.served:
            part, _ = self._received.at(number, 0)
            tensors = all(spec.kind == "tensor" for spec in part.specs)
            found = [(spec.dtype, spec.shape) for spec in part.specs]
            if part.structure != COLUMNS or not tensors or found != wanted:
                return None
            tables[number] = part.columns
        return tables

    def __call__(
        self,
        indices: Indices,
        among: Collection[int] | None = None,
        parts: Sequence[tuple[int, int]] | None = None,
    ) -> Any:
        """The batch of these points. `among`: the chunks to which they belong; None if unknown.
        `parts`: these chunks in the order of the points, and how many points belong to each; None
        if the points of a chunk are not neighbours."""
        if not self.served or (among is not None and self.served.isdisjoint(among)):
            return self._native(indices)
        if self._tables is not None and parts is not None:
            return self._taken_in_order(self._tables, indices, parts)
        if self._tables is not None:
            return self._taken(
                self._tables, indices, together=among is not None and len(among) == 1
            )
        if among is not None and len(among) == 1 and self._columns:
            return self._together(indices, self._chunk[indices[:1]], [0, len(indices)])
        chunks = self._chunk[indices]
        alike = bool((chunks == chunks[0]).all())
        if alike and chunks[0] < 0:
            return self._native(indices)
        if self._columns:
            return self._together(indices, chunks, [0, len(chunks)] if alike else _edges(chunks))
        return self._collate(
            [
                self._sample(index)
                if chunk < 0
                else self._received.sample(chunk, int(self._position[index]))
                for index, chunk in zip(indices.tolist(), chunks.tolist(), strict=True)
            ]
        )

    def _taken_in_order(
        self,
        tables: Mapping[int, Sequence[Column]],
        indices: Indices,
        parts: Sequence[tuple[int, int]],
    ) -> tuple[torch.Tensor, ...]:
        """Like `_taken`, but faster, because the points of each chunk are neighbours."""
        own, first = tables[-1], 0
        ranges: list[tuple[Sequence[Column], Indices]] = []
        for chunk, count in parts:
            rows = indices[first : first + count]
            first += count
            table = tables.get(chunk)
            ranges.append((own, rows) if table is None else (table, self._position.take(rows)))
        if len(ranges) == 1:
            table, rows = ranges[0]
            return tuple([torch.from_numpy(column.take(rows, 0)) for column in table])
        return tuple(
            [
                torch.from_numpy(
                    np.concatenate([table[at].take(rows, 0) for table, rows in ranges])
                )
                for at in range(len(own))
            ]
        )

    def _taken(
        self, tables: Mapping[int, Sequence[Column]], indices: Indices, *, together: bool
    ) -> tuple[torch.Tensor, ...]:
        """The columns of these points, from arrays of equal types and shapes. `together`: all points
        belong to one chunk."""
        at, count = self._position.take(indices), len(indices)
        if together:
            columns = tables[int(self._chunk[indices[0]])]
            return tuple([torch.from_numpy(column.take(at, 0)) for column in columns])
        chunks = self._chunk.take(indices)
        edges = _edges(chunks)
        if len(edges) > _MOST_EDGES:
            order = np.argsort(chunks, kind="stable")
            back = np.empty(count, np.int64)
            back[order] = np.arange(count)
            edges = _edges(chunks := chunks.take(order))
            at = at.take(order)
        else:
            back = None
        ranges = [
            (tables[int(chunks[first])], first, last, at[first:last])
            for first, last in pairwise(edges)
        ]
        found = []
        for number, like in enumerate(tables[-1]):
            column = np.empty((count, *like.shape[1:]), like.dtype)
            for table, first, last, rows in ranges:
                column[first:last] = table[number].take(rows, 0)
            found.append(torch.from_numpy(column if back is None else column.take(back, 0)))
        return tuple(found)

    def _together(
        self, indices: Indices, chunks: Indices, edges: Sequence[int]
    ) -> tuple[torch.Tensor, ...]:
        """The columns of these points, some of which belong to received chunks. A batch usually has
        the points of one chunk after those of another. `edges`: where the points of each chunk
        begin."""
        joined = self._joined if self._devices() is None else self._joined_there
        if len(edges) > _MOST_EDGES:
            order = np.argsort(chunks, kind="stable")
            back = torch.from_numpy(np.argsort(order, kind="stable"))
            indices, chunks = indices[order], chunks[order]
            columns = joined(indices, chunks, _edges(chunks))
            return tuple(column[back.to(column.device)] for column in columns)
        return joined(indices, chunks, edges)

    def _devices(self) -> Sequence[torch.device] | None:
        """The devices of the columns of this worker's own data set, if it is not in main memory.
        The first call reads a point of the data set to find the devices."""
        if self._own_devices is None:
            own = self._native(np.zeros(1, np.int64)) if self._own else ()
            self._own_devices = [tensor.device for tensor in own]
        found = self._own_devices
        return None if all(device.type == "cpu" for device in found) else found

    def _joined_there(
        self, indices: Indices, chunks: Indices, edges: Sequence[int]
    ) -> tuple[torch.Tensor, ...]:
        """The columns of these points, on the devices of this worker's own columns."""
        parts: list[Sequence[torch.Tensor]] = []
        devices = self._devices() or ()
        for first, last in pairwise(edges):
            points, chunk = indices[first:last], int(chunks[first])
            if chunk < 0:
                parts.append(self._native(points))
                continue
            part, _ = self._received.at(chunk, 0)
            at = self._position[points]
            rows = _tensors(part.specs, [np.take(column, at, 0) for column in part.columns])
            parts.append([row.to(device) for row, device in zip(rows, devices, strict=True)])
        return tuple(torch.cat(list(columns)) for columns in zip(*parts, strict=True))

    def _joined(
        self, indices: Indices, chunks: Indices, edges: Sequence[int]
    ) -> tuple[torch.Tensor, ...]:
        """The columns of these points, in main memory. The points of a chunk are neighbours, and
        begin at an edge."""
        specs: tuple[ColumnSpec, ...] = ()
        parts: list[Sequence[Column]] = []
        for first, last in pairwise(edges):
            points, chunk = indices[first:last], int(chunks[first])
            if chunk < 0:
                parts.append([column_of(tensor)[1] for tensor in self._native(points)])
                continue
            part, _ = self._received.at(chunk, 0)
            specs, at = part.specs, self._position[points]
            parts.append([np.take(column, at, 0) for column in part.columns])
        if len(parts) == 1:
            return _tensors(specs, parts[0])
        return _tensors(specs, [np.concatenate(columns) for columns in zip(*parts, strict=True)])


def _edges(chunks: Indices) -> list[int]:
    """The positions at which the points of each chunk begin, and the end of the last one."""
    begin = np.flatnonzero(chunks[1:] != chunks[:-1]) + 1
    return [0, *begin.tolist(), len(chunks)]


def _tensors(specs: Sequence[ColumnSpec], columns: Iterable[Column]) -> tuple[torch.Tensor, ...]:
    return tuple(map(tensor_of, specs, columns))
