"""The slices of a primary with rounds: contributions are added to aggregates, and a fold makes the
next version of all slices."""

from collections.abc import Mapping

import torch

from polyrhythm.io.segments import Piece, Segment
from polyrhythm.runtime.server.primary import Coming, Primary, PrimarySlice
from polyrhythm.runtime.server.slots import Slot, Slots
from polyrhythm.tensors.held import Held
from polyrhythm.wire.messages import SliceStep

_AGGREGATES = 2
"""The number of aggregates per slice. While replicas read the aggregate that was folded last,
contributions are added to the other one."""


class RoundsPrimary(Primary):
    """With rounds, every slice has an aggregate, and a fold makes the next version of all
    slices."""

    def _open_slots(self) -> None:
        self.grows = self._job.updater == "addition"
        self._fill = 1 if self.grows else 0
        self._aggregates: Slots | None = None
        # aggregates are in slots, because replicas read them there
        if self._job.replicas and not self.grows:
            self._aggregates = Slots((), (), self._allocate)
            for number in range(_AGGREGATES):
                self._aggregates.at(number)
        self._aggregates_in_slots = self.grows or self._aggregates is not None

    def _first_slot(self) -> int:
        return self._slot

    def _place(self, coming: Coming) -> list[Segment]:
        freed = super()._place(coming)
        if self._aggregates is not None:
            dtypes = [held.parameters.dtype for held in self.held]
            freed += self._aggregates.change(self.slices, dtypes, {})
        for id_, part in coming.parts.items():
            if self.grows:
                part.held.aggregate = self.slots.at(self._fill).tensors[self.index[id_]]
            elif self._aggregates is not None:
                part.held.aggregate = self._aggregates.at(part.turn).tensors[self.index[id_]]
        return freed

    def add_kept(self, order: Mapping[int, int]) -> None:
        """Add the contributions that a deterministic job has kept, in this order of the workers."""
        for part in self._parts.values():
            part.kept.sort(key=lambda each: (order.get(each[1].worker, -1), each[1].sequence))
            for incoming, message in part.kept:
                self.add(part, incoming, message)
            part.kept.clear()

    def fold(self, number: int, fill: int, steps: Mapping[int, SliceStep]) -> None:
        """Make one of these steps for each slice that has one, and write the new version to the slot
        `number`. Slices without a step are copied. `fill`: with plain addition, the slot to which later
        contributions are added."""
        target = self.slots.at(number)
        # with plain addition, the previous fold has called `rewrite_all` on this slot already
        if not self.grows:
            target.rewrite_all()
        for updater, slices in self._updaters.values():
            due = [held for held in slices if held.slice.id in steps]
            made = [steps[held.slice.id] for held in due]
            updater.fold(due, [self._target(held, target) for held in due], made)
        if self.grows:
            self.slots.at(fill).rewrite_all()
        for index, part in enumerate(self._parts.values()):
            if part.held.slice.id in steps:
                self._settle(index, part, target, fill)
            else:
                self._carry_over(index, part, target, fill)
        self._slot, self._fill = number, fill

    def _target(self, held: Held, target: Slot) -> torch.Tensor:
        if self._parts[held.slice.id].converts:
            return held.parameters
        return target.tensors[self.index[held.slice.id]]

    def _settle(self, index: int, part: PrimarySlice, target: Slot, fill: int) -> None:
        """A slice was folded: its new version becomes the current one, and an empty aggregate
        begins."""
        held = part.held
        if part.converts:
            target.tensors[index].copy_(held.parameters)
        else:
            held.parameters = target.tensors[index]
        if self.grows:
            held.aggregate = self.slots.at(fill).tensors[index]
        elif self._aggregates is not None:
            part.turn = (part.turn + 1) % _AGGREGATES
            opened = self._aggregates.at(part.turn)
            opened.rewrite(index)
            held.aggregate = opened.tensors[index]
        held.empty()

    def _carry_over(self, index: int, part: PrimarySlice, target: Slot, fill: int) -> None:
        """A slice was not folded: copy it to the new version. Contributions are still added to its
        present aggregate, because replicas may still read the other aggregate."""
        held = part.held
        # With plain addition, the aggregate is in the slot to which the parameters are copied. So the
        # aggregate moves to another slot first.
        if self.grows:
            before, held.aggregate = held.aggregate, self.slots.at(fill).tensors[index]
            if held.weight:
                held.aggregate.copy_(before)
        place = target.tensors[index].copy_(held.parameters)
        if not part.converts:
            held.parameters = place

    def settle(self, held: Held, *, forwarded: bool) -> None:
        """Scale the aggregate so that this server and every replica can fold it as it is.
        `forwarded`: replicas read the aggregate in place."""
        self._parts[held.slice.id].updater.settle(held, forwarded=forwarded)

    def aggregate_piece(self, held: Held, number: int) -> Piece:
        """The memory of the aggregate that is about to be folded into the slot `number`. Replicas
        read this memory in place, so it is not overwritten until all of them have confirmed the
        fold."""
        id_ = held.slice.id
        if self._aggregates is None:
            return self.slots.at(number).pieces[self.index[id_]]
        return self._aggregates.at(self._parts[id_].turn).pieces[self.index[id_]]

    def close(self) -> list[Segment]:
        aggregates = [] if self._aggregates is None else self._aggregates.close()
        return [*super().close(), *aggregates]
