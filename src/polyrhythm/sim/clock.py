"""Virtual time: calls are made in the order of their times, and at equal times in the order in which
they were scheduled."""

import gc
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

BEGINNING_NS = 10**9
"""Virtual time does not begin at zero, because machines may use zero for "never". No real clock
reads zero either."""


class Clock:
    """Makes the scheduled calls. All calls for the same time share a list, so the heap holds each
    time only once. This saves time when, for example, a version arrives at a thousand equal workers
    at once."""

    def __init__(self) -> None:
        self.now_ns = BEGINNING_NS
        self._times: list[int] = []
        self._due: dict[int, list[tuple[Callable[[Any], None], Any]]] = {}
        self._going = False

    def read(self) -> int:
        return self.now_ns

    def at(self, when_ns: int, do: Callable[[Any], None], what: Any = None) -> None:
        """Call `do(what)` at this time. Callers need no closure, because `what` is passed as an
        argument."""
        due = self._due.get(when_ns)
        if due is None:
            self._due[when_ns] = [(do, what)]
            heappush(self._times, when_ns)
        else:
            due.append((do, what))

    def run(self, until_ns: int) -> bool:
        """Make the calls that are due until `stop` is called. Returns False if no call is left that
        is due by `until_ns`. Garbage collection is off during the run: a simulation makes no
        reference cycles, and with many workers the search for them takes a fifth of the run
        time."""
        collecting = gc.isenabled()
        gc.disable()
        try:
            return self._run(until_ns)
        finally:
            if collecting:
                gc.enable()

    def _run(self, until_ns: int) -> bool:
        times, calls = self._times, self._due
        self._going = True
        while times and times[0] <= until_ns:
            self.now_ns = now_ns = heappop(times)
            # calls that are added for this time while the loop runs are made by this loop too
            for do, what in calls[now_ns]:
                do(what)
                if not self._going:
                    return True
            del calls[now_ns]
        return False

    def idle_but_for(self, idle: Any) -> bool:
        """Whether all remaining calls have this argument."""
        return all(what == idle for due in self._due.values() for _, what in due)

    def stop(self) -> None:
        self._going = False
