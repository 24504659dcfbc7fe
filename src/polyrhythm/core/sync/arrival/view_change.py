"""View changes where there are no rounds: the lead tells servers the members, and servers confirm.

A worker that joins may begin when every server knows it. One view change runs at a time; workers that
join or leave meanwhile are part of the next one.
"""


class ViewChange:
    def __init__(self) -> None:
        self._started = False
        """The first members take part."""
        self._joining: set[int] = set()
        self._outdated = False
        """A worker has joined or left since the last view change began."""
        self._running = False

    def join(self, worker: int) -> None:
        self._joining.add(worker)
        self._outdated = True

    def leave(self, worker: int) -> None:
        self._joining.discard(worker)
        self._outdated = True

    def confirmed(self) -> frozenset[int]:
        """Every server knows the view. The first time this returns the first members."""
        self._running = False
        if self._started:
            return frozenset()
        self._started = True
        return self._take()

    def begin(self) -> frozenset[int] | None:
        """The workers that enter with the view change that must begin now; None if none must."""
        if not self._started or self._running or not self._outdated:
            return None
        self._running = True
        return self._take()

    def _take(self) -> frozenset[int]:
        entering, self._joining = frozenset(self._joining), set()
        self._outdated = False
        return entering
