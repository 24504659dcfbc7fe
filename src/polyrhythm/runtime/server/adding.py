"""Chooses the thread that adds contributions and folds. For a small model it is the thread that
received the slice, because passing the slice to another thread would take longer. Otherwise it is
an adder thread.

With rounds, one thread folds; for a large model, several adders add slices in parallel. Without
rounds, one adder adds and folds single slices. `core/server/threads.py` decides how many torch
threads take part in a fold.
"""

import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Generic, TypeVar

from polyrhythm.core import effects as fx
from polyrhythm.core import events as ev
from polyrhythm.core.server.threads import SMALL_NBYTES, adders_for, threads_for
from polyrhythm.core.values import plain
from polyrhythm.io.link import Link
from polyrhythm.runtime import crashpoint
from polyrhythm.runtime.driver import Driver
from polyrhythm.runtime.net.boundary import fault_of
from polyrhythm.runtime.server.slice_store import SliceStore
from polyrhythm.tensors.threads import work_with, working_with
from polyrhythm.wire import messages as m
from polyrhythm.wire.messages.reasons import refused

Item = TypeVar("Item")
_Slice = tuple[Link, m.Contribution, memoryview, threading.Event | None]


def is_large(store: SliceStore) -> bool:
    return store.primary.nbytes > SMALL_NBYTES


class Adders(Generic[Item]):
    """Threads that work on slices in parallel. A slice always goes to the same thread, so its items
    are handled in order. All items that are queued for a slice are handled together, while the
    slice is in the cache."""

    def __init__(
        self, count: int, prepare: Callable[[], None], work: Callable[[list[Item]], None]
    ) -> None:
        """`prepare` is called once in each thread, `work` with all items that are queued for one
        slice."""
        self._work = work
        self._queues: list[SimpleQueue[int | None]] = [SimpleQueue() for _ in range(count)]
        self._gathered: dict[int, list[Item]] = {}
        self._lock = threading.Lock()
        for number, queue in enumerate(self._queues):
            threading.Thread(
                target=self._run, args=(queue, prepare), name=f"adder-{number}", daemon=True
            ).start()

    def put(self, slice_: int, item: Item) -> None:
        with self._lock:
            gathered = self._gathered.get(slice_)
            if gathered is not None:
                gathered.append(item)
                return
            self._gathered[slice_] = [item]
        self._queues[slice_ % len(self._queues)].put(slice_)

    def _run(self, queue: "SimpleQueue[int | None]", prepare: Callable[[], None]) -> None:
        prepare()
        while (slice_ := queue.get()) is not None:
            with self._lock:
                items = self._gathered.pop(slice_)
            self._work(items)

    def close(self) -> None:
        for queue in self._queues:
            queue.put(None)


class Adding:
    """The common part of `RoundsAdding` and `OnArrivalAdding`."""

    def __init__(
        self,
        name: str,
        placed: Callable[[], SliceStore],
        driver: Driver,
        *,
        pause_s: float,
        polls: Callable[[], bool],
        cores: int,
        limit: int,
    ) -> None:
        """`placed` returns the slice store, or raises LinkError if there is none. `pause_s`: make
        every fold longer by this time, for experiments. `polls`: whether the current thread is the
        polling thread. `cores`: the number of cores that may be used. `limit`: the most threads that
        the user or the launcher allows."""
        self._name = name
        self._placed = placed
        self._driver = driver
        self._pause_s = pause_s
        self._polls = polls
        self._cores = cores
        self._limit = limit
        self._adders: Adders[_Slice] | None = None

    def make_adders(self, store: SliceStore) -> None:
        """Start the adders that this model size needs and that do not run yet."""
        raise NotImplementedError

    def take(self, link: Link, message: m.Contribution, data: memoryview, wait: bool) -> None:
        """Add a slice, on this thread or on an adder thread. `wait`: `data` is the link's buffer,
        which is overwritten after this call, so return only when the slice is added."""
        raise NotImplementedError

    def start(self, effect: fx.StartFold) -> None:
        raise NotImplementedError

    def _add(self, link: Link, message: m.Contribution, data: memoryview) -> bool:
        """Add a slice. Returns True if the slice store has queued an event. Then the caller must
        let the driver run."""
        event = self._placed().add(message, data, verify=not link.kind.has_payload_references)
        crashpoint.reach(self._name, "took", message)
        return event is not None

    def _add_gathered(self, items: list[_Slice]) -> None:
        for link, message, data, done in items:
            told = False
            try:
                told = self._add(link, message, data)
            except Exception as error:
                fault = fault_of(link.peer, error)
                link.send(m.Refusal(reason=refused(plain(f"{self._name}: {fault}"))))
                link.close()  # the thread that reads this link notices and reports its end
            if done is not None:
                done.set()
            if told:
                self._driver.run()

    def _pause(self, parts: int = 1) -> None:
        """Make a fold last longer, for experiments. `parts`: the number of parts of the fold, each
        of which calls this function."""
        if self._pause_s:
            time.sleep(self._pause_s / max(1, parts))

    def close(self) -> None:
        if self._adders is not None:
            self._adders.close()


class RoundsAdding(Adding):
    _folder: Adders[fx.StartFold] | None = None

    def make_adders(self, store: SliceStore) -> None:
        slow = self._pause_s > 0
        if self._folder is None and (is_large(store) or slow):
            self._folder = Adders(1, lambda: work_with(1), self._fold_all)
        count = adders_for(store.primary.nbytes, self._cores, self._limit) or int(slow)
        if self._adders is None and count:
            self._adders = Adders(count, lambda: work_with(1), self._add_gathered)

    def take(self, link: Link, message: m.Contribution, data: memoryview, wait: bool) -> None:
        if self._adders is None or wait:
            self._add(link, message, data)
        else:
            self._adders.put(message.slice, (link, message, data, None))

    def start(self, effect: fx.StartFold) -> None:
        if self._folder is None or (self._adders is None and self._polls()):
            self._fold(effect)
        else:
            self._folder.put(0, effect)

    def _fold_all(self, effects: list[fx.StartFold]) -> None:
        for effect in effects:
            self._fold(effect)

    def _fold(self, effect: fx.StartFold) -> None:
        store = self._placed()
        with working_with(threads_for(store.primary.nbytes, self._cores, self._limit)):
            weight = store.fold(effect.round, effect.slot, effect.fill, effect.share, effect.rows)
        self._pause()
        self._driver.post(self._name, ev.FoldDone(effect.round, weight))

    def close(self) -> None:
        super().close()
        if self._folder is not None:
            self._folder.close()


class OnArrivalAdding(Adding):
    def make_adders(self, store: SliceStore) -> None:
        if self._adders is None and (is_large(store) or self._pause_s > 0):
            self._adders = Adders(1, lambda: work_with(1), self._add_single)

    def take(self, link: Link, message: m.Contribution, data: memoryview, wait: bool) -> None:
        if self._adders is None:
            self._add(link, message, data)
            return
        done = threading.Event() if wait else None
        self._adders.put(message.slice, (link, message, data, done))
        if done is not None:
            done.wait()

    def _add_single(self, items: list[_Slice]) -> None:
        for item in items:
            self._pause(item[1].slices)
            self._add_gathered([item])

    def _add(self, link: Link, message: m.Contribution, data: memoryview) -> bool:
        part = self._placed().primary.find(message.slice)
        nbytes = 0 if part is None else part.nbytes
        with working_with(threads_for(nbytes, self._cores, self._limit)):
            return super()._add(link, message, data)
