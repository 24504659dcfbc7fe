"""What a server holds: its slices' buffers by version, their aggregates, and the ledger.

Everything here may be called by several threads at once. With rounds a slice is added under its own
lock, and a fold holds the locks of all slices, so that what comes late joins the next aggregate
whole. Without, one lock orders the folds of single slices and the leases of their readers.
"""

import math
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack

import torch

from polyrhythm.core.events import Contributed, Repeated, SliceSeeded
from polyrhythm.core.ledger import Ledger, Verdict
from polyrhythm.core.placement.slices import Layout, Slice, lay_out, pack
from polyrhythm.core.sync.choose import has_rounds
from polyrhythm.core.versions import SliceVersions
from polyrhythm.errors import LinkError, NotFinite
from polyrhythm.io.segments import Piece, Segment
from polyrhythm.tensors.dtypes import DTYPES, tensor_over, wire_dtype
from polyrhythm.tensors.finite import all_finite
from polyrhythm.tensors.updaters import Addition, Held, Maximum, Mean, Optimizer, Sum, Updater
from polyrhythm.wire.messages import Contribution, JobSpec, MemberSpec, ModelSpec, Route, Seed

Allocate = Callable[[int], Segment]


class _Slot:
    """One version's memory: a segment with every slice, as it travels."""

    def __init__(
        self, segment: Segment, places: Sequence[tuple[int, int]], wires: Sequence[torch.dtype]
    ) -> None:
        self.segment = segment
        self.whole = segment.piece(0, segment.nbytes)
        self.pieces: list[Piece] = [segment.piece(offset, nbytes) for offset, nbytes in places]
        self.tensors = [
            tensor_over(piece.memory, dtype)
            for piece, dtype in zip(self.pieces, wires, strict=True)
        ]


class Holdings:
    def __init__(
        self,
        server: int,
        spec: ModelSpec,
        routes: Sequence[Route],
        routing: int,
        job: JobSpec,
        allocate: Allocate,
    ) -> None:
        layout = lay_out(spec, job.servers, job.slice_nbytes)
        self.slices: tuple[Slice, ...] = tuple(
            slice_ for slice_ in layout.slices if routes[slice_.id].primary == server
        )
        self._index = {slice_.id: index for index, slice_ in enumerate(self.slices)}
        self._routing = routing
        self._allocate = allocate
        self._wires = [wire_dtype(layout.spaces[s.space], job.wire_dtype) for s in self.slices]
        dtypes = [DTYPES[layout.spaces[s.space].dtype] for s in self.slices]
        self._places, self.nbytes = pack(self.slices, [wire.itemsize for wire in self._wires])
        self._slots: dict[int, _Slot] = {}
        self._slot = 0
        self._converts = self._wires != dtypes
        self._grows = job.updater == "addition" and has_rounds(job.sync)
        first = self._slot_at(0)
        self.held = [
            Held(
                slice_,
                torch.zeros(slice_.length, dtype=dtype) if self._converts else first.tensors[index],
                self._slot_at(1).tensors[index]
                if self._grows
                else torch.zeros(slice_.length, dtype=dtype),
            )
            for index, (slice_, dtype) in enumerate(zip(self.slices, dtypes, strict=True))
        ]
        self._updaters = _updaters(layout, job, spec, self.held)
        self._updater_of = [
            updater for held in self.held for updater, slices in self._updaters if held in slices
        ]
        self.ledger = Ledger()
        self._ledger_lock = threading.Lock()
        self._latest: SliceVersions | None = None
        if not has_rounds(job.sync):
            self._latest = SliceVersions([slice_.id for slice_ in self.slices])
        self._fold_lock = threading.Lock()
        self._frozen = False
        self._scales = job.async_scale == "members"
        self._scale = 1.0

    def _slot_at(self, number: int) -> _Slot:
        slot = self._slots.get(number)
        if slot is None:
            slot = _Slot(self._allocate(self.nbytes), self._places, self._wires)
            self._slots[number] = slot
        return slot

    def enlist(self, members: Sequence[MemberSpec]) -> None:
        with self._ledger_lock:
            self.ledger.enlist({member.worker: member.incarnation for member in members})
            if self._scales:
                self._scale = 1 / max(1, len(members))

    def _find(self, slice_: int, data: memoryview) -> tuple[int, Held]:
        index = self._index.get(slice_)
        if index is None:
            raise LinkError(f"the peer sent slice {slice_}, which is not held here")
        held = self.held[index]
        if len(data) != self._places[index][1]:
            raise LinkError(
                f"the peer sent {len(data)} bytes for slice {slice_},"
                f" which has {self._places[index][1]}"
            )
        return index, held

    def seed(self, message: Seed, data: memoryview) -> SliceSeeded | None:
        """Take the initial parameters of one slice; None for those of a seeder that is gone."""
        if message.routing != self._routing:
            return None
        index, held = self._find(message.slice, data)
        incoming = tensor_over(data, self._wires[index])
        with held.lock:
            held.parameters.copy_(incoming)
            if self._converts:
                self._slot_at(self._slot).tensors[index].copy_(incoming)
        return SliceSeeded(message.slice, message.routing)

    def add(
        self, message: Contribution, data: memoryview, *, verify: bool = True
    ) -> Contributed | Repeated | None:
        """Add one slice of a contribution; an event once that made it complete here. `verify`:
        refuse NaN and infinity, where the sender cannot change its mind after the check."""
        index, held = self._find(message.slice, data)
        if not 0 < message.weight < math.inf:
            raise LinkError(f"a contribution weighs {message.weight}: it must be a positive number")
        incoming = tensor_over(data, self._wires[index])
        worker, incarnation, sequence = message.worker, message.incarnation, message.sequence
        with held.lock if self._latest is None else self._fold_lock:
            if self._frozen:
                return None
            with self._ledger_lock:
                verdict = self.ledger.judge(worker, incarnation, sequence, message.slice)
            if verdict is Verdict.STRANGER:
                return None  # it was evicted, or is not let in yet: it will be told
            if verdict is Verdict.REPEATED:
                return Repeated(worker, incarnation, sequence)
            if verify and not all_finite(incoming):
                raise NotFinite(f"w{worker} sent NaN or infinity in slice {message.slice}")
            self._updater_of[index].add(held, incoming, message.weight)
            held.weight += message.weight
            if sequence >= held.clock:
                held.clock, held.rate = sequence, message.rate
            if self._latest is not None:
                self._fold_slice(self._latest, index, held)
            with self._ledger_lock:
                round_ = self.ledger.add(
                    worker, incarnation, sequence, message.slice, message.slices
                )
        if round_ is None:
            return None
        return Contributed(worker, incarnation, sequence, round_)

    def _fold_slice(self, latest: SliceVersions, index: int, held: Held) -> None:
        """Without rounds: what was just added is all there is, and is folded at once."""
        slot = latest.target(held.slice.id)
        place = self._slot_at(slot).tensors[index]
        target = held.parameters if self._converts else place
        self._updater_of[index].fold([held], [target], self._scale)
        if self._converts:
            place.copy_(held.parameters)
        else:
            held.parameters = place
        held.weight, held.rate, held.clock = 0.0, None, -1
        latest.folded(held.slice.id, slot)

    def lease(self, worker: int, ticket: int) -> list[int]:
        """Without rounds: the slot of each slice as it is now, leased to this worker."""
        assert self._latest is not None
        with self._fold_lock:
            return list(self._latest.lease(worker, ticket))

    def unlease(self, worker: int, ticket: int | None) -> list[Segment]:
        """This worker has read what it got with `ticket`; the memory that is surplus now."""
        assert self._latest is not None
        with self._fold_lock:
            self._latest.release(worker, ticket)
            return self.free(self._latest.surplus())

    def free(self, slots: Sequence[int]) -> list[Segment]:
        """These slots are not needed: their memory, for links to withdraw."""
        freed = [slot.segment for n in slots if (slot := self._slots.pop(n, None)) is not None]
        for segment in freed:
            segment.close()
        return freed

    def freeze(self) -> None:
        with self._fold_lock:
            self._frozen = True

    def fold(self, round_: int, slot: int, fill: int) -> float:
        """Fold every aggregate into `slot`; the largest weight folded."""
        target = self._slot_at(slot)
        with ExitStack() as locks:
            for held in self.held:
                locks.enter_context(held.lock)
            weight = max((held.weight for held in self.held), default=0.0)
            for updater, slices in self._updaters:
                updater.fold(slices, self._targets(slices, target))
            self._settle(target, fill)
            with self._ledger_lock:
                self.ledger.close(round_)
            self._slot = slot
        return weight

    def _targets(self, slices: Sequence[Held], target: _Slot) -> list[torch.Tensor]:
        if self._converts:
            return [held.parameters for held in slices]
        return [target.tensors[self._index[held.slice.id]] for held in slices]

    def _settle(self, target: _Slot, fill: int) -> None:
        """Point every slice at its new version, and open empty aggregates."""
        for index, held in enumerate(self.held):
            if self._converts:
                target.tensors[index].copy_(held.parameters)
            else:
                held.parameters = target.tensors[index]
            if self._grows:
                held.aggregate = self._slot_at(fill).tensors[index]
            held.weight, held.rate, held.clock = 0.0, None, -1

    def piece(self, index: int, slot: int) -> Piece:
        """One slice of a version, for links that carry bytes."""
        return self._slot_at(slot).pieces[index]

    def whole(self, slot: int) -> Piece:
        """A version as one piece, for links that carry references."""
        return self._slot_at(slot).whole

    def close(self) -> None:
        for slot in self._slots.values():
            slot.segment.close()


def _updaters(
    layout: Layout, job: JobSpec, spec: ModelSpec, held: Sequence[Held]
) -> list[tuple[Updater, list[Held]]]:
    """Which updater folds which slices: by what they are and by the job's kind."""
    parameters = [h for h in held if not layout.spaces[h.slice.space].buffers]
    buffers = [h for h in held if layout.spaces[h.slice.space].buffers]
    floats = [h for h in buffers if h.parameters.is_floating_point()]
    integers = [h for h in buffers if not h.parameters.is_floating_point()]
    main: Updater
    if job.updater == "addition":
        main = Addition() if has_rounds(job.sync) else Sum()
    elif job.kind == "gradient" and parameters:
        main = Optimizer(spec.optimizer, parameters)
    else:
        main = Mean()
    found: list[tuple[Updater, list[Held]]] = [
        (main, parameters),
        (Mean(), floats),
        (Maximum(), integers),
    ]
    return [(updater, slices) for updater, slices in found if slices]
