"""The chunks of the data plan (`data.py`), and how many of them each member gets."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

Holder: TypeAlias = tuple[int, int]
"""A worker and its incarnation."""
Gift: TypeAlias = tuple[int, Holder, Holder]
"""A chunk that is to move, its holder, and its next holder."""


@dataclass(slots=True)
class Chunk:
    first: int
    last: int
    holder: Holder | None = None
    heir: Holder | None = None
    """The member that gets the chunk when the present holder has confirmed lease `asked`."""
    asked: int = 0
    delivery: int = 0
    """The number of the delivery that brings the points to `heir` (`migration.py`); 0: `heir` has
    them, or can read them."""
    delivered: bool = False
    given_up: bool = False
    """Whether the holder has confirmed lease `asked`."""
    passes: int = 0
    cursor: int = 0
    visited: int = 0
    """The number of the last progress in this chunk, counted over all chunks."""

    @property
    def points(self) -> int:
        return self.last - self.first

    @property
    def due(self) -> Holder | None:
        """The member that will hold the chunk when a move that was begun is complete."""
        return self.heir or self.holder


@dataclass(slots=True)
class HeldPoints:
    """The points of all chunks of a member, how many visits they had, and how many are left until
    the last pass (None: there is no last pass)."""

    points: int = 0
    visits: int = 0
    left: int | None = None


def quotas(
    chunks: int, held: Mapping[Holder, Collection[int]], members: Iterable[Holder]
) -> dict[Holder, int]:
    """How many chunks each member gets. All get the same number; if the chunks cannot be divided
    evenly, the members that hold the most chunks get one more. The result is in descending order of
    chunks held."""
    ranked = sorted(members, key=lambda member: -len(held.get(member, ())))
    bound, extras = divmod(chunks, len(ranked))
    return {member: bound + (rank < extras) for rank, member in enumerate(ranked)}
