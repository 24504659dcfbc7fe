"""Kind statistics: the rows of a slice. A worker's row is the sum of what its points have added. A
contribution is a *difference*: the change of this sum.

*A difference waits beside its row until a fold names its worker with the same sequence or a higher
one. A fold deletes every row that it does not name. So all servers change and delete a row in the
same version, even if different contributions have arrived at them.* A replica makes the same
changes in the same order, so its rows have the same bits.

The values can have any type: tensors on a server, tuples of numbers in the simulator.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

from polyrhythm.wire.messages import Row

Value = TypeVar("Value")
Key = tuple[int, int]
"""A worker and its incarnation."""


def key_of(row: Row) -> Key:
    return row.worker, row.incarnation


MOST_WAITING = 64
"""The most contributions of a worker that wait for a fold. A correct worker has at most two
unacknowledged ones. The limit keeps a faulty worker from filling the memory of a server."""


class WaitingContributions(Generic[Value]):
    """The contributions to a slice that no fold has named yet."""

    def __init__(self) -> None:
        self._values: dict[Row, Value] = {}

    def __len__(self) -> int:
        return len(self._values)

    def hold(self, row: Row, value: Value) -> None:
        """Keep a contribution that has arrived, unless too many contributions of its worker are
        waiting. `row` gives the worker and the sequence."""
        key = key_of(row)
        if sum(key_of(each) == key for each in self._values) < MOST_WAITING:
            self._values[row] = value

    def take(self, live: Iterable[Row]) -> list[tuple[Row, Value]]:
        """Remove and return the contributions that a fold of these rows contains, in the order of
        workers and sequences. Contributions to rows that the fold does not name are dropped."""
        last = {key_of(row): row.sequence for row in live}
        kept = {row: value for row, value in self._values.items() if key_of(row) in last}
        taken = sorted(
            (row for row in kept if row.sequence <= last[key_of(row)]),
            key=lambda row: (row.worker, row.incarnation, row.sequence),
        )
        found = [(row, kept.pop(row)) for row in taken]
        self._values = kept
        return found


class WorkerRows(Generic[Value]):
    def __init__(self, add: Callable[[Value, Value], Value]) -> None:
        """`add(row, difference)` returns the sum of the two. The function may change the row, but
        not the difference."""
        self._add = add
        self.rows: dict[Key, Value] = {}
        """The rows, in the order of the workers."""

    def fold(self, live: Iterable[Row], named: Sequence[tuple[Row, Value]]) -> None:
        """Add the contributions that a fold names (`WaitingContributions.take`), and delete the
        rows that the fold does not name."""
        for row, difference in named:
            key = key_of(row)
            known = key in self.rows
            self.rows[key] = self._add(self.rows[key], difference) if known else difference
        keys = {key_of(row) for row in live}
        self.rows = {key: self.rows[key] for key in sorted(self.rows) if key in keys}
