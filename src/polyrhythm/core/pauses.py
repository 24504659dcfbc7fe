"""How long a worker was stopped (SIGSTOP, a debugger, a frozen container), as its process measures it.

The process looks at the clock at regular intervals. *If a look is late and the process did not compute
meanwhile, it was stopped. If it did compute, in a call that lets no other thread run, it was not.* A
stop that is shorter than the interval and half a second is not detected.
"""

from collections import deque

_SLACK_NS = 500_000_000
"""On a busy machine a thread may run this much later than it asked for."""
_REMEMBERED = 64


def stopped_ns(gap_ns: int, every_ns: int, ran_ns: int) -> int:
    """For how much of the gap between two looks the process was stopped. Looks are due every
    `every_ns`; `ran_ns` is the least time for which the process computed in the gap."""
    missing_ns = gap_ns - min(max(ran_ns, 0), gap_ns)
    return missing_ns if missing_ns > every_ns + _SLACK_NS else 0


class Pauses:
    """In all methods `ran_ns` is the time for which the process has computed since it began."""

    def __init__(self, every_ns: int, now_ns: int, ran_ns: int) -> None:
        self.every_ns = every_ns
        self.total_ns = 0
        self._looked_ns = now_ns
        self._ran_ns = ran_ns
        self._found: deque[tuple[int, int]] = deque(maxlen=_REMEMBERED)
        """Per pause: when it ended, and how long it was."""

    def look(self, now_ns: int, ran_ns: int) -> None:
        stopped = stopped_ns(now_ns - self._looked_ns, self.every_ns, ran_ns - self._ran_ns)
        if stopped:
            self.total_ns += stopped
            self._found.append((now_ns, stopped))
        self._looked_ns, self._ran_ns = now_ns, ran_ns

    def since(self, began_ns: int) -> int:
        """The total length of the pauses that ended after `began_ns`."""
        return sum(stopped for ended_ns, stopped in self._found if ended_ns > began_ns)
