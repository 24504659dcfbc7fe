"""The slices of a primary of kind statistics: contributions wait until a fold names them."""

from collections.abc import Sequence

import torch

from polyrhythm.runtime.server.primary import PrimarySlice
from polyrhythm.runtime.server.rounds_primary import RoundsPrimary
from polyrhythm.tensors.held import Held
from polyrhythm.tensors.updater import Named
from polyrhythm.wire.messages import Contribution, Row


class RowsPrimary(RoundsPrimary):
    """There are no aggregates: the updater keeps the rows of workers."""

    def _open_slots(self) -> None:
        self._fill = 0
        self._aggregates = None
        self._aggregates_in_slots = True

    def hold(self, part: PrimarySlice, incoming: torch.Tensor, message: Contribution) -> None:
        """Let a contribution wait for the fold that names it. It is copied, because the worker
        overwrites its buffer later."""
        whose = Row(message.worker, message.incarnation, message.sequence)
        part.waiting.hold(whose, incoming.clone())

    def enter(self, held: Held, rows: Sequence[Row]) -> list[Named]:
        """A fold names these rows: give the contributions that it contains to the updater. Returns
        these contributions, except those that do not change the slice."""
        part = self._parts[held.slice.id]
        named = [(row, value) for row, value in part.waiting.take(rows) if len(value)]
        part.updater.enter(held, rows, named)
        if named and self._is_buffers(held.slice):
            self.changed[held.slice.id].update(range(len(held.slice.parts)))
        return named
