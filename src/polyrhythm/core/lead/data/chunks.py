"""The chunks of the data plan (`plan.py`): where the data set is divided into chunks, and how many
of them each member gets.
"""

import hashlib
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import msgspec

Holder: TypeAlias = tuple[int, int]
"""A worker and its incarnation."""
WantedMove: TypeAlias = tuple[int, Holder, Holder]
"""A move that is to be made: the chunk, its holder, and its next holder."""


@dataclass(slots=True)
class Chunk:
    first: int
    last: int
    holder: Holder | None = None
    passes: int = 0
    cursor: int = 0
    visited: int = 0
    """The number of the last progress report about this chunk. The reports about all chunks are
    numbered together, so a higher number means a later visit."""
    remembered: int = 0
    """Kind statistics: the number of visits since a member got the chunk without the memory of its
    points. Each of these visits adds one point of the chunk to the sum. After as many visits as the
    chunk has points, all of them are in the sum."""

    @property
    def points(self) -> int:
        return self.last - self.first

    def advance(self, passes: int, cursor: int, done: int, number: int) -> None:
        """Record that the holder has visited `done` points, up to this pass and cursor. `number`:
        the number of the report."""
        self.passes, self.cursor = passes, cursor
        self.remembered += done
        self.visited = number

    def begin_again(self, epochs: int | None) -> None:
        """Kind statistics: the next holder does not know what the points have added, so all points
        of the chunk must be visited once more. Before the last pass nothing changes: the last pass
        visits them anyway. `epochs`: the number of passes; None: there is no last pass."""
        self.remembered = 0
        if epochs is not None and self.passes >= epochs - 1:
            self.passes, self.cursor = epochs - 1, 0


def missing_points(chunks: Iterable[Chunk], members: Collection[Holder]) -> int:
    """Kind statistics: how many points are missing from a sum over the rows of these members.
    Points that move with their memory are not counted, because they are missing only briefly."""
    missing = 0
    for chunk in chunks:
        left = chunk.last - chunk.first
        if chunk.holder in members:
            left -= chunk.remembered
        if left > 0:
            missing += left
    return missing


class HeldPoints(msgspec.Struct):
    """The points of all chunks of a member, how many visits they had, and how many visits are left
    until the end of the last pass (None: there is no last pass)."""

    points: int = 0
    visits: int = 0
    left: int | None = None

    @classmethod
    def of_each(
        cls,
        chunks: Iterable[tuple[Chunk, Holder | None]],
        members: Iterable[Holder],
        epochs: int | None,
    ) -> "dict[Holder, HeldPoints]":
        """The points of each member. `chunks` lists each chunk with the member that counts as its
        holder."""
        found = {member: cls(left=None if epochs is None else 0) for member in members}
        for chunk, holder in chunks:
            held = None if holder is None else found.get(holder)
            if held is not None:
                points = chunk.last - chunk.first
                visits = chunk.passes * points + chunk.cursor
                held.points += points
                held.visits += visits
                if held.left is not None and epochs is not None and epochs * points > visits:
                    held.left += epochs * points - visits
        return found


def visits_left(
    passes: int, chunks: Iterable[tuple[Chunk, Holder | None]], members: Iterable[Holder]
) -> dict[Holder, int]:
    """How many visits each member still has to make, until each of its chunks has this many passes.
    `chunks` lists each chunk with the member that counts as its holder."""
    found = dict.fromkeys(members, 0)
    for chunk, holder in chunks:
        if holder is not None and holder in found and chunk.passes < passes:
            found[holder] += chunk.points * (passes - chunk.passes) - chunk.cursor
    return found


def quotas(
    chunks: int, held: Mapping[Holder, Collection[int]], members: Iterable[Holder]
) -> dict[Holder, int]:
    """How many chunks each member gets. All get the same number; if the chunks cannot be divided
    evenly, the members that hold the most chunks get one more. The members with the most chunks
    come first in the result."""
    ranked = sorted(members, key=lambda member: -len(held.get(member, ())))
    bound, extras = divmod(chunks, len(ranked))
    return {member: bound + (rank < extras) for rank, member in enumerate(ranked)}


GROUPS_PER_WORKER = 4
"""If a data set has fewer row groups per worker than this, its row groups are divided into several
chunks."""
MOST_GROUPS = 4_096
"""The most edges of row groups that a worker announces. If the file has more row groups,
neighbouring ones are treated as one."""

FEWEST_CHUNKS = 4
CHUNK_POINTS = 4096
"""Kind statistics: a member has more than 4 chunks only if each of them has at least this many
points."""


def announced(first: Sequence[int]) -> tuple[int, ...]:
    """The edges of row groups that a worker announces. `first`: the first point of each row group."""
    edges = first[1:]
    every = -(-len(edges) // MOST_GROUPS)
    return tuple(edges[:: max(1, every)])


def chunk_edges(
    points: int, count: int, least: int, workers: int, groups: Sequence[int] = ()
) -> list[int]:
    """Returns the first point of every chunk, and the number of points. `count`: how many chunks
    are wanted. `least`: the fewest points of a chunk. `groups`: the inner edges of row groups,
    which a worker has sent, so they may be any numbers.

    A data set in a file has row groups, and each is read as a whole. *Chunks are cut at the edges
    of row groups, so that one worker reads each row group*, even after chunks have moved. If there
    are too few row groups to share them evenly, they are divided into several chunks, and every
    edge of a row group is still the edge of a chunk, unless a chunk would become smaller than
    `least`.
    """
    even = [points * index // count for index in range(1, count)]
    edges = sorted({edge for edge in groups if 0 < edge < points})
    if not edges:
        return [0, *even, points]
    if len(edges) + 1 < GROUPS_PER_WORKER * workers:
        edges = _divided([0, *edges, points], points / count)
        even = edges
    found = [0]
    for wanted in even:
        begin = bisect_left(edges, found[-1] + least)
        if wanted <= found[-1] or begin == len(edges):
            # no chunk ends here: the previous chunk has a large row group and ends behind this
            # point
            continue
        cut = _nearest(edges, wanted, begin)
        if points - cut >= least:
            found.append(cut)
    return [*found, points]


def _nearest(edges: list[int], wanted: int, begin: int) -> int:
    """The edge nearest to `wanted`, among the edges from index `begin` on."""
    at = bisect_left(edges, wanted, begin)
    return min(edges[max(begin, at - 1) : at + 1], key=lambda edge: abs(edge - wanted))


def _divided(edges: list[int], length: float) -> list[int]:
    """Returns these edges of chunks with further edges between them, so that no chunk is much
    longer than `length`."""
    cuts = []
    for first, last in pairwise(edges):
        parts = max(1, round((last - first) / length))
        cuts += [first + (last - first) * part // parts for part in range(parts)]
    return cuts[1:]


def dealt(firsts: Sequence[int], groups: Sequence[int], seed: int) -> list[int]:
    """Kind statistics: the order in which members get the chunks, permuted by the job's seed. In a
    sorted file, neighbouring chunks are alike: if one member got them all, the fastest member would
    influence the model most. *The chunks of one row group stay together, so that few members read
    it.* `firsts`: the first point of every chunk. `groups`: the inner edges of row groups."""

    def place(index: int) -> tuple[bytes, bytes]:
        group = bisect_right(edges, firsts[index])
        return _drawn(f"row group {group} of seed {seed}"), _drawn(f"chunk {index} of seed {seed}")

    edges = sorted(groups)
    return sorted(range(len(firsts)), key=place)


def _drawn(name: str) -> bytes:
    return hashlib.blake2b(name.encode(), digest_size=8).digest()


def least_of_whole(points: int, members: int, fewest: int) -> int:
    """Kind statistics: the fewest points of a chunk. Workers compute on whole chunks, and with
    small chunks each call costs more than its computation. Every member still gets several chunks,
    so that a worker that joins can take its share. `fewest`: the fewest chunks that balanced passes
    need."""
    count = max(FEWEST_CHUNKS * members, points // CHUNK_POINTS, fewest)
    return max(1, points // max(1, count))
