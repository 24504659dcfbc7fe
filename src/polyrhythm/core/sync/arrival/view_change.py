"""How the view changes where there are no rounds: at a turn, which servers confirm.

*A joiner goes on when every server knows it. One turn at a time; whoever comes or goes meanwhile is
in the next one.*
"""


class ViewChange:
    def __init__(self) -> None:
        self.begun = False
        """The first members are in."""
        self._joining: set[int] = set()
        self._stale = False
        self._turning = False

    def join(self, worker: int) -> None:
        self._joining.add(worker)
        self._stale = True

    def leave(self, worker: int) -> None:
        self._joining.discard(worker)
        self._stale = True

    def opened(self) -> frozenset[int]:
        """Every server knows the view. The first time, who are the first members."""
        self._turning = False
        if self.begun:
            return frozenset()
        self.begun = True
        return self._take()

    def turn(self) -> frozenset[int] | None:
        """Who enters with the turn that must begin now; None if none must."""
        if not self.begun or self._turning or not self._stale:
            return None
        self._turning = True
        return self._take()

    def _take(self) -> frozenset[int]:
        entering, self._joining = frozenset(self._joining), set()
        self._stale = False
        return entering
