"""What `worker.batches` loads, and how: a data set with options, or the user's own `DataLoader`.

*Passes are counted only for a data set with numbered points that are visited once each. With the
user's sampler, or a stream, each worker reads a share of the points, and passes are not counted.*
"""

import signal
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    default_collate,
)

from polyrhythm.core.lead.data.chunks import announced
from polyrhythm.errors import UsageError
from polyrhythm.learn.data.row_groups import RowGroups
from polyrhythm.learn.points import Indices, Order, Ranks

Column = npt.NDArray[Any]
_OF_THE_LOADER = (
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "prefetch_factor",
    "generator",
)


@dataclass(frozen=True, slots=True)
class Loading:
    """A source of batches, with the options of `worker.batches`."""

    dataset: Any
    batch_size: int
    num_workers: int = 0
    collate_fn: Callable[[Any], Any] | None = None
    drop_last: bool = False
    pin_memory: bool = False
    sampler: Iterable[int] | None = None
    """The order of points. It must give every point once."""
    uncounted: str = ""
    """Why passes are not counted; empty if they are."""
    loader: DataLoader[Any] | None = None
    """The user's loader, if passes are not counted because of it."""
    further: dict[str, Any] = field(default_factory=dict)
    """Other arguments of the user's own `DataLoader`, which are passed on."""


def loading_of(
    source: Any,
    batch_size: int | None,
    *,
    num_workers: int = 0,
    collate_fn: Callable[[Any], Any] | None = None,
    drop_last: bool = False,
    pin_memory: bool = False,
    sampler: Iterable[int] | None = None,
) -> Loading:
    if isinstance(source, DataLoader):
        given = (batch_size, num_workers, collate_fn, drop_last, pin_memory, sampler)
        if given != (None, 0, None, False, False, None):
            raise UsageError(
                "worker.batches got a DataLoader and further options: give these options to the"
                " DataLoader"
            )
        return _of_loader(source)
    if batch_size is None:
        raise UsageError("worker.batches needs a batch_size, unless it gets a DataLoader")
    if not isinstance(batch_size, int) or batch_size < 1:
        raise UsageError(f"batch_size is {batch_size!r}: give a whole number of at least 1")
    if num_workers < 0:
        raise UsageError(f"num_workers is {num_workers}: it must be at least 0")
    if hasattr(source, "iter_torch_batches"):
        if num_workers or sampler is not None:
            raise UsageError(
                "num_workers and sampler cannot be used with a ray.data.Dataset: Ray loads its"
                " data in advance, and dataset.random_shuffle() changes the order"
            )
        batches = RayBatches(source, batch_size, collate_fn, drop_last, pin_memory)
        return Loading(batches, batch_size, uncounted=_RAY)
    stream = isinstance(source, IterableDataset)
    if stream and sampler is not None:
        raise UsageError(
            "a sampler orders points by their numbers, and points of an IterableDataset have no numbers"
        )
    return Loading(
        source if stream else _map_style(source),
        batch_size,
        num_workers,
        collate_fn,
        drop_last,
        pin_memory,
        sampler,
        _STREAM if stream else "",
    )


_STREAM = "the data set is an IterableDataset, whose points have no numbers"
_RAY = "the points of a ray.data.Dataset have no numbers"


def _of_loader(loader: DataLoader[Any]) -> Loading:
    further = {name: getattr(loader, name) for name in _OF_THE_LOADER}
    if loader.num_workers == 0:
        further["prefetch_factor"] = None
    dataset, order, uncounted = loader.dataset, None, ""
    if isinstance(dataset, IterableDataset):
        uncounted = _STREAM
    elif loader.batch_size is None and loader.batch_sampler is None:
        uncounted = "batch_size of the DataLoader is None"
    elif not _default_order(loader):
        uncounted = "the DataLoader has its own sampler"
    elif isinstance(loader.sampler, SequentialSampler):
        order = loader.sampler
    return Loading(
        dataset,
        loader.batch_size or 1,
        loader.num_workers,
        loader.collate_fn,
        loader.drop_last,
        loader.pin_memory,
        order,
        uncounted,
        loader if uncounted else None,
        further,
    )


def _default_order(loader: DataLoader[Any]) -> bool:
    """Whether `DataLoader` itself made the loader's sampler, as its option `shuffle` asks."""
    sampler = loader.sampler
    if type(loader.batch_sampler) is not BatchSampler:
        return False
    if type(sampler) is SequentialSampler:
        return True
    if type(sampler) is not RandomSampler or sampler.replacement:
        return False
    return sampler.num_samples == len(loader.dataset)  # type: ignore[arg-type]


class RayBatches:
    """The batches of a `ray.data.Dataset`, or of a `ray.data.DataIterator`, which gives each
    process a share. Ray reads the data with CPUs of the cluster that the job does not use."""

    def __init__(
        self,
        source: Any,
        batch_size: int,
        collate_fn: Callable[[Any], Any] | None,
        drop_last: bool,
        pin_memory: bool,
    ) -> None:
        self._source = source
        self._how: dict[str, Any] = {"batch_size": batch_size, "drop_last": drop_last}
        # Ray would move batches to a GPU, and does not accept these options together
        own = {"device": "cpu", "pin_memory": pin_memory}
        self._how |= own if collate_fn is None else {"collate_fn": collate_fn}
        self.divided = not hasattr(source, "streaming_split")
        """Whether the source gives each process a share."""

    def __iter__(self) -> Iterator[Any]:
        import ray

        if not ray.is_initialized():
            raise UsageError(
                "worker.batches got a ray.data.Dataset, and this worker does not run on a Ray cluster:"
                " use --engine ray"
            )
        return iter(self._source.iter_torch_batches(**self._how))


# -- data sets with numbered points ------------------------------------------------------------


class JoinedArrays(Dataset[Any]):
    """Tensors or arrays that are indexed together."""

    def __init__(self, columns: Iterable[Any]) -> None:
        self.columns = tuple(
            column if isinstance(column, torch.Tensor) else torch.as_tensor(np.asarray(column))
            for column in columns
        )
        lengths = list(dict.fromkeys(len(column) for column in self.columns))
        if len(lengths) != 1:
            found = " and ".join(map(str, lengths)) or "no tensors"
            raise UsageError(
                "tensors in a tuple or a list are indexed together, so they must have the same"
                f" length, but found {found}; give a list of points as a torch Dataset"
            )

    def __len__(self) -> int:
        return len(self.columns[0])

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        return tuple(column[index] for column in self.columns)


def _map_style(source: Any) -> Any:
    if isinstance(source, tuple | list):
        return JoinedArrays(source)
    if not hasattr(source, "__len__") or not hasattr(source, "__getitem__"):
        raise UsageError(
            "worker.batches needs a map-style data set (with __len__ and __getitem__),"
            " because points are leased by their number; an IterableDataset or a DataLoader works"
            " too, but its points are not leased"
        )
    return source


def count_of(source: Any) -> int:
    return len(_map_style(source))


def order_of(dataset: Any) -> Order | None:
    """The order that a data set wants, if it reads some orders faster than others."""
    return dataset if isinstance(dataset, RowGroups) else None


def edges_of(order: Order | None, seed: int) -> tuple[int, ...]:
    """The positions of row groups in the order in which points are assigned to chunks."""
    return () if order is None else announced(order.edges(np.random.default_rng(seed)))


def fetcher(
    source: Any, collate_fn: Callable[[Any], Any] | None = None
) -> Callable[[Indices], Any]:
    """Return a function that gives the batch of these points."""
    dataset = _map_style(source)
    if collate_fn in (None, default_collate):
        tensors = tensors_of(dataset)
        if tensors is not None:
            return rows_of(tensors)
        if isinstance(dataset, RowGroups):
            return dataset.columns
    collate = collate_fn or default_collate
    if hasattr(dataset, "__getitems__"):
        return lambda indices: collate(dataset.__getitems__(indices.tolist()))
    return lambda indices: collate([dataset[index] for index in indices.tolist()])


def in_columns(dataset: Any, collate_fn: Callable[[Any], Any] | None) -> bool:
    """Whether a batch is read column by column, as a tuple of tensors, and not point by point."""
    whole = tensors_of(dataset) is not None or isinstance(dataset, RowGroups)
    return whole and collate_fn in (None, default_collate)


def tensors_of(dataset: Any) -> tuple[torch.Tensor, ...] | None:
    """The tensors of a data set that consists of tensors; None for any other data set."""
    if isinstance(dataset, JoinedArrays):
        return dataset.columns
    return dataset.tensors if type(dataset) is TensorDataset else None


def rows_of(columns: Iterable[torch.Tensor]) -> Callable[[Indices], tuple[torch.Tensor, ...]]:
    """Return a function that gives these rows of all columns. For tensors in memory, numpy's `take`
    is several times faster than torch's indexing."""
    takers = [_taker(column) for column in columns]
    return lambda indices: tuple([take(indices) for take in takers])


def arrays_of(dataset: Any) -> tuple[Column, ...] | None:
    """The columns of a data set as arrays that share its memory; None if a column cannot be such an
    array."""
    found = [array_of(tensor) for tensor in tensors_of(dataset) or (None,)]
    arrays = tuple(array for array in found if array is not None)
    return arrays if len(arrays) == len(found) else None


def array_of(column: torch.Tensor | None) -> Column | None:
    """The array that shares the memory of a tensor, if numpy can take rows of it quickly."""
    if type(column) is torch.Tensor and column.device.type == "cpu" and not column.requires_grad:
        try:
            values: Column = column.numpy()
        except (TypeError, RuntimeError):
            # numpy does not know the type or the layout of this tensor
            return None
        # numpy would first copy all rows of an array that is not contiguous
        return values if values.flags.c_contiguous else None
    return None


def _taker(column: torch.Tensor) -> Callable[[Indices], torch.Tensor]:
    values = array_of(column)
    if values is None:
        return lambda indices: column[torch.from_numpy(indices)]
    take = values.take  # for a few rows, the array's own `take` needs half the time of `np.take`
    return lambda indices: torch.from_numpy(take(indices, 0))


class _Whole(Dataset[Any]):
    """A data set of tensors that are indexed together. It gives whole batches to the loader, so the
    loader does not collate."""

    def __init__(self, tensors: tuple[torch.Tensor, ...]) -> None:
        self._tensors = tensors
        self._rows: Callable[[Indices], tuple[torch.Tensor, ...]] | None = None

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        return tuple(tensor[index] for tensor in self._tensors)

    def __getitems__(self, indices: list[int]) -> tuple[torch.Tensor, ...]:
        # the function is made in the process that calls it, because a function like this cannot be
        # pickled
        if self._rows is None:
            self._rows = rows_of(self._tensors)
        return self._rows(np.asarray(indices, np.int64))


def _as_is(batch: Any) -> Any:
    return batch


class _Begin:
    """Prepares a process of a loader. The process ignores Ctrl-C, because the worker decides when
    it ends."""

    def __init__(self, init_fn: Callable[[int], None] | None) -> None:
        self._init_fn = init_fn

    def __call__(self, number: int) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if self._init_fn is not None:
            self._init_fn(number)


def loader_of(
    loading: Loading, seed: int, dataset: Any = None, **arguments: Any
) -> DataLoader[Any]:
    """Return the `DataLoader` that loads batches. `seed`: the seed of its processes, unless the user's
    own loader has a generator. `dataset`: takes the place of the loader's data set. `arguments`: further
    arguments."""
    dataset = loading.dataset if dataset is None else dataset
    arguments = {"collate_fn": loading.collate_fn, **loading.further, **arguments}
    if loading.collate_fn in (None, default_collate) and "batch_sampler" in arguments:
        tensors = tensors_of(dataset)
        if tensors is not None:
            dataset, arguments["collate_fn"] = _Whole(tensors), _as_is
        elif isinstance(dataset, RowGroups):
            arguments["collate_fn"] = _as_is
    if arguments.get("generator") is None:
        arguments["generator"] = torch.Generator().manual_seed(seed)
    arguments["worker_init_fn"] = _Begin(arguments.get("worker_init_fn"))
    return DataLoader(
        dataset,
        num_workers=loading.num_workers,
        # without an accelerator there is no memory to pin, and torch would warn
        pin_memory=loading.pin_memory and torch.accelerator.is_available(),
        persistent_workers=loading.num_workers > 0,
        **arguments,
    )


def ranks_of(sampler: Iterable[int], points: int, seed: int) -> Ranks:
    """Return a function that gives, for a pass, the position of every point in the sampler's order. All
    workers must find the same order, because a chunk may move between them in the middle of a pass. So
    torch's random numbers are seeded for each pass."""

    def ranks(this_pass: int) -> Indices:
        number = int(np.random.SeedSequence((seed, this_pass, 4)).generate_state(1)[0])
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(number)
            if isinstance(generator := getattr(sampler, "generator", None), torch.Generator):
                generator.manual_seed(number)
            if callable(set_epoch := getattr(sampler, "set_epoch", None)):
                set_epoch(this_pass)
            order = np.fromiter((int(index) for index in sampler), np.int64)
        if not np.array_equal(np.sort(order), np.arange(points)):
            raise UsageError(
                f"the sampler gave {len(order)} points, but a sampler of worker.batches must give each"
                f" of the {points} points of the data set once; give any other sampler to a"
                " DataLoader, with which passes are not counted"
            )
        found = np.empty(points, np.int64)
        found[order] = np.arange(points)
        return found

    return ranks
