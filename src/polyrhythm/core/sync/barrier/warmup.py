"""Who contributes for the first time.

*A process's first step takes many times as long as its others. What a newcomer's first contribution
measures says nothing of the machine, and neither does the barrier at which it was waited for, whose
cost is told with the next round.*
"""


class WarmUp:
    def __init__(self) -> None:
        self._known: set[int] = set()
        self._came = False
        self._came_before = False

    def arrived(self, worker: int) -> bool:
        """Whether this contribution is the worker's first."""
        first = worker not in self._known
        self._known.add(worker)
        self._came = self._came or first
        return first

    def left(self, worker: int) -> None:
        """Under this number another process may come."""
        self._known.discard(worker)

    @property
    def came(self) -> bool:
        """The open round has one."""
        return self._came

    @property
    def came_before(self) -> bool:
        """The round before it had one, so that its barrier says nothing."""
        return self._came_before

    def close(self) -> None:
        self._came_before, self._came = self._came, False
