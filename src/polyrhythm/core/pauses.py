"""How long a process was stopped, as it finds out itself: by SIGSTOP, a debugger or a frozen container.

It looks at the clock regularly. *If it looks late, and did not compute meanwhile, then it was stopped.
A process that looks late because it computed, in a call that lets no other thread run, was not.* A
shorter stop than the regular gap and half a second is not found.
"""

from collections import deque

_SLACK_NS = 500_000_000
"""A thread may get its turn so much later than it had asked for, on a machine with much to do."""
_REMEMBERED = 64


def stopped_ns(gap_ns: int, every_ns: int, ran_ns: int) -> int:
    """How much of the gap between two looks the process was stopped. It looks every `every_ns`;
    `ran_ns` is how long it computed in the gap, at least."""
    missing_ns = gap_ns - min(max(ran_ns, 0), gap_ns)
    return missing_ns if missing_ns > every_ns + _SLACK_NS else 0


class Pauses:
    """`ran_ns` is everywhere how long the process has computed since it began."""

    def __init__(self, every_ns: int, now_ns: int, ran_ns: int) -> None:
        self.every_ns = every_ns
        self.total_ns = 0
        self._looked_ns = now_ns
        self._ran_ns = ran_ns
        self._found: deque[tuple[int, int]] = deque(maxlen=_REMEMBERED)
        """(when it went on, for how long it had been stopped)"""

    def look(self, now_ns: int, ran_ns: int) -> None:
        stopped = stopped_ns(now_ns - self._looked_ns, self.every_ns, ran_ns - self._ran_ns)
        if stopped:
            self.total_ns += stopped
            self._found.append((now_ns, stopped))
        self._looked_ns, self._ran_ns = now_ns, ran_ns

    def since(self, began_ns: int) -> int:
        """For how long it was stopped in pauses that ended after `began_ns`."""
        return sum(stopped for ended_ns, stopped in self._found if ended_ns > began_ns)
