"""Virtual time: what is due next, in the order of time and, at one time, of being asked for."""

import gc
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

BEGINNING_NS = 10**9
"""Like a real monotonic clock it does not begin at zero, which machines may take for never."""


class Clock:
    """What is due at one time lies in one list, so that the heap has times only, and each once: a
    version that goes to a thousand equal workers arrives at one time."""

    def __init__(self) -> None:
        self.now_ns = BEGINNING_NS
        self._times: list[int] = []
        self._due: dict[int, list[tuple[Callable[[Any], None], Any]]] = {}
        self._going = False

    def read(self) -> int:
        return self.now_ns

    def at(self, when_ns: int, do: Callable[[Any], None], what: Any = None) -> None:
        """Call `do(what)` at that time. One argument, so that nobody needs a closure."""
        due = self._due.get(when_ns)
        if due is None:
            self._due[when_ns] = [(do, what)]
            heappush(self._times, when_ns)
        else:
            due.append((do, what))

    def run(self, until_ns: int) -> bool:
        """Do what is due, one after the other, until `stop` is called; False if nothing is left
        that is due by `until_ns`. Nothing that is made meanwhile refers to itself, so nobody looks
        for such garbage: with many workers that would take a fifth of the time."""
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
            for do, what in self._due[now_ns]:  # and what is asked for at this time meanwhile
                do(what)
                if not self._going:
                    return True
            del self._due[now_ns]
        return False

    def idle_but_for(self, idle: Any) -> bool:
        """Nothing is due but calls with this argument."""
        return all(what == idle for due in self._due.values() for _, what in due)

    def stop(self) -> None:
        self._going = False
