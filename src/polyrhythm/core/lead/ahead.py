"""Progress in chunks that belongs to the next fold, and not to the one under way.

*A contribution that becomes complete after a fold was ordered belongs to the next fold. So the
version of the ordered fold may lack the last visits of some chunks: neither a checkpoint of this
version nor the end of the job may count these visits.*
"""

from typing import TypeAlias

Place: TypeAlias = tuple[int, int]
"""The passes over a chunk, and the cursor in the present pass."""


class Ahead:
    def __init__(self) -> None:
        self._before: dict[int, Place] = {}
        """Per chunk with progress that belongs to the next fold: its place before that progress."""

    def note(self, index: int, before: Place) -> None:
        """A contribution that belongs to the next fold reports progress in a chunk. `before`: the
        place of the chunk until now."""
        self._before.setdefault(index, before)

    def folded(self, index: int, place: Place) -> Place:
        """The place of a chunk in the version that was folded. `place`: where the chunk is now."""
        return self._before.get(index, place)

    def passes(self, least: int) -> int:
        """The full passes in the version that was folded. `least`: the full passes if all progress
        counts."""
        return min([least, *(passes for passes, _ in self._before.values())])

    def settle(self) -> None:
        """The fold is over. The next fold contains the progress that was noted, so the earlier
        places are forgotten."""
        self._before.clear()
