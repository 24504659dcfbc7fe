"""A toy algorithm of kind statistics: a simulated worker remembers the number that each point has
added, and contributes differences. All numbers are whole, so sums are exact.

A visit of a point adds a number that depends on the point and on how often this worker has
contributed. Every slice of the model has the same statistics: the sum of these numbers, and how
many points have added a number.
"""

from collections.abc import Collection, Mapping

import msgspec

from polyrhythm.core.worker.remembered import Remembered
from polyrhythm.wire.messages import ChunkPart, ChunkProgress, Contribution, Leased

Statistics = tuple[float, float]
"""The sum of the numbers that some points have added, and how many points these are."""
ZERO: Statistics = (0.0, 0.0)


def plus(one: Statistics, other: Statistics) -> Statistics:
    return one[0] + other[0], one[1] + other[1]


def minus(one: Statistics, other: Statistics) -> Statistics:
    return one[0] - other[0], one[1] - other[1]


class PointNumbers(dict[int, float]):
    """For each point of a worker, the number that the point has added, at the time of one
    contribution. An object of this class is never changed, and is equal only to itself, so it can
    be the key of a cache."""

    __slots__ = ()
    __hash__ = object.__hash__  # type: ignore[assignment]
    __eq__ = object.__eq__


class Difference(msgspec.Struct, frozen=True):
    """What a contribution adds to its row (`change`), and the number that each point of the worker
    has added up to this contribution (`memory`)."""

    change: Statistics
    memory: PointNumbers


class CarriedContribution(Contribution, frozen=True, kw_only=True):
    """A `Contribution` with a difference in place of its payload."""

    difference: Difference


def carry(message: Contribution, difference: Difference) -> CarriedContribution:
    fields = {name: getattr(message, name) for name in message.__struct_fields__}
    return CarriedContribution(**fields, difference=difference)


class ChunkMemory(msgspec.Struct, frozen=True):
    """The memory of the points of a chunk: for each visited point, the number that it has added."""

    numbers: Mapping[int, float]
    subtotal: Statistics


class CarriedPart(ChunkPart, frozen=True, kw_only=True):
    """A `ChunkPart` with the memory of its points in place of its payload."""

    memory: ChunkMemory


class SimMemory:
    """The memory of the points of one worker."""

    def __init__(self) -> None:
        self._remembered = Remembered[Statistics](lambda: ZERO, plus, minus)
        self._numbers: dict[int, dict[int, float]] = {}
        """Per chunk, the number that each of its visited points has added."""
        self._firsts: dict[int, tuple[int, int]] = {}
        """Per chunk of the lease, its first point and its number of points."""
        self._positions: dict[int, tuple[int, int]] = {}
        self._contributions = 0

    @property
    def pending(self) -> bool:
        return self._remembered.pending

    def take(self, lease: Leased, at: Mapping[int, tuple[int, int]]) -> None:
        """Apply a new lease. `at`: this worker's position in every chunk."""
        for chunk in self._remembered.take(lease):
            del self._numbers[chunk]
        self._firsts = {each.chunk: (each.first, each.last - each.first) for each in lease.chunks}
        self._positions = {chunk: at[chunk] for chunk in self._firsts}

    def of(self, chunk: int) -> ChunkMemory:
        """The memory of the points of a chunk that this worker sends."""
        return ChunkMemory(dict(self._numbers.get(chunk, {})), self._remembered.subtotal(chunk))

    @property
    def known(self) -> Collection[int]:
        """The chunks whose points have added numbers to the row."""
        return self._remembered.chunks

    def knows(self, chunk: int) -> bool:
        """Whether points of this chunk have added numbers to the row."""
        return chunk in self._remembered.chunks

    def adopt(self, chunk: int, memory: ChunkMemory) -> None:
        """Add the memory of a chunk that another worker has sent."""
        self._numbers[chunk] = dict(memory.numbers)
        self._remembered.adopt(chunk, memory.subtotal)

    def visit(self, progress: tuple[ChunkProgress, ...]) -> None:
        """Note that the worker has visited the points up to these positions."""
        for step in progress:
            if step.chunk not in self._firsts:
                continue  # the worker has given up this chunk, and subtracted it from its row
            (first, length), (passes, cursor) = (
                self._firsts[step.chunk],
                self._positions[step.chunk],
            )
            visits = (step.passes - passes) * length + step.cursor - cursor
            self._positions[step.chunk] = (step.passes, step.cursor)
            numbers = self._numbers.setdefault(step.chunk, {})
            change = ZERO
            for offset in range(cursor, cursor + min(visits, length)):
                point = first + offset % length
                number = float((31 * point + 17 * self._contributions) % 101)
                before = numbers.get(point)
                added = (number, 1.0) if before is None else (number - before, 0.0)
                change = plus(change, added)
                numbers[point] = number
            self._remembered.on_visited(step.chunk, change)

    def collect(self) -> Difference:
        self._contributions += 1
        memory = PointNumbers()
        for numbers in self._numbers.values():
            memory.update(numbers)
        return Difference(self._remembered.collect(), memory)
