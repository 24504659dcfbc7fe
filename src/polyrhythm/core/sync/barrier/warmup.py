"""Warm-up: which rounds contain the first contribution of a worker.

A process's first step takes many times as long as its others, so its duration does not show the
speed of the host. The barrier at which the other workers waited for that step is not typical
either; the cost of that barrier is reported with the next round.
"""


class WarmUp:
    def __init__(self) -> None:
        self._known: set[int] = set()
        self.in_round = False
        """Whether the open round contains a worker's first contribution."""
        self.in_last_round = False
        """Whether the round before the open one contained a worker's first contribution."""

    def arrived(self, worker: int) -> bool:
        """Count a contribution. Returns True if it is the worker's first."""
        first = worker not in self._known
        self._known.add(worker)
        self.in_round = self.in_round or first
        return first

    def left(self, worker: int) -> None:
        """Forget a worker: another process may join under the same number."""
        self._known.discard(worker)

    def close(self) -> None:
        """The open round closes, and another round opens."""
        self.in_last_round, self.in_round = self.in_round, False
