"""What a server holds: its slices' buffers by version, their aggregates, copies of others' slices, and
the ledger.

Everything here may be called by several threads at once. With rounds a slice is added under its own
lock, and a fold holds the locks of all slices, so that what comes late joins the next aggregate
whole. Without, one lock orders the folds of single slices and the leases of their readers. A change
of routes holds all locks, and what a slice is here is looked up under its lock.
"""

import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TypeVar

import torch

from polyrhythm.core.events import (
    Contributed,
    Repeated,
    Rerouted,
    SliceSeeded,
    StateAdopted,
    StepCopied,
)
from polyrhythm.core.ledger import Ledger, Verdict
from polyrhythm.core.machine import Event
from polyrhythm.core.placement.slices import Slice, lay_out, pack
from polyrhythm.core.sync.choose import has_rounds
from polyrhythm.core.versions import SliceVersions
from polyrhythm.errors import LinkError, NotFinite
from polyrhythm.io.link import Sendable
from polyrhythm.io.segments import Piece, Segment
from polyrhythm.runtime.copies import Copies, SliceState, adopt_state, export_state
from polyrhythm.tensors.dtypes import DTYPES, tensor_over, wire_dtype
from polyrhythm.tensors.finite import all_finite
from polyrhythm.tensors.updaters import Held, Optimizer, updaters_for
from polyrhythm.wire.messages import (
    Contribution,
    Copy,
    Fetch,
    JobSpec,
    MemberSpec,
    Message,
    ModelSpec,
    Route,
    Row,
    Seed,
    Stamp,
    State,
)

Allocate = Callable[[int], Segment]
Tell = Callable[[int, Message, Sequence[Sendable]], None]
Put = Callable[[Event], None]
_Told = TypeVar("_Told", bound=Event)
_FOLD = -1
"""In place of a worker's number, in a step that is the fold of a round."""
_AGGREGATES = 2
"""While replicas read what was folded, the next aggregate grows."""


class _Slot:
    """One version's memory: a segment with every slice, as it travels."""

    def __init__(
        self, segment: Segment, places: Sequence[tuple[int, int]], dtypes: Sequence[torch.dtype]
    ) -> None:
        self.segment = segment
        self.whole = segment.piece(0, segment.nbytes)
        self.pieces: list[Piece] = [segment.piece(offset, nbytes) for offset, nbytes in places]
        self.tensors = [
            tensor_over(piece.memory, dtype)
            for piece, dtype in zip(self.pieces, dtypes, strict=True)
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
        *,
        tell: Tell | None = None,
        put: Put = lambda event: None,
        fresh: bool = True,
    ) -> None:
        """`tell` sends a step or a state to another server. `put` is handed what happened, under the
        locks under which it did: so nothing that was true by the old routes is told after the new
        ones. `fresh`: what is routed here will be seeded, and so will its copies elsewhere."""
        self._server = server
        self._spec = spec
        self._job = job
        self._layout = lay_out(spec, job.servers, job.slice_nbytes)
        self._routing = routing
        self._routes = routes
        self._allocate = allocate
        self._tell = tell
        self._put = put
        self._copying = job.replicas > 0
        self._rounds = has_rounds(job.sync)
        self._grows = job.updater == "addition" and self._rounds
        self._locks = [threading.Lock() for _ in self._layout.slices]
        self._fold_lock = threading.Lock()
        self._ledger_lock = threading.Lock()
        self._copies_lock = threading.Lock()
        self._frozen = False
        self._scales = job.async_scale == "members"
        self._scale = 1.0
        kept = self._kept(routes)
        mine = [s for s in self._layout.slices if routes[s.id].primary == server]
        self.ledger = Ledger((s.id for s in mine), copying=self._copying, rounds=self._rounds)
        if self._copying:
            (self.ledger.begin if fresh else self.ledger.reroute)(server, kept, routing)
        self._parts: dict[tuple[int, int, int], SliceState] = {}
        self._copies = Copies(self._layout, job, spec, grows=self._grows)
        self._copies.hold(kept.keys() - {s.id for s in mine}, {})
        self._hold(mine, {})

    def _kept(self, routes: Sequence[Route]) -> dict[int, Route]:
        return {s: route for s, route in enumerate(routes) if self._server in route.keepers}

    def _hold(self, slices: Sequence[Slice], states: Mapping[int, SliceState]) -> None:
        """Be the primary of these: memory for versions and aggregates, and an updater."""
        layout, job = self._layout, self._job
        self.slices: tuple[Slice, ...] = tuple(slices)
        self.ids = tuple(slice_.id for slice_ in slices)
        self._index = {slice_.id: index for index, slice_ in enumerate(slices)}
        self._wires = [wire_dtype(layout.spaces[s.space], job.wire_dtype) for s in slices]
        dtypes = [DTYPES[layout.spaces[s.space].dtype] for s in slices]
        self._places, self.nbytes = pack(slices, [wire.itemsize for wire in self._wires])
        self._slots: dict[int, _Slot] = {}
        self._slot = 0
        self._converts = self._wires != dtypes
        self._aggregates = self._make_aggregates(slices, dtypes)
        self._turn = 0
        first = self._slot_at(0)
        self.held = [
            Held(
                slice_,
                torch.zeros(slice_.length, dtype=dtype) if self._converts else first.tensors[index],
                self._aggregate_of(index, dtype),
                lock=self._locks[slice_.id],
            )
            for index, (slice_, dtype) in enumerate(zip(slices, dtypes, strict=True))
        ]
        self._updaters = updaters_for(layout, job, self._spec, self.held)
        self._updater_of = [
            updater for held in self.held for updater, slices_ in self._updaters if held in slices_
        ]
        for index, held in enumerate(self.held):
            if held.slice.id in states:
                adopt_state(held, self._updater_of[index], states[held.slice.id])
                if self._converts:
                    first.tensors[index].copy_(held.parameters)
        self._latest = None if self._rounds else SliceVersions(self.ids, self.nbytes)

    def _make_aggregates(
        self, slices: Sequence[Slice], dtypes: Sequence[torch.dtype]
    ) -> list[_Slot]:
        """With rounds and replicas, which read them where they lie."""
        if not self._copying or not self._rounds or self._grows:
            return []
        places, nbytes = pack(slices, [dtype.itemsize for dtype in dtypes])
        return [_Slot(self._allocate(nbytes), places, dtypes) for _ in range(_AGGREGATES)]

    def _aggregate_of(self, index: int, dtype: torch.dtype) -> torch.Tensor:
        if self._grows:
            return self._slot_at(1).tensors[index]
        if self._aggregates:
            return self._aggregates[self._turn].tensors[index]
        return torch.zeros(self.slices[index].length, dtype=dtype)

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

    def seed(self, message: Seed, data: memoryview) -> SliceSeeded | None:
        """Take the initial parameters of one slice; None for those of a seeder that is gone."""
        if message.routing != self._routing:
            return None
        if message.slice in self._copies:
            _check_size(data, message.slice, self._copies.nbytes(message.slice))
            with self._copies_lock:
                incoming = tensor_over(data, self._copies.wire(message.slice))
                self._copies.seed(message.slice, incoming)
            return SliceSeeded(message.slice, message.routing)
        index = self._index.get(message.slice)
        if index is None:
            raise LinkError(f"the peer sent slice {message.slice}, which is not held here")
        _check_size(data, message.slice, self._places[index][1])
        held, incoming = self.held[index], tensor_over(data, self._wires[index])
        with held.lock:
            held.parameters.copy_(incoming)
            if self._converts:
                self._slot_at(self._slot).tensors[index].copy_(incoming)
        return SliceSeeded(message.slice, message.routing)

    # -- contributions -------------------------------------------------------------------------

    def add(
        self, message: Contribution, data: memoryview, *, verify: bool = True
    ) -> Contributed | Repeated | None:
        """Add one slice of a contribution; an event once that made it complete here. `verify`:
        refuse NaN and infinity, where the sender cannot change its mind after the check."""
        if not 0 < message.weight < math.inf:
            raise LinkError(f"a contribution weighs {message.weight}: it must be a positive number")
        worker, incarnation, sequence = message.worker, message.incarnation, message.sequence
        with self._primary_of(message) as found:
            if found is None or self._frozen:
                return None
            index, held = found
            _check_size(data, message.slice, self._places[index][1])
            incoming = tensor_over(data, self._wires[index])
            with self._ledger_lock:
                verdict = self.ledger.judge(worker, incarnation, sequence, message.slice)
            if verdict is Verdict.STRANGER:
                return None  # it was evicted, or is not let in yet: it will be told
            if verdict is Verdict.REPEATED:
                return self._said(Repeated(worker, incarnation, sequence))
            if verify and not all_finite(incoming):
                raise NotFinite(f"w{worker} sent NaN or infinity in slice {message.slice}")
            self._updater_of[index].add(held, incoming, message.weight)
            held.weight += message.weight
            if sequence >= held.clock:
                held.clock, held.rate = sequence, message.rate
            if self._latest is not None:
                if self._copying:
                    self._forward(message, data)
                self._fold_slice(self._latest, index, held)
            with self._ledger_lock:
                round_ = self.ledger.add(
                    worker, incarnation, sequence, message.slice, message.slices
                )
            if round_ is None:
                return None
            return self._said(Contributed(worker, incarnation, sequence, round_))

    def _said(self, event: _Told) -> _Told:
        self._put(event)
        return event

    @contextmanager
    def _primary_of(self, message: Contribution) -> Iterator[tuple[int, Held] | None]:
        """The slice, locked; None if this server was its primary by routes that are no more."""
        lock = self._fold_lock
        if self._rounds and 0 <= message.slice < len(self._locks):
            lock = self._locks[message.slice]
        with lock:
            index = self._index.get(message.slice)
            if index is not None:
                yield index, self.held[index]
            elif message.routing >= self._routing:
                raise LinkError(f"the peer sent slice {message.slice}, which is not held here")
            else:
                yield None

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

    # -- readers -------------------------------------------------------------------------------

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

    def piece(self, index: int, slot: int) -> Piece:
        """One slice of a version, for links that carry bytes."""
        return self._slot_at(slot).pieces[index]

    def whole(self, slot: int) -> Piece:
        """A version as one piece, for links that carry references."""
        return self._slot_at(slot).whole

    # -- folds ---------------------------------------------------------------------------------

    def fold(self, round_: int, slot: int, fill: int) -> float:
        """Fold every aggregate into `slot`; the largest weight folded. A slice that was folded in
        this round by the primary before is only carried over."""
        target = self._slot_at(slot)
        with ExitStack() as locks:
            for held in self.held:
                locks.enter_context(held.lock)
            weight = max((held.weight for held in self.held), default=0.0)
            behind = self._behind(round_)
            with self._ledger_lock:
                self.ledger.close(round_)
            if self._copying:
                for held in behind:
                    self._copy_fold(held, target)
            for updater, slices in self._updaters:
                due = [held for held in slices if held in behind] if self._copying else slices
                updater.fold(due, self._targets(due, target))
            self._settle(target, fill, behind)
            self._slot = slot
        return weight

    def _behind(self, round_: int) -> Sequence[Held]:
        if not self._copying:
            return self.held
        with self._ledger_lock:
            return [held for held in self.held if self.ledger.number(held.slice.id) < round_]

    def _targets(self, slices: Sequence[Held], target: _Slot) -> list[torch.Tensor]:
        if self._converts:
            return [held.parameters for held in slices]
        return [target.tensors[self._index[held.slice.id]] for held in slices]

    def _settle(self, target: _Slot, fill: int, behind: Sequence[Held]) -> None:
        """Point every slice at its new version, and open empty aggregates."""
        self._turn = (self._turn + 1) % _AGGREGATES
        whole = len(behind) == len(self.held)
        for index, held in enumerate(self.held):
            folded = whole or held in behind
            if self._converts:
                target.tensors[index].copy_(held.parameters)
            elif folded:
                held.parameters = target.tensors[index]
            else:
                held.parameters = target.tensors[index].copy_(held.parameters)
            before = held.aggregate
            if self._grows:
                held.aggregate = self._slot_at(fill).tensors[index]
            elif self._aggregates:
                held.aggregate = self._aggregates[self._turn].tensors[index]
            if folded:
                held.weight, held.rate, held.clock = 0.0, None, -1
            elif held.weight and held.aggregate is not before:
                held.aggregate.copy_(before)

    # -- copies on other servers ---------------------------------------------------------------

    def _copy_fold(self, held: Held, target: _Slot) -> None:
        """Let every copier fold what is about to be folded here. It reads it where it lies, so it is
        not written on before all have confirmed."""
        index = self._index[held.slice.id]
        if held.weight and isinstance(self._updater_of[index], Optimizer):
            held.aggregate.div_(held.weight)
            held.weight = 1.0
        source = target if self._grows else self._aggregates[self._turn]
        piece = source.pieces[index]
        with self._ledger_lock:
            stamp = self.ledger.stamp(held.slice.id)
            rows = self.ledger.folded_rows(held.slice.id)
            copiers = sorted(self.ledger.copiers(held.slice.id))
        copy = Copy(
            routing=self._routing,
            server=self._server,
            slice=held.slice.id,
            weight=held.weight,
            stamp=stamp,
            rate=held.rate or 0.0,
            rows=rows,
        )
        for peer in copiers:
            self._send_copy(peer, copy, piece if held.weight else None)

    def _send_copy(self, peer: int, copy: Copy, piece: Piece | None) -> None:
        assert self._tell is not None
        if piece is None:
            self._tell(peer, copy, ())
        elif peer in self._routes[copy.slice].learners:  # which is not waited for
            self._tell(peer, copy, (memoryview(bytes(piece.memory)),))
        else:
            self._tell(peer, copy, (piece,))

    def _forward(self, message: Contribution, data: memoryview) -> None:
        """Without rounds: let every copier fold the contribution too."""
        with self._ledger_lock:
            stamp = self.ledger.next_step(message.slice)
            copiers = sorted(self.ledger.copiers(message.slice))
        assert self._tell is not None
        payload = memoryview(bytes(data)) if copiers else memoryview(b"")
        copy = Copy(
            routing=self._routing,
            server=self._server,
            worker=message.worker,
            incarnation=message.incarnation,
            sequence=message.sequence,
            slice=message.slice,
            weight=message.weight,
            stamp=stamp,
            rate=message.rate,
            scale=self._scale,
            rows=(Row(message.worker, message.incarnation, message.sequence),),
        )
        for peer in copiers:
            self._tell(peer, copy, (payload,))

    def send_state(self, to: int, asked: Sequence[Stamp], routing: int) -> None:
        """Send the state of what `to` is to copy; every later step goes to it too. Not while a
        round is folded."""
        assert self._tell is not None
        with self._all_locked():
            ids = [stamp.slice for stamp in asked if stamp.slice in self._index]
            with self._ledger_lock:
                same = self.ledger.teach(to, ids, asked)
            for id_ in ids:
                index = self._index[id_]
                state = export_state(self.held[index], self._updater_of[index])
                parts = {} if same[id_] else state
                with self._ledger_lock:
                    stamp, rows = self.ledger.stamp(id_), self.ledger.folded_rows(id_)
                head = State(
                    routing=routing,
                    server=self._server,
                    slice=id_,
                    slices=len(ids),
                    stamp=stamp,
                    rows=rows,
                    parts=len(parts),
                )
                for message, payload in _state_frames(head, parts):
                    self._tell(to, message, payload)

    # -- copies of other servers' slices -------------------------------------------------------

    def copy(self, message: Copy, data: memoryview | None) -> StepCopied | None:
        """Make a step that a primary made; an event once that is made in all that is copied."""
        with self._copies_lock:
            with self._ledger_lock:
                if not self.ledger.heeds(message.server, message.slice):
                    return None  # it is not the primary, or not yet copied: it does not count
                new = self.ledger.may_copy(message.server, message.stamp)
            if new:
                self._copies.step(message, data)
            step = Row(message.worker, message.incarnation, message.sequence)
            if message.worker == _FOLD:
                step = Row(_FOLD, 0, message.stamp.number)
            with self._ledger_lock:
                if new:
                    self.ledger.copied(message.stamp, message.rows)
                made = self.ledger.made(message.server, (step,))
            return self._said(StepCopied(message.server, made)) if made else None

    def fetch(self, slices: Sequence[int], routing: int) -> Fetch:
        with self._ledger_lock:
            held = tuple(self.ledger.stamp(slice_) for slice_ in slices)
        return Fetch(routing=routing, server=self._server, held=held)

    def adopt(self, message: State, data: memoryview | None) -> StateAdopted | None:
        """Take one tensor of a slice's state, unless routes have changed since it was asked for; an
        event once all that is copied from its primary is."""
        primary, slice_ = message.server, message.slice
        with self._copies_lock:
            whole = (primary, message.routing, slice_)
            if data is not None:
                state = self._parts.setdefault(whole, {})
                tensor = tensor_over(data, DTYPES[message.dtype]).clone()
                state[message.name] = tensor.reshape(message.shape)
                if len(state) < message.parts:
                    return None
            state = self._parts.pop(whole, {})
            with self._ledger_lock:  # it may have been asked for under routes that are no more
                awaited = self.ledger.awaits(primary, slice_, message.routing)
            if awaited and state:
                self._copies.adopt(slice_, state)
            with self._ledger_lock:
                if awaited:
                    self.ledger.adopt(message.stamp, message.rows)
                if not self.ledger.adopted(primary):
                    return None
                made = self.ledger.made_all(primary)
            return self._said(StateAdopted(primary, message.routing, made))

    # -- routes change -------------------------------------------------------------------------

    @contextmanager
    def _all_locked(self) -> Iterator[None]:
        with ExitStack() as locks:
            locks.enter_context(self._copies_lock)
            locks.enter_context(self._fold_lock)
            for lock in self._locks:  # those too that this server is only about to hold
                locks.enter_context(lock)
            yield

    def reroute(self, routes: Sequence[Route], routing: int) -> tuple[Rerouted, list[Segment]]:
        """Be the primary, a copy or nobody of each slice, as these routes say. What was added and
        not folded stays where the primary does. Also the memory that readers need no more."""
        kept = self._kept(routes)
        mine = tuple(s for s in self._layout.slices if routes[s.id].primary == self._server)
        old: list[Segment] = []
        with self._all_locked():
            with self._ledger_lock:
                self.ledger.reroute(self._server, kept, routing)
            self._routing, self._routes = routing, routes
            states: dict[int, SliceState] = {}
            if mine != self.slices:
                states = self._states(kept)
                old = self._move(mine, states)
            self._copies.hold(kept.keys() - {s.id for s in mine}, states)
            with self._ledger_lock:
                version, rows = self.ledger.least()
                made = self.ledger.made_of_all()
            return self._said(Rerouted(routing, version, rows, made, self.ledger.round)), old

    def _states(self, kept: Mapping[int, Route]) -> dict[int, SliceState]:
        states = {
            held.slice.id: export_state(held, self._updater_of[index])
            for index, held in enumerate(self.held)
            if held.slice.id in kept
        }
        return states | {id_: self._copies.export(id_) for id_ in kept if id_ in self._copies}

    def _move(self, mine: Sequence[Slice], states: Mapping[int, SliceState]) -> list[Segment]:
        """Other slices than before, in memory of their own."""
        before = {held.slice.id: held for held in self.held}
        old = [slot.segment for slot in (*self._slots.values(), *self._aggregates)]
        self._hold(mine, states)
        for held in self.held:
            was = before.get(held.slice.id)
            if was is not None and was.weight:
                held.aggregate.copy_(was.aggregate)
                held.weight, held.rate, held.clock = was.weight, was.rate, was.clock
        for segment in old:
            segment.close()
        return old

    def close(self) -> None:
        for slot in (*self._slots.values(), *self._aggregates):
            slot.segment.close()


def _check_size(data: memoryview, slice_: int, nbytes: int) -> None:
    if len(data) != nbytes:
        raise LinkError(f"the peer sent {len(data)} bytes for slice {slice_}, which has {nbytes}")


def _state_frames(head: State, parts: SliceState) -> Iterator[tuple[State, Sequence[memoryview]]]:
    if not parts:
        yield head, ()
    names = {dtype: name for name, dtype in DTYPES.items()}
    for number, (name, tensor) in enumerate(parts.items()):
        message = State(
            routing=head.routing,
            server=head.server,
            slice=head.slice,
            slices=head.slices,
            stamp=head.stamp,
            rows=head.rows,
            name=name,
            dtype=names[tensor.dtype],
            shape=tuple(tensor.shape),
            part=number,
            parts=len(parts),
        )
        flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
        yield message, (memoryview(bytes(flat.numpy())),)
