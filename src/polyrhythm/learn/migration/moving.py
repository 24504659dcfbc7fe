"""The moving points of one loop over leased points: reads the points that this worker sends, keeps
those that it receives, and gives the loop batches of its own and received points."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch.utils.data import Dataset, default_collate

from polyrhythm.learn.loading import Loading, arrays_of, fetcher, in_columns
from polyrhythm.learn.migration.layout import Packed, Ragged, pack, pack_columns
from polyrhythm.learn.migration.received import Fetcher, ReceivedPoints
from polyrhythm.learn.points import Points
from polyrhythm.runtime.worker.deliveries import PointsCarrier
from polyrhythm.wire.messages import ChunkSend, Leased


class MovingPoints:
    def __init__(
        self,
        carrier: PointsCarrier,
        points: Points,
        loading: Loading,
        received: ReceivedPoints,
    ) -> None:
        self._carrier = carrier
        self._points = points
        self._dataset = loading.dataset
        self._received = received
        self._columns = in_columns(loading.dataset, loading.collate_fn)
        self._native = fetcher(loading.dataset, loading.collate_fn)
        self.fetch = Fetcher(
            self._received,
            self._native,
            lambda index: self._dataset[index],
            loading.collate_fn or default_collate,
            len(loading.dataset),
            columns=self._columns,
            arrays=arrays_of(loading.dataset) if self._columns else None,
        )
        carrier.read, carrier.add = self._read, self._received.add

    def take(self, lease: Leased) -> bool:
        """Use the chunks of this lease from now on. Returns whether the set of received chunks has
        changed."""
        self._received.drop(lease.earlier)
        needed = {chunk.chunk for chunk in lease.chunks} | {send.chunk for send in lease.sends}
        self._received.keep(needed | {*lease.copies, *lease.arriving}, lease.delivery)
        chunks = ((each.chunk, self._points.of(each.first, each.last)) for each in lease.chunks)
        changed = self.fetch.take(chunks)
        self._carrier.take(lease)
        return changed

    def loader_arguments(self) -> dict[str, Any]:
        """Further arguments of a `DataLoader` that loads these points."""
        return {"dataset": _Fetched(self.fetch), "collate_fn": _as_is}

    def _read(self, send: ChunkSend, offset: int, count: int) -> Sequence[tuple[int, Packed]]:
        """Read points of a chunk that this worker sends. If points differ in shape, each is a
        separate part."""
        if send.chunk in self._received:
            part = self._received.rows(send.chunk, offset, offset + count)
            return [(len(part.columns[0]) if part.columns else count, part)]
        first = send.first + offset
        indices = self._points.of(first, first + count)
        if self._columns:
            return [(count, pack_columns(self._native(indices)))]
        samples = [self._dataset[int(index)] for index in indices]
        try:
            return [(count, pack(samples))]
        except Ragged:
            return [(1, pack([sample])) for sample in samples]


class _Fetched(Dataset[Any]):
    """Gives whole batches to a `DataLoader`."""

    def __init__(self, fetch: Fetcher) -> None:
        self._fetch = fetch

    def __getitem__(self, index: int) -> Any:
        return self._fetch(np.asarray([index], np.int64))

    def __getitems__(self, indices: list[int]) -> Any:
        return self._fetch(np.asarray(indices, np.int64))


def _as_is(batch: Any) -> Any:
    return batch
