"""Finds the minimum over many keys, each of which has a number that usually grows and rarely falls.
The cost of an update does not depend on the number of keys: the tracker counts up from the last
minimum until it finds the next one. If a number falls below the minimum, the tracker counts up from
that number.
"""

from collections.abc import Hashable
from typing import Generic, TypeVar

import msgspec

Key = TypeVar("Key", bound=Hashable)


class MinimumTracker(msgspec.Struct, Generic[Key]):
    _at: dict[Key, int] = {}
    _counts: dict[int, int] = {}
    """The number of keys per value. A `Counter` would take twice as long to update."""
    _least: int = 0

    def __contains__(self, key: Key) -> bool:
        return key in self._at

    def __len__(self) -> int:
        return len(self._at)

    def __getitem__(self, key: Key) -> int:
        return self._at[key]

    def all_keys(self) -> list[Key]:
        return list(self._at)

    @property
    def least(self) -> int:
        """The smallest number; 0 if there is none."""
        if not self._at:
            return 0
        while not self._counts.get(self._least):
            self._counts.pop(self._least, None)
            self._least += 1
        return self._least

    def put(self, key: Key, number: int) -> None:
        at, counts = self._at, self._counts
        before = at.pop(key, None)
        if before is not None:
            counts[before] -= 1
        if not at:
            counts.clear()
            self._least = number
        elif number < self._least:
            self._least = number
        at[key] = number
        counts[number] = counts.get(number, 0) + 1

    def drop(self, key: Key) -> None:
        number = self._at.pop(key, None)
        if number is not None:
            self._counts[number] -= 1
            if not self._at:
                self._counts.clear()
