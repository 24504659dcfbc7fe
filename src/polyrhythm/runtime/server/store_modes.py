"""The two slice stores of a server: with rounds, and with folds on arrival."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager

import torch

from polyrhythm.core.kinds import keeps_rows
from polyrhythm.core.placement.slices import BUFFERS
from polyrhythm.core.server.ledger import OnArrivalLedger, RoundsLedger
from polyrhythm.core.sync.registry import traits_of
from polyrhythm.io.segments import Segment
from polyrhythm.runtime.server.on_arrival_primary import OnArrivalPrimary
from polyrhythm.runtime.server.primary import PrimarySlice
from polyrhythm.runtime.server.replica_memory import PARAMETERS, SliceState
from polyrhythm.runtime.server.rounds_primary import RoundsPrimary
from polyrhythm.runtime.server.rows_primary import RowsPrimary
from polyrhythm.runtime.server.slice_store import SliceStore
from polyrhythm.tensors.held import Held
from polyrhythm.tensors.rows import ABSENT, Incoming
from polyrhythm.wire.messages import Contribution, JobSpec, Row, SliceStep


class RoundsSliceStore(SliceStore):
    """Contributions are added to aggregates; a fold makes the next version of all slices."""

    ledger: RoundsLedger
    primary: RoundsPrimary
    _ledger_type = RoundsLedger
    _primary_type = RoundsPrimary

    def _lock(self, slice_: int) -> AbstractContextManager[object]:
        return self._locks.of(slice_)

    def _add_slice(
        self, part: PrimarySlice, incoming: Incoming, message: Contribution, data: memoryview
    ) -> None:
        if self._job.deterministic:
            part.kept.append((incoming.clone(), message))
        else:
            self.primary.add(part, incoming, message)

    def fold(
        self, round_: int, slot: int, fill: int, share: float = 1.0, rows: tuple[Row, ...] = ()
    ) -> float:
        """Fold every aggregate, write the new version to `slot`, and return the largest weight. If
        the former primary of a slice has already folded it in this round, the slice is only copied.
        `share`: the fraction of a full step."""
        primary = self.primary
        with self._locks.all_of(primary.ids):
            if self._job.deterministic:
                primary.add_kept(self._order)
            weight = max((held.weight for held in primary.held), default=0.0)
            behind = self._behind(primary, round_)
            with self._ledger_lock:
                self.ledger.close(round_)
            steps = {held.slice.id: self._step_of(primary, held, share) for held in behind}
            for held in behind if self._replicated else ():
                id_ = held.slice.id
                piece = primary.aggregate_piece(held, slot)
                self._replica_sender.fold_too(
                    id_, steps[id_], piece, self.routes[id_], self._routing
                )
            primary.fold(slot, fill, steps)
        return weight

    def _step_of(self, primary: RoundsPrimary, held: Held, share: float) -> SliceStep:
        primary.settle(held, forwarded=self._replicated)
        return self._stepping.step(held.weight, held.rate, held.clock, share)

    def _behind(self, primary: RoundsPrimary, round_: int) -> Sequence[Held]:
        if not self._replicated:
            return primary.held
        with self._ledger_lock:
            return [held for held in primary.held if self.ledger.number(held.slice.id) < round_]


class OnArrivalSliceStore(SliceStore):
    """Every contribution to a slice is folded when it arrives, as a separate step."""

    ledger: OnArrivalLedger
    primary: OnArrivalPrimary
    _ledger_type = OnArrivalLedger
    _primary_type = OnArrivalPrimary

    @contextmanager
    def _lock(self, slice_: int) -> Iterator[None]:
        """The lock of the slice and the fold lock: all slices have one updater, so their steps are
        made one after the other."""
        with self._locks.of(slice_), self._fold_lock:
            yield

    def _add_slice(
        self, part: PrimarySlice, incoming: Incoming, message: Contribution, data: memoryview
    ) -> None:
        """Make the step of a contribution, here and on every replica."""
        primary = self.primary
        step = self._stepping.step(
            message.weight, message.rate, message.sequence, group=part.held.slice.group
        )
        # the worker had no gradient for this tensor: the step changes nothing
        if message.indices == ABSENT:
            step = SliceStep(0.0)
        # end the worker's lease first, so that the fold can reuse the slot that the worker has read
        if message.pulled >= 0:
            primary.latest.release(message.worker, message.pulled)
        buffers = primary.buffer_step(part, data, message, self._sharers)
        # `buffer_step` has scaled the change of each buffer, so the step is a full one
        if buffers is not None:
            data, step = buffers, SliceStep(1.0 if len(buffers) else 0.0)
        if self._replicated:
            with self._ledger_lock:
                stamp = self.ledger.next_step(message.slice)
            payload = self._replica_sender.forward(message, data, step, stamp, self._routing)
            # make the step from the same bytes that the replicas get
            if buffers is None and payload is not data:
                incoming = primary.contributed(part, payload, message)
        if buffers is None:
            primary.add(part, incoming, message)
        primary.fold_slice(part, step)

    def lease(self, worker: int, ticket: int) -> list[int]:
        """Lease the current slot of each slice to this worker, and return the slots."""
        with self._fold_lock:
            return list(self.primary.latest.lease(worker, ticket))

    def unlease(self, worker: int, ticket: int | None) -> list[Segment]:
        """The worker has read the version that it got with `ticket`. Returns the memory that is
        freed now."""
        with self._fold_lock:
            latest = self.primary.latest
            latest.release(worker, ticket)
            return self.primary.slots.free(latest.surplus())


class WithoutRows(SliceStore):
    """The slice stores of kind statistics. Their checkpoints contain no rows."""

    def copied(self) -> tuple[dict[int, SliceState], int]:
        """Copy the slices without their rows: a job that resumes begins without rows."""
        copies, torn = super().copied()
        return {id_: {PARAMETERS: state[PARAMETERS]} for id_, state in copies.items()}, torn

    def restore(self, slice_: int, state: Mapping[str, torch.Tensor]) -> None:
        """Begin a slice with the parameters of a checkpoint. Statistics begin with zero, because no
        worker remembers its points."""
        parameters = state[PARAMETERS]
        if self._layout.slices[slice_].group != BUFFERS:
            parameters = torch.zeros_like(parameters)
        super().restore(slice_, {PARAMETERS: parameters})


class RowsSliceStore(WithoutRows, RoundsSliceStore):
    """Kind statistics: contributions wait until a fold names them; a version is the sum of the rows
    that the fold names."""

    primary: RowsPrimary
    _primary_type = RowsPrimary

    def _add_slice(
        self, part: PrimarySlice, incoming: Incoming, message: Contribution, data: memoryview
    ) -> None:
        assert isinstance(incoming, torch.Tensor)
        self.primary.hold(part, incoming, message)

    def fold(
        self, round_: int, slot: int, fill: int, share: float = 1.0, rows: tuple[Row, ...] = ()
    ) -> float:
        """Add the contributions that `rows` names, delete all other rows, and write the new version
        to `slot`. Returns the number of contributions in a slice."""
        primary = self.primary
        with self._locks.all_of(primary.ids):
            behind = self._behind(primary, round_)
            named = {held.slice.id: primary.enter(held, rows) for held in behind}
            with self._ledger_lock:
                self.ledger.close(round_, rows)
            steps = {id_: SliceStep(float(len(taken))) for id_, taken in named.items()}
            for id_, taken in named.items() if self._replicated else ():
                self._replica_sender.fold_rows(id_, steps[id_], rows, taken, self._routing)
            primary.fold(slot, fill, steps)
        return max((step.weight for step in steps.values()), default=0.0)


class RowsOnArrivalSliceStore(WithoutRows, OnArrivalSliceStore):
    """Kind statistics without rounds: a difference is added to its row when it arrives. The row of a
    worker that has left is deleted with the next contribution. *Servers add contributions in
    different orders, so this store is for comparison only.*"""

    def _add_slice(
        self, part: PrimarySlice, incoming: Incoming, message: Contribution, data: memoryview
    ) -> None:
        assert isinstance(incoming, torch.Tensor)
        primary = self.primary
        if message.pulled >= 0:
            primary.latest.release(message.worker, message.pulled)
        if not len(incoming):
            return
        with self._ledger_lock:
            live = self.ledger.members
        whose = Row(message.worker, message.incarnation, message.sequence)
        part.updater.enter(part.held, live, [(whose, incoming.clone())])
        if part.held.slice.group == BUFFERS:
            primary.changed[message.slice].update(range(len(part.held.slice.parts)))
        part.held.weight = 1.0
        primary.fold_slice(part, SliceStep(1.0))


def choose_slice_store(job: JobSpec) -> type[SliceStore]:
    """The class of a server's slice store, which depends on the job's sync policy and kind."""
    if not traits_of(job.sync).rounds:
        return RowsOnArrivalSliceStore if keeps_rows(job.kind) else OnArrivalSliceStore
    return RowsSliceStore if keeps_rows(job.kind) else RoundsSliceStore
