"""Kind statistics: what a worker remembers about its points. The worker's *row* is the sum that
servers keep for it. This module stores, chunk by chunk, what the points have added to the row, and
the *difference*: the change of the row that the worker has not contributed yet.
"""

from collections.abc import Callable, Collection
from typing import Generic, TypeAlias, TypeVar

from polyrhythm.wire.messages import ChunkLease, Leased

Value = TypeVar("Value")


class Remembered(Generic[Value]):
    """Kind statistics: the memory of a worker's points, and the change of its row.

    *A chunk that leaves the lease is subtracted at once, before another worker can visit its
    points: the subtraction is in the contribution that confirms the lease, or in an earlier one. A
    worker that gets a chunk together with the memory of its points adds the chunk at once. After a
    rejoin nothing is subtracted, because the row of the earlier incarnation is deleted.*

    The values have any type: arrays in a worker, tuples of numbers in the simulator.
    """

    def __init__(
        self,
        zero: Callable[[], Value],
        add: Callable[[Value, Value], Value],
        subtract: Callable[[Value, Value], Value],
    ) -> None:
        """`zero` returns a value that may be changed. `add` and `subtract` return the result, and
        may change their first argument."""
        self._zero, self._add, self._subtract = zero, add, subtract
        self.difference = zero()
        """The next contribution: the change of the worker's row."""
        self.pending = False
        """Whether there is something to contribute."""
        self._subtotals: dict[int, Value] = {}
        self._incarnation = 0

    @property
    def chunks(self) -> Collection[int]:
        """The chunks whose points have added something to the worker's row, or to the difference
        that was not contributed yet."""
        return self._subtotals.keys()

    def take(self, lease: Leased) -> set[int]:
        """Set a new lease. Returns the chunks whose points must be forgotten, because they are not
        in the lease, or because this worker has joined again. A chunk that this worker sends to
        another one stays in the row until it has arrived there. With `--migrate blocking`, the
        chunks of a waiting worker stay in its row, too."""
        if lease.incarnation != self._incarnation:
            self._incarnation = lease.incarnation
            gone = set(self._subtotals)
            self._subtotals.clear()
            self.difference, self.pending = self._zero(), False
            return gone
        leased = {chunk.chunk for chunk in lease.chunks} | {send.chunk for send in lease.sends}
        leased |= {*lease.copies}
        gone = self._subtotals.keys() - leased
        for chunk in sorted(gone):
            self.difference = self._subtract(self.difference, self._subtotals.pop(chunk))
            self.pending = True
        return gone

    def on_visited(self, chunk: int, change: Value) -> None:
        """Add the effect of visited points. `change`: by how much their share of the statistics
        changes."""
        subtotal = self._subtotals.get(chunk)
        if subtotal is None:
            subtotal = self._zero()
        self._subtotals[chunk] = self._add(subtotal, change)
        self.difference = self._add(self.difference, change)
        self.pending = True

    def subtotal(self, chunk: int) -> Value:
        """What the points of a chunk have added."""
        return self._add(self._zero(), self._subtotals.get(chunk, self._zero()))

    def adopt(self, chunk: int, subtotal: Value) -> None:
        """Add to the difference what the points of a chunk have added at another worker
        (`subtotal`), which has subtracted it. Call this when the chunk arrives, before this worker
        visits the points."""
        self.on_visited(chunk, subtotal)

    def collect(self) -> Value:
        """Return the difference for a contribution, and begin with zero again."""
        difference, self.difference = self.difference, self._zero()
        self.pending = False
        return difference


Position: TypeAlias = tuple[int, int]
"""The passes, and the cursor in the present pass."""


def position(lease: ChunkLease, own: Position | None) -> Position:
    """The passes and the cursor at which a worker continues in a chunk. `own`: the worker's own
    position; None if it does not know what the points have added.

    *A worker that knows what the points of a chunk have added continues at its own position if that
    is further than the lease's. Contributions in flight can make it so. A worker that has never
    visited the points, or has given up the chunk since, does not know what they have added. It
    begins at the position in the lease.*
    """
    leased = (lease.passes, lease.cursor)
    return leased if own is None else max(own, leased)
