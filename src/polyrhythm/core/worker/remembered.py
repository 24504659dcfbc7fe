"""Kind statistics: what a worker remembers about its points. The worker's *row* is the sum that
servers keep for it. This module stores, chunk by chunk, what the points have added to the row, and
the *difference*: the change of the row that the worker has not contributed yet.
"""

from collections.abc import Callable, Collection
from typing import Generic, TypeAlias, TypeVar

from polyrhythm.wire.messages import ChunkLease, Leased

Value = TypeVar("Value")


class Remembered(Generic[Value]):
    """*A chunk that leaves the lease is subtracted at once, before its points can be visited by
    another worker: the subtraction is in the contribution that confirms the lease, or in an earlier
    one. A worker that gets a chunk together with the memory of its points adds the chunk at once.
    After a rejoin nothing is subtracted, because the row of the earlier incarnation is deleted.*

    The values are of any type: arrays in a worker, tuples of numbers in the simulator.
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
        """What the next contribution contains: by how much the worker's row changes."""
        self.pending = False
        """Whether there is something to contribute."""
        self._subtotals: dict[int, Value] = {}
        self._incarnation = 0

    @property
    def chunks(self) -> Collection[int]:
        """The chunks whose points have added something to the worker's row, or to the difference
        that is not contributed yet."""
        return self._subtotals.keys()

    def take(self, lease: Leased) -> set[int]:
        """Take a new lease. Returns the chunks whose points must be forgotten, because they are not
        in the lease, or because this worker has joined again. A chunk that is being sent to another
        worker stays in the row until it has arrived there. With `--migrate blocking`, the chunks of
        a worker that waits also stay in its row."""
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
        """Add the effect of points that were visited. `change`: by how much their share of the
        statistics changes."""
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
        (`subtotal`), which has subtracted it. This is done when the chunk arrives, before this
        worker visits the points."""
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

    *A worker that knows what the points of a chunk have added continues at its own position, if
    that is further than the position in the lease. It can be further because of contributions in
    flight. A worker that has never visited the points, or has given the chunk up since then, does
    not know what they have added. It begins at the position in the lease.*
    """
    leased = (lease.passes, lease.cursor)
    return leased if own is None else max(own, leased)
