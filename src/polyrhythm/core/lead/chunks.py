"""The chunks of the data plan (`data.py`), and how many of them each member gets."""

from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TypeAlias

from polyrhythm.errors import InvariantBroken

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
    """The next holder: it gets the chunk when the present holder has confirmed the lease with the number
    `asked`."""
    asked: int = 0
    delivery: int = 0
    """The number of the delivery that brings the points to `heir` (`migration.py`); 0 if no points are
    sent, because `heir` has them or can read them itself."""
    delivered: bool = False
    given_up: bool = False
    """Whether the holder has confirmed the lease with the number `asked`."""
    passes: int = 0
    cursor: int = 0
    visited: int = 0
    """The number of the last progress report about this chunk. The reports about all chunks are
    numbered together, so a higher number means a later visit."""
    remembered: int = 0
    """Kind statistics: how many visits the chunk has had since a member got it without the memory of its
    points. As many of its points are in the sum, or all of them if there were more visits."""

    @property
    def points(self) -> int:
        return self.last - self.first

    @property
    def due(self) -> Holder | None:
        """The member that will hold the chunk when a move that was begun is complete."""
        return self.heir or self.holder

    def advance(self, passes: int, cursor: int, done: int, number: int) -> None:
        """The holder has visited `done` points, up to this pass and cursor. `number`: the number of
        the report."""
        self.passes, self.cursor = passes, cursor
        self.remembered += done
        self.visited = number

    def counted(self, passes: int, cursor: int, epochs: int | None) -> tuple[int, int]:
        """Kind statistics: up to which pass and cursor a report of progress counts. *A visit that ends
        the last pass does not count if the holder was told to give the chunk up without sending the
        memory of its points*: the holder then subtracts these points again, perhaps in the same
        contribution. The report counts up to the beginning of the last pass, because the next holder
        begins there."""
        given = self.heir is not None and not self.delivery
        if given and epochs is not None and passes >= epochs:
            return epochs - 1, 0
        return passes, cursor

    def begin_again(self, epochs: int | None) -> None:
        """Kind statistics: the next holder does not know what the points have added, so all of them
        must be visited once more. Before the last pass nothing changes, because the last pass visits
        them. `epochs`: the number of passes; None: there is no last pass."""
        self.remembered = 0
        if epochs is not None and self.passes >= epochs - 1:
            self.passes, self.cursor = epochs - 1, 0


def missing_points(chunks: Iterable[Chunk], members: Collection[Holder]) -> int:
    """Kind statistics: how many points are missing from a sum over the rows of these members. Points
    that move together with their memory are not counted, because they are missing for a moment only."""
    missing = 0
    for chunk in chunks:
        left = chunk.last - chunk.first
        if chunk.holder in members:
            left -= chunk.remembered
        if left > 0:
            missing += left
    return missing


@dataclass(slots=True)
class HeldPoints:
    """The points of all chunks of a member, how many visits they had, and how many visits are left
    until the end of the last pass (None: there is no last pass)."""

    points: int = 0
    visits: int = 0
    left: int | None = None

    @classmethod
    def of_each(
        cls, chunks: Iterable[Chunk], members: Iterable[Holder], epochs: int | None
    ) -> "dict[Holder, HeldPoints]":
        """The points of each member, in the chunks that it will hold when all moves are complete."""
        found = {member: cls(left=None if epochs is None else 0) for member in members}
        for chunk in chunks:
            due = chunk.heir or chunk.holder  # the same as `due`, but saves a call for every chunk
            held = None if due is None else found.get(due)
            if held is not None:
                points = chunk.last - chunk.first
                visits = chunk.passes * points + chunk.cursor
                held.points += points
                held.visits += visits
                if held.left is not None and epochs is not None and epochs * points > visits:
                    held.left += epochs * points - visits
        return found

    @staticmethod
    def left_until(
        passes: int, chunks: Iterable[Chunk], members: Iterable[Holder]
    ) -> dict[Holder, int]:
        """How many visits each member has left until all of its chunks have this many passes."""
        found = dict.fromkeys(members, 0)
        for chunk in chunks:
            if chunk.due is not None and chunk.due in found and chunk.passes < passes:
                found[chunk.due] += chunk.points * (passes - chunk.passes) - chunk.cursor
        return found


def quotas(
    chunks: int, held: Mapping[Holder, Collection[int]], members: Iterable[Holder]
) -> dict[Holder, int]:
    """How many chunks each member gets. All get the same number; if the chunks cannot be divided
    evenly, the members that hold the most chunks get one more. The result is in descending order of
    chunks held."""
    ranked = sorted(members, key=lambda member: -len(held.get(member, ())))
    bound, extras = divmod(chunks, len(ranked))
    return {member: bound + (rank < extras) for rank, member in enumerate(ranked)}


def check_chunks(
    chunks: Sequence[Chunk],
    changed: Set[int],
    moving: Set[int],
    held: Mapping[Holder, Collection[int]],
    points: int,
) -> None:
    """Check the chunks in `changed`, and those that move. `held`: the chunks of each member.
    `points`: the number of points in all chunks together."""
    if chunks[-1].last != points or chunks[0].first != 0:
        raise InvariantBroken("the chunks do not cover the points")
    for index in changed | moving:
        chunk = chunks[index]
        cursor, holder, heir = chunk.cursor, chunk.holder, chunk.heir
        if index and chunk.first != chunks[index - 1].last:
            raise InvariantBroken("the chunks overlap or leave a gap")
        if cursor and not 0 <= cursor < chunk.points:
            raise InvariantBroken("a cursor is outside its chunk")
        if (heir is not None) != (index in moving):
            raise InvariantBroken("a chunk has an heir, but is not moving")
        if heir is not None and (holder is None or not chunk.asked):
            raise InvariantBroken("a chunk has an heir, but its holder was not asked to give it up")
        if holder is not None and index not in held[holder]:
            raise InvariantBroken("a chunk is missing in the chunks of its holder")
