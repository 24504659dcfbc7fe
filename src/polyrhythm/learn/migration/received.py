"""The points of other workers that this worker has received, and batches that contain such points.

*A receiving thread adds points; the thread of the user's loop drops them and reads them. A chunk is
read only when all its points are there.*
"""

import threading
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from polyrhythm.errors import LinkError
from polyrhythm.learn.migration.layout import Packed, Samples, tensor_of, unpack
from polyrhythm.learn.points import Indices
from polyrhythm.wire.messages import ChunkPart


@dataclass(slots=True)
class _Arrived:
    """What has arrived of a chunk."""

    number: int
    points: int
    parts: list[Packed] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    count: int = 0

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)


class ReceivedPoints:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._chunks: dict[int, _Arrived] = {}
        self._arriving: dict[tuple[int, int], _Arrived] = {}
        """Per chunk and delivery, what has arrived so far."""

    def add(self, part: ChunkPart, payload: memoryview) -> int | None:
        """Add a part of a chunk. Returns the bytes of the chunk if it is complete, otherwise None."""
        packed = unpack(part.structure, part.columns, part.count, payload)
        key = (part.chunk, part.number)
        with self._lock:
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
            self._chunks[part.chunk] = arrived
            return arrived.nbytes

    def keep(self, chunks: Collection[int], delivery: int) -> None:
        """Drop all chunks but these, if they came with a delivery up to this number."""
        with self._lock:
            for chunk, arrived in list(self._chunks.items()):
                if chunk not in chunks and arrived.number <= delivery:
                    del self._chunks[chunk]
            for key in [key for key in self._arriving if key[0] not in chunks]:
                if key[1] <= delivery:
                    del self._arriving[key]

    def forget(self) -> None:
        with self._lock:
            self._chunks.clear()
            self._arriving.clear()

    def __contains__(self, chunk: int) -> bool:
        return chunk in self._chunks

    def at(self, chunk: int, position: int) -> tuple[Packed, int]:
        """The part that contains the point at this position of the chunk, and its row there."""
        arrived = self._chunks[chunk]
        at = int(np.searchsorted(arrived.offsets, position, side="right")) - 1
        return arrived.parts[at], position - arrived.offsets[at]

    def rows(self, chunk: int, first: int, last: int) -> Packed:
        """The points [first, last) of a chunk, or fewer, which are in one part."""
        part, row = self.at(chunk, first)
        end = row + last - first
        return Packed(part.structure, part.specs, tuple(column[row:end] for column in part.columns))


class Fetcher:
    """Gives batches of points, of which some may be received. `native` reads a batch from this
    worker's own data set; `sample` reads one point, and `collate` makes a batch of points. With
    `columns`, a batch is a tuple of tensors instead."""

    def __init__(
        self,
        received: ReceivedPoints,
        native: Callable[[Indices], Any],
        sample: Callable[[int], Any],
        collate: Callable[[list[Any]], Any],
        *,
        columns: bool,
    ) -> None:
        self._received = received
        self._native, self._sample, self._collate = native, sample, collate
        self._columns = columns
        self._where: dict[int, tuple[int, int]] = {}
        """Per received point of the lease, its chunk and its position in the chunk."""
        self.served: frozenset[int] = frozenset()
        """The chunks of the lease that were received."""

    def take(self, chunks: Iterable[tuple[int, Indices]]) -> bool:
        """The lease has these chunks, each with its points. Returns whether other chunks are served
        from the received points than before."""
        served = {number: points for number, points in chunks if number in self._received}
        if served.keys() == self.served:
            return False
        self.served = frozenset(served)
        self._where = {
            int(point): (number, position)
            for number, points in served.items()
            for position, point in enumerate(points)
        }
        return True

    def __call__(self, indices: Indices) -> Any:
        if not self._where:
            return self._native(indices)
        places = [self._where.get(int(index)) for index in indices]
        if not any(places):
            return self._native(indices)
        if self._columns:
            return self._together(indices, places)
        samples = [
            self._sample(int(index)) if place is None else _sample_of(*self._received.at(*place))
            for index, place in zip(indices, places, strict=True)
        ]
        return self._collate(samples)

    def _together(self, indices: Indices, places: list[tuple[int, int] | None]) -> Any:
        own = [row for row, place in enumerate(places) if place is None]
        batch = self._native(indices[own]) if own else None
        found: list[torch.Tensor] | None = None
        for row, place in enumerate(places):
            if place is None:
                continue
            part, at = self._received.at(*place)
            if found is None:
                found = [
                    torch.empty((len(places), *spec.shape), dtype=tensor_of(spec, column[:0]).dtype)
                    for spec, column in zip(part.specs, part.columns, strict=True)
                ]
            for out, spec, column in zip(found, part.specs, part.columns, strict=True):
                out[row] = tensor_of(spec, column[at : at + 1])[0]
        assert found is not None
        if batch is not None:
            index = torch.tensor(own)
            for out, column in zip(found, batch, strict=True):
                out[index] = column
        return tuple(found)


def _sample_of(part: Packed, row: int) -> Any:
    return Samples(part)[row]
