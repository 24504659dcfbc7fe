"""The clocks of members under policies without rounds: how many steps each has contributed.

The clock of a worker that joins starts at the minimum over all members. While a worker rests (it
has no points to visit), its clock does not run, so that no other worker waits for it. When the
worker returns, its clock continues, at the minimum or above.
"""

from polyrhythm.core.minimum_tracker import MinimumTracker


class Clocks:
    def __init__(self) -> None:
        self._at: MinimumTracker[int] = MinimumTracker()
        self._floor = 0
        """The minimum of the running clocks; while no clock runs, the last known minimum."""
        self._resting: dict[int, int] = {}

    def __contains__(self, worker: int) -> bool:
        return worker in self._at

    def __getitem__(self, worker: int) -> int:
        return self._at[worker]

    @property
    def least(self) -> int:
        return self._at.least

    @property
    def running(self) -> int:
        """The number of running clocks."""
        return len(self._at)

    @property
    def members(self) -> int:
        return len(self._at) + len(self._resting)

    def workers(self) -> list[int]:
        """All workers with a running clock."""
        return self._at.all_keys()

    def slowest(self) -> list[int]:
        """All workers whose clock is at the minimum."""
        least = self._at.least
        return sorted(worker for worker in self._at.all_keys() if self._at[worker] == least)

    def enter(self, workers: frozenset[int]) -> None:
        for worker in workers:
            self._at.put(worker, self._floor)

    def leave(self, worker: int) -> None:
        self._at.drop(worker)
        self._resting.pop(worker, None)
        self._raise_floor()

    def advance(self, worker: int) -> None:
        self._at.put(worker, self._at[worker] + 1)
        self._raise_floor()

    def rest(self, worker: int) -> None:
        if worker in self._at:
            self._resting[worker] = self._at[worker]
            self._at.drop(worker)
            self._raise_floor()

    def resume(self, worker: int) -> bool:
        """Let the clock of a resting worker run again; False if the worker did not rest."""
        if worker not in self._resting:
            return False
        self._at.put(worker, max(self._resting.pop(worker), self._floor))
        return True

    def restart(self) -> None:
        """Set all clocks to zero."""
        self._floor = 0
        self._resting = dict.fromkeys(self._resting, 0)
        for worker in self._at.all_keys():
            self._at.put(worker, 0)

    def _raise_floor(self) -> None:
        self._floor = max(self._floor, self._at.least)
