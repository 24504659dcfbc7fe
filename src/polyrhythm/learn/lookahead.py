"""Loads batches of leased points, ahead of the training loop if the loader has processes of its own.

*Points that were given to the loader are not visited yet. They are visited when the training loop
gets their batch. Before that they can be given back: when the lease changes, when the policy asks
for another batch size, and when the loop ends. So no point is lost or visited twice.*
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from torch.utils.data import DataLoader

from polyrhythm.learn.loading import Loading, fetcher, loader_of
from polyrhythm.learn.migration.moving import MovingPoints
from polyrhythm.learn.points import Points
from polyrhythm.wire.messages import ChunkProgress, Leased


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
        fits: Callable[[int], bool],
        moving: MovingPoints | None = None,
    ) -> None:
        """`plan` returns the number of points of the next batch, given the numbers of points of the
        batches before it. `fits` says whether a batch that was planned with this number of points
        is still wanted. `moving`: sends and receives points of chunks that move; None if no points
        are sent."""
        self._points = points
        self._plan, self._fits = plan, fits
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
        """Take a new lease; see `Points.take`."""
        new = not self._points.holds(lease)
        if new:
            self._flush()
        anew = self._points.take(lease)
        if new and self._moving is not None and self._moving.take(lease):
            # start the loader's processes again, because they lack the points that have arrived
            # since
            self._begin_loader()
        return anew

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
        if self._ahead and not self._fits(self._ahead[0].asked):
            self._flush()
        if self._iterator is None or not self._ahead:
            if self._points.exhausted:
                return None
            # make a new iterator only here, because a new iterator stops the loading of the one
            # before it
            self._iterator = iter(self._loader)
        batch = next(self._iterator)
        return self._ahead.popleft(), batch

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
