"""The clocks of members where there are no rounds.

*A joiner starts at the members' minimum. Who has nothing to contribute has no clock, so it holds
nobody back, and comes back with the clock that it had, or at the minimum if that is ahead.*
"""

from polyrhythm.core.minimum_tracker import MinimumTracker


class Clocks:
    def __init__(self) -> None:
        self._at: MinimumTracker[int] = MinimumTracker()
        self._floor = 0
        """The members' minimum, and what it was when the last of them went to rest."""
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
        """How many have a clock."""
        return len(self._at)

    @property
    def members(self) -> int:
        return len(self._at) + len(self._resting)

    def everybody(self) -> list[int]:
        """All who have a clock."""
        return self._at.everybody()

    def slowest(self) -> list[int]:
        least = self._at.least
        return sorted(worker for worker in self._at.everybody() if self._at[worker] == least)

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

    def come_back(self, worker: int) -> bool:
        """Whether it rested."""
        if worker not in self._resting:
            return False
        self._at.put(worker, max(self._resting.pop(worker), self._floor))
        return True

    def restart(self) -> None:
        """All begin again at nothing."""
        self._floor = 0
        self._resting = dict.fromkeys(self._resting, 0)
        for worker in self._at.everybody():
            self._at.put(worker, 0)

    def _raise_floor(self) -> None:
        self._floor = max(self._floor, self._at.least)
