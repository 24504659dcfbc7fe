"""Threads that add large slices in parallel. A slice always goes to the same lane, so that the
sequences of one worker stay in order for each slice."""

import threading
from collections.abc import Callable
from queue import SimpleQueue


class Lanes:
    def __init__(self, count: int, prepare: Callable[[], None]) -> None:
        self._queues: list[SimpleQueue[Callable[[], None] | None]] = [
            SimpleQueue() for _ in range(count)
        ]
        for number, queue in enumerate(self._queues):
            threading.Thread(
                target=self._run, args=(queue, prepare), name=f"lane-{number}", daemon=True
            ).start()

    def put(self, slice_: int, work: Callable[[], None]) -> None:
        self._queues[slice_ % len(self._queues)].put(work)

    @staticmethod
    def _run(queue: "SimpleQueue[Callable[[], None] | None]", prepare: Callable[[], None]) -> None:
        prepare()
        while (work := queue.get()) is not None:
            work()

    def close(self) -> None:
        for queue in self._queues:
            queue.put(None)
