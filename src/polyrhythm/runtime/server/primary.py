"""The slices whose primary this server is: their versions in slots, their aggregates, and updaters.

This module takes no locks; the slice store does. A change of routes touches only the slices that
come and go. `prepare` allocates memory and state for new slices, while the other slices stay in
use. `change` then begins to use the new slices.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from polyrhythm.core.kinds import INT8, may_be_quantised
from polyrhythm.core.placement.slices import BUFFERS, Layout, Slice
from polyrhythm.core.server.leases import SliceVersions
from polyrhythm.core.server.worker_rows import WaitingContributions
from polyrhythm.errors import LinkError
from polyrhythm.io.segments import Piece, Segment, piece_for_many
from polyrhythm.runtime.server.slots import Allocate, SlicePlace, Slot, Slots, place_side_by_side
from polyrhythm.runtime.slice_state import (
    PARAMETERS,
    SliceState,
    adopt_state,
    export_state,
    is_sum,
    step_in,
    sum_state,
)
from polyrhythm.tensors.buffers import Changers, Parts, parts_length
from polyrhythm.tensors.dtypes import held_dtype, tensor_over, wire_dtype
from polyrhythm.tensors.held import Held
from polyrhythm.tensors.kinds import model_of, updaters_for
from polyrhythm.tensors.quantised import read_quantised
from polyrhythm.tensors.rows import Incoming, read_rows
from polyrhythm.tensors.updater import Named, Updater
from polyrhythm.wire.messages import Contribution, JobSpec, ModelSpec, Row, SliceStep

_NO_STEP = SliceStep(0.0)


@dataclass(slots=True, eq=False)
class PrimarySlice:
    held: Held
    updater: Updater
    wire: torch.dtype
    converts: bool
    """Whether the parameters have separate memory, beside the slots: the slice is sent in another
    dtype, or sums of gradients are sent in place of parameters."""
    turn: int = 0
    """With replicas and rounds: the number (0 or 1) of the aggregate to which contributions are
    added."""
    kept: list[tuple[Incoming, Contribution]] = field(default_factory=list)
    """In a deterministic job: the contributions of the open round. The fold adds them in the order
    of the workers."""
    waiting: WaitingContributions[torch.Tensor] = field(default_factory=WaitingContributions)
    """Kind statistics: the contributions that no fold has named yet."""
    sum: torch.Tensor | None = None
    """With `--optimizer-on workers`: the sum of the gradients in the present version, in its slot; None
    before the first fold."""
    step: SliceStep = _NO_STEP
    """The step that workers make with this sum."""
    early: tuple[int, SliceStep, frozenset[tuple[int, int]]] = (0, _NO_STEP, frozenset())
    """The last round whose sum was sent before the fold was ordered, the step of the sum, and the
    workers, with their incarnations, that it was sent to."""

    @property
    def nbytes(self) -> int:
        """The size of the slice as it is sent."""
        return self.held.slice.length * self.wire.itemsize


@dataclass(slots=True)
class Coming:
    """New slices that have memory and state, but are not in use yet."""

    parts: dict[int, PrimarySlice]
    places: dict[int, SlicePlace]
    """The memory of the first version of these slices."""
    updaters: dict[int, tuple[Updater, list[Held]]]
    with_state: frozenset[int]


class Primary:
    """The common part of `RoundsPrimary` and `OnArrivalPrimary`. A server has one object of one of
    these classes."""

    grows = False
    """Whether contributions are added directly to a slot that becomes the next version (plain
    addition)."""
    _aggregates_in_slots = False
    """Whether aggregates are in slots, where readers or replicas can read them. If so, `change`
    assigns them their memory."""

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
        self._open_slots()
        self._slot = 0
        """The slot to which initial parameters are written. With rounds: the slot of the current
        version."""
        self.slots = Slots((), (), allocate)
        self.slots.at(self._slot)
        self.changed: dict[int, set[int]] = {}
        """For each slice that holds the model's buffers (tensors without gradients): the parts that
        may differ from the initial parameters. If the slice came from another server, these are
        all of its parts."""
        self._updaters: dict[int, tuple[Updater, list[Held]]] = {}
        """The updaters of each model's parameters and of the buffers, each with its slices
        (`updaters_for`)."""
        self._parts: dict[int, PrimarySlice] = {}
        self._list()
        self.change((), self.prepare(slices, {}))

    def _open_slots(self) -> None:
        """Allocate what this mode needs before the first slices are placed."""
        raise NotImplementedError

    def _list(self) -> None:
        parts = self._parts
        self.held = [part.held for part in parts.values()]
        self.slices = tuple(held.slice for held in self.held)
        self.ids = tuple(parts)
        self.index = {id_: index for index, id_ in enumerate(parts)}

    @property
    def nbytes(self) -> int:
        """The size of a version of all slices, as it is sent."""
        return self.slots.nbytes

    # -- slices that come and go -----------------------------------------------------------------

    def prepare(self, slices: Sequence[Slice], states: Mapping[int, SliceState]) -> Coming:
        """Allocate memory and state for new slices. The slices that this server has already are not
        touched. New slices without a state in `states` begin with zeros."""
        spaces = [self._layout.spaces[slice_.space] for slice_ in slices]
        dtypes = [held_dtype(space, self._job) for space in spaces]
        wires = [wire_dtype(space, self._job.wire_dtype) for space in spaces]
        places = place_side_by_side(slices, wires, self._allocate) if slices else {}
        held = []
        for slice_, dtype, wire in zip(slices, dtypes, wires, strict=True):
            there = places[slice_.id].tensor
            apart = wire != dtype or self._is_apart(slice_)
            parameters = torch.zeros(slice_.length, dtype=dtype) if apart else there
            length = 0 if self._aggregates_in_slots else slice_.length
            aggregate = torch.zeros(length, dtype=dtype)
            held.append(Held(slice_, parameters, aggregate))
        updaters = updaters_for(self._layout, self._job, self._spec, held)
        parts = {}
        for each, dtype, wire in zip(held, dtypes, wires, strict=True):
            id_ = each.slice.id
            updater = updaters[model_of(each.slice, self._spec)][0]
            apart = wire != dtype or self._is_apart(each.slice)
            parts[id_] = part = PrimarySlice(each, updater, wire, apart)
            if id_ in states:
                self._begin(part, states[id_], places[id_].tensor)
        return Coming(parts, places, updaters, frozenset(states))

    def _begin(self, part: PrimarySlice, state: SliceState, place: torch.Tensor) -> None:
        """Begin a slice that came from another server. `place`: the memory of its first version."""
        adopt_state(part.held, part.updater, state)
        if part.converts:
            place.copy_(part.held.parameters)

    def _is_buffers(self, slice_: Slice) -> bool:
        return self._layout.spaces[slice_.space].buffers

    def _is_apart(self, slice_: Slice) -> bool:
        """Whether the parameters of a slice have separate memory even if they are sent without
        conversion."""
        return False

    def change(self, going: Collection[int], coming: Coming) -> list[Segment]:
        """Remove the slices `going`, and begin to use the slices `coming`. All other slices stay
        unchanged, and nothing is copied. Returns the memory that is no longer used; links must stop
        offering it to readers. Must not be called while a round is folded."""
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
        key = model_of(held.slice, self._spec)
        updater, slices = self._updaters[key]
        updater.drop(held)
        slices.remove(held)
        if not slices:
            del self._updaters[key]
        self.changed.pop(slice_, None)

    def _place(self, coming: Coming) -> list[Segment]:
        """Give the new slices a place in every slot."""
        wires = [part.wire for part in self._parts.values()]
        return self.slots.change(self.slices, wires, {self._first_slot(): coming.places})

    def _first_slot(self) -> int:
        """The slot of the first version of new slices."""
        raise NotImplementedError

    # -- contributions -------------------------------------------------------------------------

    def find(self, slice_: int) -> PrimarySlice | None:
        """The slice with this number; None if this server is not its primary."""
        return self._parts.get(slice_)

    def part(self, slice_: int) -> PrimarySlice:
        """The slice with this number, of which this server is the primary."""
        return self._parts[slice_]

    def contributed(self, part: PrimarySlice, data: memoryview, message: Contribution) -> Incoming:
        """The received bytes of a slice of a contribution. Raises LinkError if the bytes do not fit
        the slice, or do not fit the parts or rows of it that the message names."""
        if message.quantised:
            return self._quantised(part, data, message)
        if message.indices is None:
            return self.incoming(part, data, message.parts)
        if message.parts is not None or not part.updater.takes_rows:
            raise LinkError(f"the peer sent rows of slice {message.slice}, which accepts no rows")
        return read_rows(part.held.slice, data, message.indices, part.wire)

    def _quantised(
        self, part: PrimarySlice, data: memoryview, message: Contribution
    ) -> torch.Tensor:
        slice_, whole = part.held.slice, message.parts is None and message.indices is None
        if self._job.push != INT8 or not whole or not may_be_quantised(self._layout, slice_):
            raise LinkError(
                f"the peer sent slice {slice_.id} quantised, but this job takes exact slices only"
            )
        return read_quantised(slice_, data, part.wire)

    def incoming(self, part: PrimarySlice, data: memoryview, parts: Parts = None) -> torch.Tensor:
        """The received bytes of a slice, or of these parts of it, as a tensor. Raises LinkError if
        their size is wrong."""
        slice_, nbytes = part.held.slice, part.nbytes
        if parts is not None:
            length = parts_length(slice_, parts)
            if length is None or (parts and not part.updater.takes_parts):
                raise LinkError(
                    f"the peer sent parts {list(parts)} of slice {slice_.id},"
                    " which does not have such parts"
                )
            nbytes = length * part.wire.itemsize
        check_size(data, slice_.id, nbytes)
        return tensor_over(data, part.wire) if nbytes else torch.empty(0, dtype=part.wire)

    def check_weight(self, part: PrimarySlice, weight: float) -> None:
        """Raise LinkError if the dtype of the slice cannot represent the weight: torch refuses to
        multiply by such a number."""
        dtype = part.held.aggregate.dtype
        if dtype.is_floating_point and weight > torch.finfo(dtype).max:
            raise LinkError(
                f"the weight of a contribution is {weight}, which {dtype} cannot represent"
            )

    def seed(self, part: PrimarySlice, incoming: torch.Tensor) -> None:
        slot, index = self.slots.at(self._slot), self.index[part.held.slice.id]
        slot.rewrite(index)
        part.held.parameters.copy_(incoming)
        if part.converts:
            slot.tensors[index].copy_(incoming)

    def restore(self, part: PrimarySlice, state: SliceState) -> None:
        """Begin a slice with the state of a checkpoint. The tensors are used as they are, except
        the parameters, which are copied."""
        slot, index = self.slots.at(self._slot), self.index[part.held.slice.id]
        slot.rewrite(index)
        adopt_state(part.held, part.updater, state)
        if part.converts:
            slot.tensors[index].copy_(part.held.parameters)

    def add(self, part: PrimarySlice, incoming: Incoming, message: Contribution) -> None:
        held, updater = part.held, part.updater
        if is_left_out(part, message):
            return
        updater.add(held, incoming, message.weight, message.parts)
        if updater.takes_parts:
            if not held.part_weights:
                return  # no worker has changed a buffer of this slice in this round
            self.changed[held.slice.id].update(held.part_weights)
        held.weight += message.weight
        if message.sequence >= held.clock:
            held.clock, held.rate = message.sequence, message.rate

    # -- for replicas --------------------------------------------------------------------------

    def pieces_of(self, slice_: int, slot: Slot, parts: tuple[int, ...]) -> list[Piece]:
        """The memory of these parts of a slice in a slot."""
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

    def version_of(self, slice_: int) -> SliceState:
        """The state with which another server can become the primary of this slice, or hold a copy
        of it."""
        return self.export(slice_)

    def steps_of(self, slices: Sequence[int]) -> tuple[SliceStep, ...]:
        """The steps that readers of these slices make with the sums that are sent to them."""
        return ()

    def close(self) -> list[Segment]:
        return self.slots.close()


def is_left_out(part: PrimarySlice, message: Contribution) -> bool:
    """Whether this slice has the parameters of one model and the contribution is a step of another.
    Such a contribution does not change the slice."""
    return message.parts is not None and not part.updater.takes_parts


def check_size(data: memoryview, slice_: int, nbytes: int) -> None:
    if len(data) != nbytes:
        raise LinkError(
            f"the peer sent {len(data)} bytes for slice {slice_}, which has {nbytes} bytes"
        )


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
            self.add_kept_of(part, order)

    def add_kept_of(self, part: PrimarySlice, order: Mapping[int, int]) -> None:
        if part.kept:
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
        for key, (updater, slices) in self._updaters.items():
            due = [held for held in slices if held.slice.id in steps]
            self._make(key, updater, due, target, steps)
        if self.grows:
            self.slots.at(fill).rewrite_all()
        for index, part in enumerate(self._parts.values()):
            if part.held.slice.id in steps:
                self._settle(index, part, target, fill)
            else:
                self._carry_over(index, part, target, fill)
        self._slot, self._fill = number, fill

    def _make(
        self,
        model: int,
        updater: Updater,
        due: list[Held],
        target: Slot,
        steps: Mapping[int, SliceStep],
    ) -> None:
        """Make the steps of these slices of one model, or of its buffers."""
        made = [steps[held.slice.id] for held in due]
        updater.fold(due, [self._target(held, target) for held in due], made)

    def _target(self, held: Held, target: Slot) -> torch.Tensor:
        if self._parts[held.slice.id].converts:
            return held.parameters
        return target.tensors[self.index[held.slice.id]]

    def _settle(self, index: int, part: PrimarySlice, target: Slot, fill: int) -> None:
        """Make the new version of a folded slice the current one, and begin an empty aggregate."""
        held = part.held
        self._show(index, part, target)
        if self.grows:
            held.aggregate = self.slots.at(fill).tensors[index]
        elif self._aggregates is not None:
            part.turn = (part.turn + 1) % _AGGREGATES
            opened = self._aggregates.at(part.turn)
            opened.rewrite(index)
            held.aggregate = opened.tensors[index]
        held.empty()

    def _show(self, index: int, part: PrimarySlice, target: Slot) -> None:
        """Make the new version of a slice visible to readers of the slot `target`."""
        if part.converts:
            target.tensors[index].copy_(part.held.parameters)
        else:
            part.held.parameters = target.tensors[index]

    def _carry_over(self, index: int, part: PrimarySlice, target: Slot, fill: int) -> None:
        """Copy a slice that was not folded to the new version. Its present aggregate stays in use
        for contributions, because replicas may still read the other one."""
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

    @property
    def shares_aggregates(self) -> bool:
        """Whether replicas read aggregates in place. If there are no replicas, a slice is copied
        only while it moves. Then there is no second aggregate for contributions that come
        meanwhile."""
        return self._job.replicas > 0

    def aggregate_piece(self, held: Held, number: int) -> Piece:
        """The memory of the aggregate that is about to be folded into the slot `number`. If replicas
        read it in place, it is not overwritten until all of them have confirmed the fold."""
        id_ = held.slice.id
        if self.grows:
            return self.slots.at(number).pieces[self.index[id_]]
        if self._aggregates is None:
            return piece_for_many(held.aggregate.view(torch.uint8).numpy().data)
        return self._aggregates.at(self._parts[id_].turn).pieces[self.index[id_]]

    def close(self) -> list[Segment]:
        aggregates = [] if self._aggregates is None else self._aggregates.close()
        return [*super().close(), *aggregates]


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
        and the replicas must fold; None if the slice has parameters instead of buffers. The change
        is empty if the contribution changes no buffer, or if the slice has the parameters of one
        model and the contribution is a step of another. `members`: the workers among which a full
        step is divided; if there are none, every change counts in full."""
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
        self.latest.on_folded(held.slice.id, number)


class RowsPrimary(RoundsPrimary):
    """The slices of a primary of kind statistics: contributions wait until a fold names them. There
    are no aggregates: the updater keeps the rows of workers."""

    def _open_slots(self) -> None:
        self._fill = 0
        self._aggregates = None
        self._aggregates_in_slots = True

    def hold(self, part: PrimarySlice, incoming: torch.Tensor, message: Contribution) -> None:
        """Keep a contribution until a fold names it. It is copied, because the worker overwrites
        its buffer later."""
        whose = Row(message.worker, message.incarnation, message.sequence)
        part.waiting.hold(whose, incoming.clone())

    def enter(self, held: Held, rows: Sequence[Row]) -> list[Named]:
        """Give the contributions in a fold of these rows to the updater. Returns these
        contributions, except those that do not change the slice."""
        part = self._parts[held.slice.id]
        named = [(row, value) for row, value in part.waiting.take(rows) if len(value)]
        part.updater.enter(held, rows, named)
        if named and self._is_buffers(held.slice):
            self.changed[held.slice.id].update(range(len(held.slice.parts)))
        return named


class SummedPrimary(RoundsPrimary):
    """The slices of a primary with `--optimizer-on workers`: a version is the sum of the gradients of a
    round, and the readers make the step. Slices of the model's buffers are folded as always.

    The parameters and the state of the optimizer are those of the last version that a worker has
    shared; at first, they are the initial ones."""

    def _is_apart(self, slice_: Slice) -> bool:
        return not self._is_buffers(slice_)

    def _begin(self, part: PrimarySlice, state: SliceState, place: torch.Tensor) -> None:
        if not is_sum(state):
            super()._begin(part, state, place)
            return
        part.sum, part.step = place.copy_(state[PARAMETERS]), step_in(state)

    def _make(
        self,
        model: int,
        updater: Updater,
        due: list[Held],
        target: Slot,
        steps: Mapping[int, SliceStep],
    ) -> None:
        if model == BUFFERS:
            super()._make(model, updater, due, target, steps)

    def fold(self, number: int, fill: int, steps: Mapping[int, SliceStep]) -> None:
        for id_, step in steps.items():
            self._parts[id_].step = step
        super().fold(number, fill, steps)

    def _show(self, index: int, part: PrimarySlice, target: Slot) -> None:
        if self._is_buffers(part.held.slice):
            super()._show(index, part, target)
        elif part.step.weight:
            part.sum = target.tensors[index].copy_(part.held.aggregate)
        else:
            part.sum = target.tensors[index]

    def _carry_over(self, index: int, part: PrimarySlice, target: Slot, fill: int) -> None:
        if self._is_buffers(part.held.slice):
            super()._carry_over(index, part, target, fill)
        elif part.sum is not None and part.sum.data_ptr() != target.tensors[index].data_ptr():
            part.sum = target.tensors[index].copy_(part.sum)

    def settle(self, held: Held, *, forwarded: bool) -> None:
        """Divide a sum that is rounded when it is sent, because it might not fit into half
        precision."""
        rounded = self._parts[held.slice.id].wire != held.aggregate.dtype
        super().settle(held, forwarded=forwarded or rounded)

    def version_of(self, slice_: int) -> SliceState:
        part = self._parts[slice_]
        if part.sum is None:
            return self.export(slice_)
        return sum_state(part.sum.to(part.held.parameters.dtype), part.step)

    def steps_of(self, slices: Sequence[int]) -> tuple[SliceStep, ...]:
        steps = tuple(self._parts[slice_].step for slice_ in slices)
        return steps[:1] if len(set(steps)) == 1 else steps

    def early_sum(self, slice_: int) -> Piece:
        """A copy of the sum of a slice before its fold is ordered, in the form in which it is
        sent."""
        part = self._parts[slice_]
        total = part.held.aggregate.to(part.wire)
        return piece_for_many(memoryview(bytes(total.view(torch.uint8).numpy())))

    def has_early(self, slice_: int, round_: int, reader: tuple[int, int]) -> bool:
        """Whether the sum of this round was sent to this worker before the fold was ordered."""
        early, _, readers = self._parts[slice_].early
        return early == round_ and reader in readers

    def adopt(self, slice_: int, state: SliceState) -> None:
        """Use the parameters and the state of a slice that a worker has shared."""
        part = self._parts[slice_]
        adopt_state(part.held, part.updater, state)
