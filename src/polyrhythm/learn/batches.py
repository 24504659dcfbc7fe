"""Loads batches of leased points. If the loader has processes, it loads batches before the training
loop asks for them.

*A point counts as visited when the training loop gets its batch. Points in loaded batches can still
be given back: when the lease changes, when the policy asks for another batch size, and when the
loop ends. So no point is lost or visited twice.*
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple
from zlib import crc32

import torch
from torch.utils.data import DataLoader, IterableDataset, default_collate

from polyrhythm.core.batches import least_of
from polyrhythm.core.migration import MOVING
from polyrhythm.core.names import own_number
from polyrhythm.core.sync.barrier.abandoning import OFF
from polyrhythm.errors import UsageError
from polyrhythm.learn.exchange import Exchange
from polyrhythm.learn.fingerprint import fingerprint_of
from polyrhythm.learn.loading import (
    Loading,
    RayBatches,
    edges_of,
    fetcher,
    loader_of,
    order_of,
    ranks_of,
)
from polyrhythm.learn.migration.moving import MovingPoints
from polyrhythm.learn.migration.received import ReceivedPoints
from polyrhythm.learn.points import Points
from polyrhythm.runtime.worker.loop import UserLoop
from polyrhythm.runtime.worker.node import WorkerNode
from polyrhythm.wire.messages import ChunkProgress, JobSpec, Leased
from polyrhythm.wire.messages.reasons import STREAM_ENDED


class Drawn(NamedTuple):
    """The points of one batch. They are not visited yet."""

    asked: int
    """How many points were requested for this batch."""
    points: int
    progress: tuple[ChunkProgress, ...]


class Lookahead:
    def __init__(
        self,
        points: Points,
        loading: Loading,
        seed: int,
        plan: Callable[[Sequence[int]], int],
        is_still_usable: Callable[[int], bool],
        moving: MovingPoints | None = None,
    ) -> None:
        """`plan` returns the number of points of the next batch, given the numbers of points of the
        batches before it. `is_still_usable` says whether a batch that was planned with this number
        of points may still be used. `moving`: sends and receives points of chunks that move; None if
        no points are sent."""
        self._points = points
        self._plan, self._is_still_usable = plan, is_still_usable
        self._ahead: deque[Drawn] = deque()
        self._iterator: Iterator[Any] | None = None
        self._loader: DataLoader[Any] | None = None
        self._processes = loading.num_workers
        self._loading, self._seed, self._moving = loading, seed, moving
        self._fetch = fetcher(loading.dataset, loading.collate_fn)
        self._begin_loader()

    def _begin_loader(self) -> None:
        loading = self._loading
        if not (loading.num_workers or loading.pin_memory):
            return
        arguments = {} if self._moving is None else self._moving.loader_arguments()
        self._loader = loader_of(loading, self._seed, batch_sampler=_Draws(self._draw), **arguments)

    def take(self, lease: Leased) -> bool:
        """Use a new lease; see `Points.take`."""
        new = not self._points.holds(lease)
        if new:
            self._flush()
        rejoined = self._points.take(lease)
        if new and self._moving is not None and self._moving.take(lease):
            # start the loader's processes again, because they lack the points that have arrived
            # since
            self._begin_loader()
        return rejoined

    def next(self, keep: int) -> tuple[Drawn, Any] | None:
        """Return the next batch; None if no points are left. `keep`: how many batches before it may
        still be put back."""
        self._points.keep(len(self._ahead) + keep)
        if self._loader is None:
            indices = self._draw()
            if indices is None:
                return None
            drawn = self._ahead.popleft()
            if self._moving is None or not self._moving.fetch.served:
                return drawn, self._fetch(indices)
            among = [step.chunk for step in drawn.progress]
            return drawn, self._moving.fetch(indices, among, self._points.parts)
        if self._ahead and not self._is_still_usable(self._ahead[0].asked):
            self._flush()
        if self._iterator is None or not self._ahead:
            if self._points.exhausted:
                return None
            # make a new iterator only here: it would stop the loading of the previous one
            self._iterator = iter(self._loader)
        batch = next(self._iterator)
        return self._ahead.popleft(), batch

    @property
    def everything(self) -> int:
        return self._points.everything

    def put_back(self, batches: int) -> None:
        """Give back the points of the last batches that `next` returned, so that they are drawn
        again."""
        self._flush()
        self._points.put_back(batches)

    def close(self) -> None:
        """Give back the points that are loaded ahead, and end the loader's processes."""
        self._flush()
        self._loader = None

    def _flush(self) -> None:
        self._points.put_back(len(self._ahead))
        self._ahead.clear()
        self._iterator = None

    def _draw(self) -> Any:
        asked = self._plan([drawn.points for drawn in self._ahead])
        indices, progress = self._points.next(asked)
        if not len(indices):
            return None
        self._ahead.append(Drawn(asked, len(indices), progress))
        return indices


class _Draws:
    """A batch sampler that draws points when the loader asks for them."""

    def __init__(self, draw: Callable[[], Any]) -> None:
        self._draw = draw

    def __iter__(self) -> "_Draws":
        return self

    def __next__(self) -> list[int]:
        indices = self._draw()
        if indices is None:
            raise StopIteration
        return indices.tolist()  # type: ignore[no-any-return]


def stream(loading: Loading, first: int, count: int, seed: int) -> Iterator[tuple[int, Any]]:
    """Yield batches, each with its number of points, until the source ends. `first` and `count`:
    this worker uses every `count`-th point or batch, beginning with number `first`."""
    if isinstance(loading.dataset, RayBatches):
        share = (0, 1) if loading.dataset.divided else (first, count)
        yield from _repeated(StridedStream(loading.dataset, *share), batched=False)
        return
    own, dataset = loading.loader, loading.dataset
    sized = Sized(loading.collate_fn or default_collate)
    batched = own is None or own.batch_size is not None or own.batch_sampler is not None
    arguments: dict[str, Any]
    if isinstance(dataset, IterableDataset):
        dataset = StridedStream(dataset, first, count)
        size = loading.batch_size if batched else None
        arguments = {"batch_size": size, "drop_last": loading.drop_last}
    elif batched:
        assert own is not None
        arguments = {"batch_sampler": StridedSampler(own.batch_sampler, first, count)}
    else:
        assert own is not None
        arguments = {"batch_size": None, "sampler": StridedSampler(own.sampler, first, count)}
    if batched:
        arguments["collate_fn"] = sized
    yield from _repeated(loader_of(loading, seed, dataset, **arguments), batched=batched)


def _repeated(loader: Iterable[Any], *, batched: bool) -> Iterator[tuple[int, Any]]:
    """Iterate over the loader until it yields nothing. `batched`: it yields each batch with its number
    of points."""
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


class StridedStream(IterableDataset[Any]):
    """Every `count`-th point or batch of a stream, beginning with number `first`.

    *Each worker reads its share: every n-th point of a stream, or every n-th batch of a sampler,
    where n is the number of workers with which the job began. A worker that joins later reads the
    same share as another worker. When the source ends, it begins again. A source that can be read
    only once, such as a generator, then has no points, and the training loop ends.*
    """

    def __init__(self, stream: Iterable[Any], first: int, count: int) -> None:
        self._stream, self._first, self._count = stream, first, count

    def __iter__(self) -> Iterator[Any]:
        return islice(self._stream, self._first, None, self._count)


class StridedSampler:
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
    """The number of points of a batch that the data set has made: the length of its first
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


class VisitedPasses:
    """How often the training loop has visited all points of its lease. A batch counts as visited
    when the loop gets it."""

    def __init__(self, loop: UserLoop) -> None:
        self.first = 0
        self._loop = loop
        self._been: dict[int, int] | None = None
        """Per chunk that this worker has visited, its passes. None: passes are not counted."""

    def begin(self, lease: Leased) -> None:
        """Begin to count for a training loop over the points of this lease."""
        if self._been is None:
            self._been = {}
            self.first = min((chunk.passes for chunk in lease.chunks), default=0)

    def on_visited(self, progress: Sequence[ChunkProgress]) -> None:
        if self._been is not None:
            self._been.update({step.chunk: step.passes for step in progress})

    @property
    def now(self) -> int | None:
        been, lease = self._been, self._loop.lease
        if been is None or lease is None:
            return None if been is None else self.first
        passes = (max(chunk.passes, been.get(chunk.chunk, 0)) for chunk in lease.chunks)
        return min(passes, default=self.first)


class Batches:
    """The batches of all loops over `worker.batches` of one worker."""

    def __init__(
        self,
        node: WorkerNode,
        job: JobSpec,
        stopped: Callable[[], bool],
        say: Callable[[str], None],
    ) -> None:
        """`stopped` returns whether the training loop must end. `say` prints a message once for all
        workers of a job."""
        self._node = node
        self._job = job
        self._stopped = stopped
        self._say = say
        self.passes = VisitedPasses(node.loop)
        self._points: Points | None = None
        self._received = ReceivedPoints()
        """Points of other workers. They are kept when the user's code begins another loop."""

    def of(self, loading: Loading, exchange: Exchange) -> Iterator[Any]:
        """Yield batches until the job ends, and then contribute the remaining steps."""
        least = least_of(self._job.min_batch, loading.batch_size)
        exchange.plan.begin(loading.batch_size, least)
        if loading.uncounted:
            found = self._streamed(loading, exchange)
        else:
            found = self._leased(loading, exchange, least)
        for points, batch in found:
            exchange.contributor.set_share(points, loading.batch_size)
            yield batch
        if exchange.window.has_points:
            exchange.contribute_rest()

    def _leased(
        self, loading: Loading, exchange: Exchange, least: int
    ) -> Iterator[tuple[int, Any]]:
        """Yield batches of leased points, each with its number of points."""
        node, job, window = self._node, self._job, exchange.window
        count = len(loading.dataset)
        order = order_of(loading.dataset)
        shared = job.data_private and node.shares
        if shared and loading.sampler is not None:
            raise UsageError(
                "a sampler and --share-data contradict each other: other workers do not know the order"
                " in which the sampler visits the points that they get; leave one of the two out"
            )
        edges, data = edges_of(order, job.seed), fingerprint_of(loading.dataset)
        lease = node.enrol(count, loading.batch_size, edges, data)
        if not exchange.pending:
            exchange.take_version()
        points = self._points = self._points or Points(lease, least, order, shared=shared)
        self.passes.begin(lease)
        ranks = None
        if loading.sampler is not None:
            ranks = ranks_of(loading.sampler, count, lease.seed)
        whole = loading.batch_size if loading.drop_last else 0
        if whole and exchange.traits.gathers:
            self._say("drop_last has no effect: under this policy the lead chooses the batch size")
            whole = 0
        points.begin(least, whole, ranks)
        moving = None
        if node.points is not None:
            moving = MovingPoints(node.points, points, loading, self._received)
        plan = exchange.plan
        ahead = Lookahead(
            points, loading, self._own_seed(), plan.next_points, plan.is_still_usable, moving
        )
        window.put_back = ahead.put_back if job.abandon != OFF else None
        node.timesheet.begin_interval()
        contributor = exchange.contributor
        turns = contributor.iterations(ahead, lease, self._stopped, exchange.before_batch)
        try:
            for _ in turns:
                found = ahead.next(0 if window.put_back is None else window.batches)
                if found is None:
                    exchange.settle()
                    if window.has_points:
                        exchange.contribute_rest()
                    else:
                        contributor.abstain()
                        exchange.take_version()
                    continue
                drawn, batch = found
                plan.begin_batch(drawn.asked)
                window.note(drawn.points, drawn.progress)
                self.passes.on_visited(drawn.progress)
                yield drawn.points, batch
        finally:
            ahead.close()

    def _streamed(self, loading: Loading, exchange: Exchange) -> Iterator[tuple[int, Any]]:
        """Yield batches of a source whose passes are not counted, each with its number of
        points."""
        node, job, window = self._node, self._job, exchange.window
        by_passes = job.epochs is not None or job.target_change is not None
        if job.rounds is None and job.points is None and by_passes:
            raise UsageError(
                f"passes are not counted, because {loading.uncounted}: --epochs and --target-change"
                " cannot end the job; give --points, --rounds, --max-seconds or another goal instead"
            )
        count = max(1, job.workers)
        moves = job.migrate in MOVING
        unmoved = f", and --migrate {job.migrate} has no effect" if moves else ""
        self._say(
            f"passes are not counted, because {loading.uncounted}; each of {count} workers takes its"
            f" share of the points{unmoved}"
        )
        window.put_back = None
        node.timesheet.begin_interval()
        incarnation = node.incarnation
        found = stream(loading, self._number() % count, count, self._own_seed())
        while not self._stopped():
            node.state.end_iteration()
            exchange.before_batch()
            item = next(found, None)
            if item is None:
                node.loop.done = STREAM_ENDED
                return
            points, batch = item
            if incarnation != node.incarnation:
                incarnation = node.incarnation
                window.drop()
            window.begin(0)
            window.note(points)
            yield points, batch

    def _number(self) -> int:
        """The number in the worker's name, which is the same after a restart. For a worker whose
        name has no number, this is a number that no other worker has."""
        number = own_number(self._node.name)
        return self._node.number if number is None else number

    def _own_seed(self) -> int:
        """A seed of this worker, which differs from those of the other workers."""
        return crc32(f"{self._job.seed} {self._node.name}".encode())
