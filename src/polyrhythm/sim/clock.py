"""Virtual time: what is due next, in the order of time and, at one time, of being asked for."""

import gc
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

BEGINNING_NS = 10**9
"""Like a real monotonic clock it does not begin at zero, which machines may take for never."""


class Clock:
    def __init__(self) -> None:
        self.now_ns = BEGINNING_NS
        self._due: list[tuple[int, int, Callable[[Any], None], Any]] = []
        self._asked = 0
        self._going = False

    def read(self) -> int:
        return self.now_ns

    def at(self, when_ns: int, do: Callable[[Any], None], what: Any = None) -> None:
        """Call `do(what)` at that time. One argument, so that nobody needs a closure."""
        self._asked += 1
        heappush(self._due, (when_ns, self._asked, do, what))

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
        due = self._due
        self._going = True
        while due and due[0][0] <= until_ns:
            self.now_ns, _, do, what = heappop(due)
            do(what)
            if not self._going:
                return True
        return False

    @property
    def idle(self) -> bool:
        """Nothing will ever be due."""
        return not self._due

    def stop(self) -> None:
        self._going = False
