"""The slices that a server is the primary of: their versions in slots, their aggregates, and updaters.

Nothing here is locked; the slice store does that. When routes change, only the slices that come and
go are touched: `prepare` gives those that come memory and state while the others stay in use, and
`change` takes them up.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from polyrhythm.core.placement.slices import Layout, Slice
from polyrhythm.core.server.leases import SliceVersions
from polyrhythm.errors import LinkError
from polyrhythm.io.segments import Piece, Segment
from polyrhythm.runtime.server.replica_memory import SliceState, adopt_state, export_state
from polyrhythm.runtime.server.slots import Allocate, SlicePlace, Slot, Slots, place_side_by_side
from polyrhythm.tensors.buffers import Changers, Parts, parts_length
from polyrhythm.tensors.dtypes import DTYPES, tensor_over, wire_dtype
from polyrhythm.tensors.kinds import updaters_for
from polyrhythm.tensors.updaters import Held, Updater
from polyrhythm.wire.messages import Contribution, JobSpec, ModelSpec, SliceStep

_AGGREGATES = 2
"""While replicas read the aggregate that was folded, the next one grows."""


@dataclass(slots=True, eq=False)
class PrimarySlice:
    held: Held
    updater: Updater
    wire: torch.dtype
    converts: bool
    """It travels in another dtype than it is kept in."""
    turn: int = 0
    """With replicas and rounds, which of its two aggregates grows."""
    kept: list[tuple[torch.Tensor, Contribution]] = field(default_factory=list)
    """In a deterministic job, the contributions of the open round, which a fold adds in order."""

    @property
    def nbytes(self) -> int:
        """Of the slice as it travels."""
        return self.held.slice.length * self.wire.itemsize


@dataclass(slots=True)
class Coming:
    """Slices that have memory and state and are not in use yet."""

    parts: dict[int, PrimarySlice]
    places: dict[int, SlicePlace]
    """Of their first version."""
    updaters: dict[bool, tuple[Updater, list[Held]]]
    with_state: frozenset[int]


class Primary:
    """A server has a `RoundsPrimary` or an `OnArrivalPrimary`."""

    grows = False
    """The next version grows in a slot of its own as contributions are added (plain addition)."""
    _aggregates_in_slots = False
    """Aggregates lie in slots, where readers or replicas can read them; `change` assigns them."""

    def __init__(
        self,
        slices: Sequence[Slice],
        layout: Layout,
        job: JobSpec,
        spec: ModelSpec,
        allocate: Allocate,
    ) -> None:
        self._layout = layout
        self._job = job
        self._spec = spec
        self._allocate = allocate
        self._slot = 0
        """The slot that seeds are written to, and with rounds the current version."""
        self.slots = Slots((), (), allocate)
        self.slots.at(self._slot)
        self.changed: dict[int, set[int]] = {}
        """Per slice of buffers, the parts that may differ from the seed: all parts of a slice that
        came with a state."""
        self._updaters: dict[bool, tuple[Updater, list[Held]]] = {}
        """One for the parameters (False) and one for the buffers (True)."""
        self._parts: dict[int, PrimarySlice] = {}
        self._list()
        self.change((), self.prepare(slices, {}))

    def _list(self) -> None:
        parts = self._parts
        self.held = [part.held for part in parts.values()]
        self.slices = tuple(held.slice for held in self.held)
        self.ids = tuple(parts)
        self.index = {id_: index for index, id_ in enumerate(parts)}

    @property
    def nbytes(self) -> int:
        """Of a version, as it travels."""
        return self.slots.nbytes

    # -- slices that come and go -----------------------------------------------------------------

    def prepare(self, slices: Sequence[Slice], states: Mapping[int, SliceState]) -> Coming:
        """Give these slices memory and state; the slices that are held already are not touched.
        Slices without a state begin with zeros."""
        spaces = [self._layout.spaces[slice_.space] for slice_ in slices]
        dtypes = [DTYPES[space.dtype] for space in spaces]
        wires = [wire_dtype(space, self._job.wire_dtype) for space in spaces]
        places = place_side_by_side(slices, wires, self._allocate) if slices else {}
        held = []
        for slice_, dtype, wire in zip(slices, dtypes, wires, strict=True):
            there = places[slice_.id].tensor
            parameters = there if wire == dtype else torch.zeros(slice_.length, dtype=dtype)
            length = 0 if self._aggregates_in_slots else slice_.length
            aggregate = torch.zeros(length, dtype=dtype)
            held.append(Held(slice_, parameters, aggregate))
        updaters = updaters_for(self._layout, self._job, self._spec, held)
        parts = {}
        for each, dtype, wire in zip(held, dtypes, wires, strict=True):
            id_ = each.slice.id
            updater = updaters[self._is_buffers(each.slice)][0]
            parts[id_] = part = PrimarySlice(each, updater, wire, wire != dtype)
            if id_ in states:
                adopt_state(each, updater, states[id_])
                if part.converts:
                    places[id_].tensor.copy_(each.parameters)
        return Coming(parts, places, updaters, frozenset(states))

    def _is_buffers(self, slice_: Slice) -> bool:
        return self._layout.spaces[slice_.space].buffers

    def change(self, going: Collection[int], coming: Coming) -> list[Segment]:
        """Give up some slices and take others up. Nothing of the others is copied. Returns memory
        for links to withdraw. Not while a round is folded."""
        if not going and not coming.parts:
            return []
        for id_ in going:
            self._give_up(id_)
        for key, (updater, held) in coming.updaters.items():
            if key in self._updaters:
                self._updaters[key][0].absorb(updater)
                self._updaters[key][1].extend(held)
            else:
                self._updaters[key] = (updater, held)
            for each in held:
                coming.parts[each.slice.id].updater = self._updaters[key][0]
        parts = {id_: part for id_, part in self._parts.items() if id_ not in going} | coming.parts
        self._parts = dict(sorted(parts.items()))
        self._list()
        for id_, part in coming.parts.items():
            if self._is_buffers(part.held.slice):
                count = len(part.held.slice.parts) if id_ in coming.with_state else 0
                self.changed[id_] = set(range(count))
        return self._place(coming)

    def _give_up(self, slice_: int) -> None:
        held = self._parts[slice_].held
        key = self._is_buffers(held.slice)
        updater, slices = self._updaters[key]
        updater.drop(held)
        slices.remove(held)
        if not slices:
            del self._updaters[key]
        self.changed.pop(slice_, None)

    def _place(self, coming: Coming) -> list[Segment]:
        """Put the slices that come into every slot."""
        wires = [part.wire for part in self._parts.values()]
        return self.slots.change(self.slices, wires, {self._first_slot(): coming.places})

    def _first_slot(self) -> int:
        """The slot that holds the first version of slices that come."""
        raise NotImplementedError

    # -- contributions -------------------------------------------------------------------------

    def find(self, slice_: int) -> PrimarySlice | None:
        """A slice by its number, if this server is its primary."""
        return self._parts.get(slice_)

    def incoming(self, part: PrimarySlice, data: memoryview, parts: Parts = None) -> torch.Tensor:
        """A slice as it came, or these parts of it, once its size is checked."""
        slice_, nbytes = part.held.slice, part.nbytes
        if parts is not None:
            length = parts_length(slice_, parts)
            if length is None or not part.updater.takes_parts:
                raise LinkError(
                    f"the peer sent parts {list(parts)} of slice {slice_.id},"
                    " which does not have them"
                )
            nbytes = length * part.wire.itemsize
        check_size(data, slice_.id, nbytes)
        return tensor_over(data, part.wire) if nbytes else torch.empty(0, dtype=part.wire)

    def check_weight(self, part: PrimarySlice, weight: float) -> None:
        """Weights multiply elements, and torch refuses a factor that the dtype cannot hold."""
        dtype = part.held.aggregate.dtype
        if dtype.is_floating_point and weight > torch.finfo(dtype).max:
            raise LinkError(f"a contribution weighs {weight}, which {dtype} cannot hold")

    def seed(self, part: PrimarySlice, incoming: torch.Tensor) -> None:
        slot, index = self.slots.at(self._slot), self.index[part.held.slice.id]
        slot.rewrite(index)
        part.held.parameters.copy_(incoming)
        if part.converts:
            slot.tensors[index].copy_(incoming)

    def restore(self, part: PrimarySlice, state: SliceState) -> None:
        """Begin with the state of a checkpoint. The tensors beside the parameters are given away."""
        slot, index = self.slots.at(self._slot), self.index[part.held.slice.id]
        slot.rewrite(index)
        adopt_state(part.held, part.updater, state)
        if part.converts:
            slot.tensors[index].copy_(part.held.parameters)

    def add(self, part: PrimarySlice, incoming: torch.Tensor, message: Contribution) -> None:
        held, updater = part.held, part.updater
        updater.add(held, incoming, message.weight, message.parts)
        if updater.takes_parts:
            if not held.part_weights:
                return  # no worker has changed a buffer in it
            self.changed[held.slice.id].update(held.part_weights)
        held.weight += message.weight
        if message.sequence >= held.clock:
            held.clock, held.rate = message.sequence, message.rate

    # -- for replicas --------------------------------------------------------------------------

    def pieces_of(self, slice_: int, slot: Slot, parts: tuple[int, ...]) -> list[Piece]:
        """These parts of a slice, as they lie in a slot."""
        part, whole = self._parts[slice_], slot.pieces[self.index[slice_]]
        assert whole.segment is not None
        item = part.wire.itemsize
        ends = [part.held.slice.parts[number] for number in parts]
        return [
            whole.segment.piece(whole.offset + first * item, (end - first) * item)
            for first, end in ends
        ]

    def export(self, slice_: int) -> SliceState:
        part = self._parts[slice_]
        return export_state(part.held, part.updater)

    def close(self) -> list[Segment]:
        return self.slots.close()


class RoundsPrimary(Primary):
    """With rounds, every slice has an aggregate, and a fold makes the next version of all of them."""

    def __init__(
        self,
        slices: Sequence[Slice],
        layout: Layout,
        job: JobSpec,
        spec: ModelSpec,
        allocate: Allocate,
    ) -> None:
        self.grows = job.updater == "addition"
        self._fill = 1 if self.grows else 0
        self._aggregates: Slots | None = None
        if job.replicas and not self.grows:  # replicas read aggregates where they lie
            self._aggregates = Slots((), (), allocate)
            for number in range(_AGGREGATES):
                self._aggregates.at(number)
        self._aggregates_in_slots = self.grows or self._aggregates is not None
        super().__init__(slices, layout, job, spec, allocate)

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
        """Add the contributions that were kept, in this order of the workers."""
        for part in self._parts.values():
            part.kept.sort(key=lambda each: (order.get(each[1].worker, -1), each[1].sequence))
            for incoming, message in part.kept:
                self.add(part, incoming, message)
            part.kept.clear()

    def fold(self, number: int, fill: int, steps: Mapping[int, SliceStep]) -> None:
        """Make these steps, by slice, into the slot of this number. Slices without a step are carried
        over. `fill`: the slot in which plain addition grows the next version."""
        target = self.slots.at(number)
        if not self.grows:  # otherwise the slot was opened when its aggregate began to grow
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
        """Point a slice that was folded at its new version, and open an empty aggregate."""
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
        """Copy a slice that was not folded into the new version; its aggregate goes on growing. The
        other aggregate may still be read by replicas that have not confirmed its fold."""
        held = part.held
        if self.grows:  # it grows in the slot that its parameters are copied into
            before, held.aggregate = held.aggregate, self.slots.at(fill).tensors[index]
            if held.weight:
                held.aggregate.copy_(before)
        place = target.tensors[index].copy_(held.parameters)
        if not part.converts:
            held.parameters = place

    def settle(self, held: Held, *, forwarded: bool) -> None:
        """Make the aggregate the step that a fold makes, here and on every replica. `forwarded`:
        replicas read it where it lies."""
        self._parts[held.slice.id].updater.settle(held, forwarded=forwarded)

    def aggregate_piece(self, held: Held, number: int) -> Piece:
        """The memory of the aggregate that is about to be folded into the slot `number`. Replicas read
        it where it lies, so it is not written before all have confirmed."""
        id_ = held.slice.id
        if self._aggregates is None:
            return self.slots.at(number).pieces[self.index[id_]]
        return self._aggregates.at(self._parts[id_].turn).pieces[self.index[id_]]

    def close(self) -> list[Segment]:
        aggregates = [] if self._aggregates is None else self._aggregates.close()
        return [*super().close(), *aggregates]


class OnArrivalPrimary(Primary):
    """Without rounds, every contribution to a slice is folded at once, into a slot of that slice."""

    def __init__(
        self,
        slices: Sequence[Slice],
        layout: Layout,
        job: JobSpec,
        spec: ModelSpec,
        allocate: Allocate,
    ) -> None:
        self.latest = SliceVersions(())
        """The slot of each slice, and the leases of its readers."""
        self._changers = Changers()
        super().__init__(slices, layout, job, spec, allocate)

    def _first_slot(self) -> int:
        return self.latest.hold(self.ids, sum(part.nbytes for part in self._parts.values()))

    def _give_up(self, slice_: int) -> None:
        super()._give_up(slice_)
        self._changers.forget(self._parts[slice_].held.slice)

    def buffer_step(
        self, part: PrimarySlice, data: memoryview, message: Contribution, members: frozenset[int]
    ) -> memoryview | None:
        """Add a contribution to a slice of buffers. Returns the step that this makes, here and on the
        replicas; empty if it changed no buffer, None if the slice has no buffers.
        `members`: the workers that share a step; if there are none, every change counts in full."""
        held, updater = part.held, part.updater
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
            return  # buffers that stay as they are
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


def check_size(data: memoryview, slice_: int, nbytes: int) -> None:
    if len(data) != nbytes:
        raise LinkError(f"the peer sent {len(data)} bytes for slice {slice_}, which has {nbytes}")
