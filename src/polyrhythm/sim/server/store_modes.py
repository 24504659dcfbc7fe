"""The two slice stores of a simulated server: with rounds, and with folds on arrival."""

from polyrhythm.core.server.leases import SliceVersions
from polyrhythm.core.server.ledger import OnArrivalLedger, RoundsLedger
from polyrhythm.sim.server.slice_store import SimSliceStore
from polyrhythm.wire.messages import Contribution, Row


class SimRoundsSliceStore(SimSliceStore):
    _ledger: RoundsLedger
    _ledger_type = RoundsLedger

    def _open_slots(self) -> None:
        self._slot = 0
        """The slot of the current version."""

    def _first_slot(self) -> int:
        return self._slot

    def fold(self, round_: int, slot: int, share: float = 1.0, rows: tuple[Row, ...] = ()) -> float:
        """Fold every aggregate into `slot`. Returns the largest weight of an aggregate. `share`:
        which fraction of a full step to make."""
        self._slot = slot
        weight = max(self._aggregate.values(), default=0.0)
        behind = [s for s in self.slices if not self._replicated or self._ledger.number(s) < round_]
        steps = {s: self._stepping.step(self._aggregate[s], None, -1, share) for s in behind}
        cargos = {s: tuple(self._added[s]) for s in behind}
        for slice_ in self.slices:
            if slice_ in steps:
                self._fold_slice(slice_, slot, steps[slice_])
            else:
                self._write(slice_, slot)
        self._ledger.close(round_)
        for slice_, step in steps.items() if self._replicated else ():
            rows, stamp = self._ledger.folded_rows(slice_), self._ledger.stamp(slice_)
            self._copy_step(slice_, stamp, step, rows, None, cargos[slice_])
        return weight


class SimOnArrivalSliceStore(SimSliceStore):
    _ledger: OnArrivalLedger
    _ledger_type = OnArrivalLedger

    def _open_slots(self) -> None:
        self._latest = SliceVersions(())

    def _first_slot(self) -> int:
        return self._latest.hold(tuple(self.slices), self.nbytes)

    def _added_slice(self, message: Contribution) -> None:
        """Fold the slice at once."""
        slice_ = message.slice
        step = self._stepping.step(message.weight, message.rate, message.sequence)
        if self._replicated:
            given = (message.worker, message.incarnation, message.sequence)
            cargo = tuple(self._added[slice_])
            stamp = self._ledger.next_step(slice_)
            self._copy_step(slice_, stamp, step, (Row(*given),), given, cargo)
        if message.pulled >= 0:
            self._latest.release(message.worker, message.pulled)
        slot = self._latest.target(slice_)
        self._fold_slice(slice_, slot, step)
        self._latest.folded(slice_, slot)

    def lease(self, worker: int, ticket: int) -> tuple[int, ...]:
        """Lease the current slot of each slice to this worker, and return these slots."""
        return self._latest.lease(worker, ticket)

    def unlease(self, worker: int, ticket: int | None) -> None:
        self._latest.release(worker, ticket)
        self.free(self._latest.surplus())
        if self._keep:
            self._latest.check()
