"""Progress in chunks that belongs to the next fold, and not to the one under way.

*A contribution that becomes complete after a fold was ordered is in the version after it. So a version
that was just folded does not contain the last visits of all chunks: neither a checkpoint nor the end of
the job may count these visits.*
"""

from typing import TypeAlias

Place: TypeAlias = tuple[int, int]
"""The passes over a chunk, and the cursor in the present pass."""


class Ahead:
    def __init__(self) -> None:
        self._before: dict[int, Place] = {}
        """Per chunk with such progress, its place before that progress."""

    def note(self, index: int, before: Place) -> None:
        """A contribution reports such progress in a chunk that was at this place before."""
        self._before.setdefault(index, before)

    def folded(self, index: int, place: Place) -> Place:
        """The place of a chunk in the version that was folded. `place`: where the chunk is now."""
        return self._before.get(index, place)

    def passes(self, least: int) -> int:
        """The full passes in the version that was folded. `least`: the full passes with all progress."""
        return min([least, *(passes for passes, _ in self._before.values())])

    def settle(self) -> None:
        """The fold is over, and the next one contains this progress."""
        self._before.clear()
