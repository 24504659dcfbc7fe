"""How long a worker's process was stopped (SIGSTOP, a debugger, a frozen container), as the process
itself measures it.

The process reads the clock at regular intervals. *If a reading is late and the process used no CPU
time meanwhile, the process was stopped. If it used CPU time, it was not stopped: it was in a call
that lets no other thread run.* A stop that is shorter than the interval plus half a second is not
detected.
"""

from collections import deque

_SLACK_NS = 500_000_000
"""A reading of the clock is late only if it comes later than planned by more than this, because a
thread may have to wait on a busy host."""
_REMEMBERED = 64


def stopped_ns(gap_ns: int, every_ns: int, ran_ns: int) -> int:
    """How long the process was stopped in the gap between two readings of the clock. Readings are due
    every `every_ns`; `ran_ns`: the process used at least this much CPU time in the gap."""
    missing_ns = gap_ns - min(max(ran_ns, 0), gap_ns)
    return missing_ns if missing_ns > every_ns + _SLACK_NS else 0


class Pauses:
    """The pauses of this process. In all methods `ran_ns` is the CPU time that the process has used
    since it began."""

    def __init__(self, every_ns: int, now_ns: int, ran_ns: int) -> None:
        self.every_ns = every_ns
        self.total_ns = 0
        self._looked_ns = now_ns
        self._ran_ns = ran_ns
        self._found: deque[tuple[int, int]] = deque(maxlen=_REMEMBERED)
        """For each pause, the time at which it ended, and its length."""

    def look(self, now_ns: int, ran_ns: int) -> None:
        stopped = stopped_ns(now_ns - self._looked_ns, self.every_ns, ran_ns - self._ran_ns)
        if stopped:
            self.total_ns += stopped
            self._found.append((now_ns, stopped))
        self._looked_ns, self._ran_ns = now_ns, ran_ns

    def since(self, began_ns: int) -> int:
        """The total length of the pauses that ended after `began_ns`."""
        return sum(stopped for ended_ns, stopped in self._found if ended_ns > began_ns)
