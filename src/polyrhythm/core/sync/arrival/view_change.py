"""View changes under policies without rounds: the lead tells the servers the members, and the
servers confirm.

A worker that joins may begin when every server knows of it. One view change runs at a time; workers
that join or leave meanwhile are part of the next one.
"""


class ViewChange:
    def __init__(self) -> None:
        self._started = False
        """Whether the first view change is complete."""
        self._joining: set[int] = set()
        self._outdated = False
        """Whether a worker has joined or left since the last view change began."""
        self._running = False

    def join(self, worker: int) -> None:
        self._joining.add(worker)
        self._outdated = True

    def leave(self, worker: int) -> None:
        self._joining.discard(worker)
        self._outdated = True

    def confirmed(self) -> frozenset[int]:
        """Every server knows the view. The first call returns the first members, which can be
        released now."""
        self._running = False
        if self._started:
            return frozenset()
        self._started = True
        return self._take()

    def begin(self) -> frozenset[int] | None:
        """The workers that enter with the view change that begins now; None if no view change is
        due."""
        if not self._started or self._running or not self._outdated:
            return None
        self._running = True
        return self._take()

    def _take(self) -> frozenset[int]:
        entering, self._joining = frozenset(self._joining), set()
        self._outdated = False
        return entering
