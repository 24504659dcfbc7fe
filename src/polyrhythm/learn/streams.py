"""Batches of sources whose passes are not counted: streams, and loaders with a sampler of their own.

*Each worker takes its share: every n-th point of a stream, or every n-th batch of a sampler, where
n is the number of workers with which the job began. A worker that joins later takes the same share
as another worker. When the source ends, it begins again. A source that can be read only once, such as a
generator, has no points then, and ends the training loop of its worker.*
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import torch
from torch.utils.data import IterableDataset, default_collate

from polyrhythm.errors import UsageError
from polyrhythm.learn.loading import Loading, loader_of


def stream(loading: Loading, first: int, count: int, seed: int) -> Iterator[tuple[int, Any]]:
    """Yield batches, each with its number of points, until the source has no more. `first` and
    `count`: this worker takes every `count`-th point or batch, beginning with number `first`."""
    own, dataset = loading.loader, loading.dataset
    sized = Sized(loading.collate_fn or default_collate)
    batched = own is None or own.batch_size is not None or own.batch_sampler is not None
    arguments: dict[str, Any]
    if isinstance(dataset, IterableDataset):
        dataset = Share(dataset, first, count)
        size = loading.batch_size if batched else None
        arguments = {"batch_size": size, "drop_last": loading.drop_last}
    elif batched:
        assert own is not None
        arguments = {"batch_sampler": SharedSampler(own.batch_sampler, first, count)}
    else:
        assert own is not None
        arguments = {"batch_size": None, "sampler": SharedSampler(own.sampler, first, count)}
    if batched:
        arguments["collate_fn"] = sized
    loader = loader_of(loading, seed, dataset, **arguments)
    begun, empty = False, False
    while not empty:
        empty = True
        for item in loader:
            begun, empty = True, False
            yield (item[0], item[1]) if batched else (leading(item), item)
    if not begun:
        raise UsageError(
            "the source of worker.batches has too few points: this worker's share contains no batch"
        )


class Sized:
    """A collate function that also returns the number of points."""

    def __init__(self, collate_fn: Callable[[Any], Any]) -> None:
        self._collate_fn = collate_fn

    def __call__(self, points: Any) -> tuple[int, Any]:
        return len(points), self._collate_fn(points)


class Share(IterableDataset[Any]):
    """Every `count`-th point of a stream, beginning with point `first`."""

    def __init__(self, stream: Iterable[Any], first: int, count: int) -> None:
        self._stream, self._first, self._count = stream, first, count

    def __iter__(self) -> Iterator[Any]:
        return islice(self._stream, self._first, None, self._count)


class SharedSampler:
    """Every `count`-th batch of a batch sampler, or point of a sampler, beginning with `first`."""

    def __init__(self, sampler: Any, first: int, count: int) -> None:
        self._sampler, self._first, self._count = sampler, first, count
        self._pass = 0

    def __iter__(self) -> Iterator[Any]:
        for sampler in (self._sampler, getattr(self._sampler, "sampler", None)):
            if callable(set_epoch := getattr(sampler, "set_epoch", None)):
                set_epoch(self._pass)
        self._pass += 1
        return islice(self._sampler, self._first, None, self._count)


def leading(batch: Any) -> int:
    """The number of points of a batch that the data set made itself: the length of its first
    tensor."""
    if isinstance(batch, torch.Tensor):
        return len(batch) if batch.dim() else 1
    if isinstance(batch, dict) and batch:
        return leading(next(iter(batch.values())))
    if isinstance(batch, tuple | list) and batch:
        return leading(batch[0]) if isinstance(batch[0], torch.Tensor | dict) else len(batch)
    raise UsageError(
        "the points of a batch cannot be counted, because it has no tensor: use a DataLoader with a"
        " batch_size"
    )
