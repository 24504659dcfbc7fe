"""The slice store of a simulated server for kind statistics: a row for each worker (the sum of what
its points have added), with real numbers.

A row also contains the memory of the worker's points at its last contribution. So a checker can
recompute every row, and find a point that is in two rows.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from polyrhythm.core.server.worker_rows import Key, WaitingContributions, WorkerRows, key_of
from polyrhythm.sim.model.statistics import (
    CarriedContribution,
    Difference,
    PointNumbers,
    Statistics,
    plus,
)
from polyrhythm.sim.server.slice_store import CarriedCopy, CarriedState, Given, SimRoundsSliceStore
from polyrhythm.wire.messages import Contribution, Row, SliceStep, State


class SimRow(msgspec.Struct, frozen=True):
    total: Statistics
    sequence: int
    memory: PointNumbers


def _row(row: SimRow, difference: SimRow) -> SimRow:
    return SimRow(plus(row.total, difference.total), difference.sequence, difference.memory)


class RowsCopy(CarriedCopy, frozen=True, kw_only=True):
    values: tuple[SimRow, ...] = ()
    """The differences, in the order of `Copy.differences`."""


class RowsState(CarriedState, frozen=True, kw_only=True):
    workers: tuple[tuple[Key, SimRow], ...] = ()


class SimRowsSliceStore(SimRoundsSliceStore):
    def __init__(self, *args: Any, **options: Any) -> None:
        self.rows: dict[int, WorkerRows[SimRow]] = {}
        """Per slice that this server holds, the rows of its last version."""
        self.live: dict[int, tuple[Row, ...]] = {}
        """Per slice, the rows that the fold of its last version has named."""
        self._waiting: dict[int, WaitingContributions[SimRow]] = {}
        super().__init__(*args, **options)

    def _hold(self) -> None:
        super()._hold()
        for slice_ in self.contents:
            self.rows.setdefault(slice_, WorkerRows(_row))
        for slice_ in [slice_ for slice_ in self.rows if slice_ not in self.contents]:
            del self.rows[slice_]
            self.live.pop(slice_, None)
        self._waiting = {
            slice_: self._waiting.get(slice_) or WaitingContributions() for slice_ in self.slices
        }

    def _added_slice(self, message: Contribution) -> None:
        assert isinstance(message, CarriedContribution)
        given: Difference = message.difference
        whose = Row(message.worker, message.incarnation, message.sequence)
        value = SimRow(given.change, message.sequence, given.memory)
        self._waiting[message.slice].hold(whose, value)

    def fold(self, round_: int, slot: int, share: float = 1.0, rows: tuple[Row, ...] = ()) -> float:
        self._slot = slot
        due = self.rules.fold(round_, rows)
        named = {slice_: self._waiting[slice_].take(rows) for slice_ in due}
        for slice_ in self.rules.sent_on(due):
            self._send_rows(slice_, rows, named[slice_])
        for slice_ in self.slices:
            if slice_ in named:
                self._fold_rows(slice_, slot, rows, named[slice_])
            else:
                self._write(slice_, slot)
        return float(max((len(taken) for taken in named.values()), default=0))

    def _fold_rows(
        self, slice_: int, slot: int, live: tuple[Row, ...], named: Sequence[tuple[Row, SimRow]]
    ) -> None:
        self.rows[slice_].fold(live, named)
        self.live[slice_] = live
        waiting, folded = self._added[slice_], {_given(row) for row, _ in named}
        self._added[slice_] = [given for given in waiting if given in folded]
        self._fold_slice(slice_, slot, SliceStep(float(len(named))))
        members = {key_of(row) for row in live}
        self._added[slice_] = [
            given for given in waiting if given not in folded and given[:2] in members
        ]

    def _send_rows(
        self, slice_: int, live: tuple[Row, ...], named: Sequence[tuple[Row, SimRow]]
    ) -> None:
        step, differences = SliceStep(float(len(named))), tuple(row for row, _ in named)
        copy, peers = self.rules.copy_of_fold(slice_, step, live, differences)
        carried = RowsCopy(
            **msgspec.structs.asdict(copy),
            cargo=tuple(_given(row) for row, _ in named) if self._keep else (),
            values=tuple(value for _, value in named),
        )
        self.outgoing_steps += [(peer, carried) for peer in peers]

    def _copy_slice(self, message: CarriedCopy) -> None:
        assert isinstance(message, RowsCopy)
        self._added[message.slice] = list(message.cargo)
        named = list(zip(message.differences, message.values, strict=True))
        self._fold_rows(message.slice, 0, message.live, named)

    def _state(self, head: State) -> CarriedState:
        fields = msgspec.structs.asdict(super()._state(head))
        return RowsState(**fields, workers=tuple(self.rows[head.slice].rows.items()))

    def _adopt_slice(self, message: CarriedState) -> None:
        super()._adopt_slice(message)
        assert isinstance(message, RowsState)
        self.rows[message.slice] = WorkerRows(_row)
        self.rows[message.slice].rows = dict(message.workers)
        self.live.pop(message.slice, None)


def _given(row: Row) -> Given:
    return row.worker, row.incarnation, row.sequence
