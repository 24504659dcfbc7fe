"""Virtual time: calls are made in the order of their times, and at equal times in the order in which
they were scheduled."""

import gc
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

BEGINNING_NS = 10**9
"""Virtual time does not begin at zero, as no real clock does: machines may use zero for "never"."""


class Clock:
    """The calls of one time share a list, so the heap holds each time only once. This pays because a
    version arrives at a thousand equal workers at the same time."""

    def __init__(self) -> None:
        self.now_ns = BEGINNING_NS
        self._times: list[int] = []
        self._due: dict[int, list[tuple[Callable[[Any], None], Any]]] = {}
        self._going = False

    def read(self) -> int:
        return self.now_ns

    def at(self, when_ns: int, do: Callable[[Any], None], what: Any = None) -> None:
        """Call `do(what)` at that time. The argument saves callers a closure."""
        due = self._due.get(when_ns)
        if due is None:
            self._due[when_ns] = [(do, what)]
            heappush(self._times, when_ns)
        else:
            due.append((do, what))

    def run(self, until_ns: int) -> bool:
        """Make the calls that are due until `stop` is called. Returns False if none is left that is due
        by `until_ns`. Garbage collection is off meanwhile: a simulation makes no reference cycles, and
        with many workers the search for them takes a fifth of the time."""
        collecting = gc.isenabled()
        gc.disable()
        try:
            return self._run(until_ns)
        finally:
            if collecting:
                gc.enable()

    def _run(self, until_ns: int) -> bool:
        times = self._times
        self._going = True
        while times and times[0] <= until_ns:
            self.now_ns = now_ns = heappop(times)
            for do, what in self._due[
                now_ns
            ]:  # calls that are added for this time meanwhile are made, too
                do(what)
                if not self._going:
                    return True
            del self._due[now_ns]
        return False

    def idle_but_for(self, idle: Any) -> bool:
        """Whether only calls with this argument are left."""
        return all(what == idle for due in self._due.values() for _, what in due)

    def stop(self) -> None:
        self._going = False
