"""The slices that a server is the primary of: their versions in slots, their aggregates, and updaters.

Nothing here is locked: whoever holds the slices does that. When routes give a server other slices,
it holds another one of these.
"""

from collections.abc import Mapping, Sequence

import torch

from polyrhythm.core.placement.slices import Layout, Slice
from polyrhythm.core.server.leases import SliceVersions
from polyrhythm.core.sync.registry import traits_of
from polyrhythm.errors import LinkError
from polyrhythm.io.segments import Piece, Segment
from polyrhythm.runtime.server.replica_memory import SliceState, adopt_state, export_state
from polyrhythm.runtime.server.slots import Allocate, Slot, Slots
from polyrhythm.tensors.buffers import Buffers, Changers, Parts, parts_length
from polyrhythm.tensors.dtypes import DTYPES, tensor_over, wire_dtype
from polyrhythm.tensors.updaters import Held, Optimizer, updaters_for
from polyrhythm.wire.messages import Contribution, JobSpec, ModelSpec, SliceStep

_AGGREGATES = 2
"""While replicas read what was folded, the next aggregate grows."""


class Primary:
    def __init__(
        self,
        slices: Sequence[Slice],
        layout: Layout,
        job: JobSpec,
        spec: ModelSpec,
        allocate: Allocate,
        states: Mapping[int, SliceState],
    ) -> None:
        """Slices of which there is a state begin with it."""
        self.slices: tuple[Slice, ...] = tuple(slices)
        self.ids = tuple(slice_.id for slice_ in slices)
        self.index = {slice_.id: index for index, slice_ in enumerate(slices)}
        dtypes = [DTYPES[layout.spaces[s.space].dtype] for s in slices]
        wires = [wire_dtype(layout.spaces[s.space], job.wire_dtype) for s in slices]
        rounds = traits_of(job.sync).rounds
        self._converts = wires != dtypes
        self._grows = job.updater == "addition" and rounds
        self.slots = Slots(slices, wires, allocate)
        self.nbytes = self.slots.nbytes
        """Of a version, as it travels."""
        self.latest = None if rounds else SliceVersions(self.ids, self.nbytes)
        """Without rounds, the slot of each slice."""
        self._current = self.slots.at(0)
        self._aggregates: list[Slot] = []
        self._turn = 0
        if job.replicas and rounds and not self._grows:  # replicas read them where they lie
            memory = Slots(slices, dtypes, allocate)
            self._aggregates = [memory.at(number) for number in range(_AGGREGATES)]
        self.held = [
            Held(slice_, self._parameters(index, dtype), self._aggregate(index, dtype))
            for index, (slice_, dtype) in enumerate(zip(slices, dtypes, strict=True))
        ]
        self._changers = Changers()
        self.changed: dict[int, set[int]] = {
            s.id: set(range(len(s.parts)) if s.id in states else ())
            for s in self.slices
            if layout.spaces[s.space].buffers
        }
        """Per slice of buffers, the parts that may differ from the seed: of one that came with a state,
        all of them."""
        self._updaters = updaters_for(layout, job, spec, self.held)
        self._updater_of = [
            updater for held in self.held for updater, slices_ in self._updaters if held in slices_
        ]
        for index, held in enumerate(self.held):
            if held.slice.id in states:
                adopt_state(held, self._updater_of[index], states[held.slice.id])
                if self._converts:
                    self._current.tensors[index].copy_(held.parameters)

    def _parameters(self, index: int, dtype: torch.dtype) -> torch.Tensor:
        if self._converts:
            return torch.zeros(self.slices[index].length, dtype=dtype)
        return self._current.tensors[index]

    def _aggregate(self, index: int, dtype: torch.dtype) -> torch.Tensor:
        if self._grows:
            return self.slots.at(1).tensors[index]
        if self._aggregates:
            return self._aggregates[self._turn].tensors[index]
        return torch.zeros(self.slices[index].length, dtype=dtype)

    def incoming(self, index: int, data: memoryview, parts: Parts = None) -> torch.Tensor:
        """A slice as it came, or these parts of it, which has the size that it must have."""
        dtype, nbytes = self.slots.dtypes[index], self.slots.places[index][1]
        if parts is not None:
            length = parts_length(self.slices[index], parts)
            if length is None or not isinstance(self._updater_of[index], Buffers):
                raise LinkError(
                    f"the peer sent parts {list(parts)} of slice {self.ids[index]},"
                    " which does not have them"
                )
            nbytes = length * dtype.itemsize
        check_size(data, self.ids[index], nbytes)
        return tensor_over(data, dtype) if nbytes else torch.empty(0, dtype=dtype)

    def check_weight(self, index: int, weight: float) -> None:
        """Weights multiply elements, and torch refuses a factor that the dtype cannot hold."""
        dtype = self.held[index].aggregate.dtype
        if dtype.is_floating_point and weight > torch.finfo(dtype).max:
            raise LinkError(f"a contribution weighs {weight}, which {dtype} cannot hold")

    def seed(self, index: int, incoming: torch.Tensor) -> None:
        self._current.rewrite(index)
        self.held[index].parameters.copy_(incoming)
        if self._converts:
            self._current.tensors[index].copy_(incoming)

    def add(self, index: int, incoming: torch.Tensor, message: Contribution) -> None:
        held, updater = self.held[index], self._updater_of[index]
        if isinstance(updater, Buffers):
            updater.add_parts(held, incoming, message.weight, message.parts)
            if not held.part_weights:
                return  # no worker has changed a buffer in it
            self.changed[held.slice.id].update(held.part_weights)
        else:
            updater.add(held, incoming, message.weight)
        held.weight += message.weight
        if message.sequence >= held.clock:
            held.clock, held.rate = message.sequence, message.rate

    # -- folds ---------------------------------------------------------------------------------

    def buffer_step(
        self, index: int, data: memoryview, message: Contribution, members: frozenset[int]
    ) -> memoryview | None:
        """Without rounds: add a contribution to a slice of buffers. The step that this makes, for this
        server and its replicas alike; empty if it changed none, None if these are no buffers.
        `members`: the workers that share a step; none: every change counts in full."""
        held, updater = self.held[index], self._updater_of[index]
        if not isinstance(updater, Buffers):
            return None
        self.add(index, self.incoming(index, data, message.parts), message)
        scales = self._changers.scales(held, message.worker, message.parts, members)
        if not held.weight:
            return memoryview(b"")
        updater.settle(held, scales)
        return held.aggregate.view(torch.uint8).numpy().data

    def fold_slice(self, index: int, latest: SliceVersions, step: SliceStep) -> None:
        """Without rounds: what was just added is all there is, and is folded at once."""
        held = self.held[index]
        if not held.weight:
            return  # buffers that stay as they are
        slot = latest.target(held.slice.id)
        self.slots.at(slot).rewrite(index)
        place = self.slots.at(slot).tensors[index]
        target = held.parameters if self._converts else place
        self._updater_of[index].fold([held], [target], [step])
        if self._converts:
            place.copy_(held.parameters)
        else:
            held.parameters = place
        held.empty()
        latest.folded(held.slice.id, slot)

    def fold(self, target: Slot, fill: int, steps: Mapping[int, SliceStep]) -> None:
        """Make these steps, by slice; slices without one are carried over."""
        if not self._grows:  # else it was opened for the contributions that it is the sum of
            target.rewrite_all()
        for updater, slices in self._updaters:
            due = [held for held in slices if held.slice.id in steps]
            made = [steps[held.slice.id] for held in due]
            updater.fold(due, self._targets(due, target), made)
        self._settle(target, fill, steps)
        self._current = target

    def _targets(self, slices: Sequence[Held], target: Slot) -> list[torch.Tensor]:
        if self._converts:
            return [held.parameters for held in slices]
        return [target.tensors[self.index[held.slice.id]] for held in slices]

    def _settle(self, target: Slot, fill: int, steps: Mapping[int, SliceStep]) -> None:
        """Point every slice at its new version, and open empty aggregates."""
        self._turn = (self._turn + 1) % _AGGREGATES
        if self._grows:
            self.slots.at(fill).rewrite_all()
        elif self._aggregates:
            self._aggregates[self._turn].rewrite_all()
        for index, held in enumerate(self.held):
            folded = held.slice.id in steps
            if self._converts:
                target.tensors[index].copy_(held.parameters)
            elif folded:
                held.parameters = target.tensors[index]
            else:
                held.parameters = target.tensors[index].copy_(held.parameters)
            before = held.aggregate
            if self._grows:
                held.aggregate = self.slots.at(fill).tensors[index]
            elif self._aggregates:
                held.aggregate = self._aggregates[self._turn].tensors[index]
            if folded:
                held.empty()
            elif held.weight and held.aggregate is not before:
                held.aggregate.copy_(before)

    # -- for copies ----------------------------------------------------------------------------

    def settle_buffers(self, held: Held) -> None:
        """Make the aggregate of buffers the step that a fold makes, here and on every replica."""
        updater = self._updater_of[self.index[held.slice.id]]
        if isinstance(updater, Buffers):
            updater.settle(held)

    def take_mean(self, held: Held) -> None:
        """Divide the aggregate of an optimizer by its weight before it is forwarded: an optimizer may
        write on gradients that it has to divide, and copiers read them where they lie."""
        if held.weight and isinstance(self._updater_of[self.index[held.slice.id]], Optimizer):
            held.aggregate.div_(held.weight)
            held.weight = 1.0

    def aggregate_piece(self, held: Held, target: Slot) -> Piece:
        """The memory of the aggregate that is about to be folded into `target`. Copiers read it where
        it lies, so it is not written on before all have confirmed."""
        source = target if self._grows else self._aggregates[self._turn]
        return source.pieces[self.index[held.slice.id]]

    def pieces_of(self, slice_: int, slot: Slot, parts: tuple[int, ...]) -> list[Piece]:
        """These parts of a slice, as they lie in a slot."""
        index = self.index[slice_]
        whole, item = slot.pieces[index], self.slots.dtypes[index].itemsize
        ends = [self.slices[index].parts[part] for part in parts]
        return [
            slot.segment.piece(whole.offset + first * item, (end - first) * item)
            for first, end in ends
        ]

    def export(self, slice_: int) -> SliceState:
        index = self.index[slice_]
        return export_state(self.held[index], self._updater_of[index])

    def take_over(self, before: "Primary") -> list[Segment]:
        """Go on with what was added and not folded. The memory that is not needed any more."""
        for held in self.held:
            index = before.index.get(held.slice.id)
            was = None if index is None else before.held[index]
            if was is not None and was.weight:
                held.aggregate.copy_(was.aggregate)
                held.weight, held.rate, held.clock = was.weight, was.rate, was.clock
                held.part_weights = dict(was.part_weights)
        return before.close()

    def close(self) -> list[Segment]:
        aggregates = [slot.segment for slot in self._aggregates]
        for segment in aggregates:
            segment.close()
        return [*self.slots.close(), *aggregates]


def check_size(data: memoryview, slice_: int, nbytes: int) -> None:
    if len(data) != nbytes:
        raise LinkError(f"the peer sent {len(data)} bytes for slice {slice_}, which has {nbytes}")
