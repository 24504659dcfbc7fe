"""Threads that work on slices in parallel. A slice always goes to the same lane, so that what comes
for it stays in order, and what has gathered for it is done at once, while it is in the cache."""

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Adders(Generic[Item]):
    def __init__(
        self, count: int, prepare: Callable[[], None], work: Callable[[list[Item]], None]
    ) -> None:
        """`prepare` is called once in each thread, `work` with what has gathered for one slice."""
        self._work = work
        self._queues: list[SimpleQueue[int | None]] = [SimpleQueue() for _ in range(count)]
        self._gathered: dict[int, list[Item]] = {}
        self._lock = threading.Lock()
        for number, queue in enumerate(self._queues):
            threading.Thread(
                target=self._run, args=(queue, prepare), name=f"lane-{number}", daemon=True
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
