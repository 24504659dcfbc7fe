"""The slices of a primary without rounds: every contribution to a slice is folded when it
arrives."""

import torch

from polyrhythm.core.server.leases import SliceVersions
from polyrhythm.runtime.server.primary import Primary, PrimarySlice, is_left_out
from polyrhythm.tensors.buffers import Changers
from polyrhythm.wire.messages import Contribution, SliceStep


class OnArrivalPrimary(Primary):
    """Without rounds, every contribution to a slice is folded at once. Each slice has its own
    current slot, because slices are folded at different times."""

    def _open_slots(self) -> None:
        self.latest = SliceVersions(())
        """The current slot of each slice, and the leases of its readers."""
        self._changers = Changers()

    def _first_slot(self) -> int:
        return self.latest.hold(self.ids, sum(part.nbytes for part in self._parts.values()))

    def _give_up(self, slice_: int) -> None:
        super()._give_up(slice_)
        self._changers.forget(self._parts[slice_].held.slice)

    def buffer_step(
        self, part: PrimarySlice, data: memoryview, message: Contribution, members: frozenset[int]
    ) -> memoryview | None:
        """Add a contribution to a slice of the model's buffers. Returns the change that this server
        and the replicas must fold; empty if the contribution changes no buffer; None if the slice
        has parameters and not buffers. The change is also empty if the slice has the parameters of
        one model and the contribution is a step of another. `members`: the workers among which a
        full step is divided; if there are none, every change counts in full."""
        held, updater = part.held, part.updater
        if is_left_out(part, message):
            return memoryview(b"")
        if not updater.takes_parts:
            return None
        self.add(part, self.incoming(part, data, message.parts), message)
        scales = self._changers.scales(held, message.worker, message.parts, members)
        if not held.weight:
            return memoryview(b"")
        updater.settle(held, scales)
        return held.aggregate.view(torch.uint8).numpy().data

    def fold_slice(self, part: PrimarySlice, step: SliceStep) -> None:
        """Fold the contribution that was just added."""
        held = part.held
        if not held.weight:
            return  # nothing to fold: the contribution changes no buffer of this slice
        number, index = self.latest.target(held.slice.id), self.index[held.slice.id]
        slot = self.slots.at(number)
        slot.rewrite(index)
        place = slot.tensors[index]
        part.updater.fold([held], [held.parameters if part.converts else place], [step])
        if part.converts:
            place.copy_(held.parameters)
        else:
            held.parameters = place
        held.empty()
        self.latest.folded(held.slice.id, number)
