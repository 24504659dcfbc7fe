"""The slice store of a server: the slices whose primary it is, its replicas of other slices, and
the ledger.

Several threads may call all methods at once. Every slice has a lock. A thread holds it while it
adds to the slice, copies or sends it, or changes its role between primary and replica. *A change of
routes locks the slices that move and no others.* With rounds, a fold holds the locks of all slices,
so that all slices of a late contribution are added to the next round. Without rounds, the fold lock
puts the folds of single slices and the leases of their readers in one order. Locks are taken in
this order: slices by number, the fold lock, the ledger's lock.
"""

import math
import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TypeVar

import torch

from polyrhythm.core.events import Contributed, Repeated, Rerouted, SliceSeeded
from polyrhythm.core.machine import Event
from polyrhythm.core.placement.slices import Slice, lay_out
from polyrhythm.core.server import ledger as ledger_events
from polyrhythm.core.server.ledger import REPEATED, STRANGER, Ledger
from polyrhythm.core.server.stepping import Stepping
from polyrhythm.core.values import name_order
from polyrhythm.errors import InvariantBroken, LinkError, NotFinite
from polyrhythm.io.segments import Segment
from polyrhythm.runtime.server.locks import SliceLocks
from polyrhythm.runtime.server.primary import Primary, PrimarySlice
from polyrhythm.runtime.server.replica_apply import Put, ReplicaApply
from polyrhythm.runtime.server.replica_memory import PARAMETERS, ReplicaMemory, SliceState
from polyrhythm.runtime.server.replica_send import ReplicaSender, Tell
from polyrhythm.runtime.server.slots import Allocate
from polyrhythm.tensors.buffers import pieces_of
from polyrhythm.tensors.dtypes import DTYPES
from polyrhythm.tensors.finite import all_finite
from polyrhythm.tensors.rows import Incoming, numbers_in
from polyrhythm.wire.messages import (
    LEAST_WEIGHT,
    Contribution,
    JobSpec,
    MemberSpec,
    ModelSpec,
    Route,
    Row,
    Seed,
    Stamp,
)

_Told = TypeVar("_Told", bound=Event)


class SliceStore:
    """The common part of the two slice stores; `store_modes.choose_slice_store` chooses one for a
    job."""

    _ledger_type: type[Ledger]
    _primary_type: type[Primary]

    def __init__(
        self,
        server: int,
        spec: ModelSpec,
        routes: Sequence[Route],
        routing: int,
        job: JobSpec,
        allocate: Allocate,
        *,
        tell: Tell = lambda server, message, payload: None,
        put: Put = lambda event: None,
        fresh: bool = True,
    ) -> None:
        """`tell` sends a step or a state to another server. `put` is called with every event, under
        the ledger's lock. `fresh`: the slices have no values yet; this server and the replicas will
        get the initial parameters."""
        self._server = server
        self._job = job
        self._layout = lay_out(spec, job.servers, job.slice_nbytes)
        self._routing = routing
        self.routes = routes
        self._put = put
        self._replicated = job.replicas > 0
        self._locks = SliceLocks(len(self._layout.slices))
        self._fold_lock = threading.Lock()
        self._ledger_lock = threading.Lock()
        self._frozen = False
        self._stepping = Stepping(job, spec)
        self._order: dict[int, int] = {}
        """The position of each worker in the order of their names."""
        self._sharers: frozenset[int] = frozenset()
        """Without rounds: the workers among which a full step is divided."""
        kept = ledger_events.kept_by(server, routes)
        mine = self._mine(routes)
        self.ledger = self._ledger_type((s.id for s in mine), replicated=self._replicated)
        if self._replicated:
            (self.ledger.begin if fresh else self.ledger.reroute)(server, kept, routing)
        self.primary = self._primary_type(mine, self._layout, job, spec, allocate)
        memory = ReplicaMemory(self._layout, job, spec, grows=self.primary.grows)
        memory.hold(kept.keys() - {s.id for s in mine}, {})
        self.follower = ReplicaApply(
            server, memory, self.ledger, self._ledger_lock, self._locks, put
        )
        if fresh:
            self.ledger.await_seeds(kept)
        self._replica_sender = ReplicaSender(server, self.ledger, self._ledger_lock, tell)

    def _mine(self, routes: Sequence[Route]) -> tuple[Slice, ...]:
        return tuple(s for s in self._layout.slices if routes[s.id].primary == self._server)

    def enlist(self, members: Sequence[MemberSpec]) -> None:
        with self._ledger_lock:
            self.ledger.enlist({member.worker: member.incarnation for member in members})
            self._stepping.enlist(len(members))
            by_name = sorted(members, key=lambda member: name_order(member.name))
            self._order = {member.worker: at for at, member in enumerate(by_name)}
            if self._job.async_scale != "none":
                self._sharers = frozenset(member.worker for member in members)

    def seed(self, message: Seed, data: memoryview) -> SliceSeeded | None:
        """Take the initial parameters of one slice, once. Returns None, and ignores them, if they
        come from a worker that was to send them under earlier routes. *Once training has begun, no
        worker can overwrite parameters: its seed is refused.*"""
        if message.routing < self._routing:
            return None
        with self._ledger_lock:
            unseeded, opened = self.ledger.may_seed(message.slice), self.ledger.opened
        if opened and not unseeded:
            raise LinkError(f"w{message.worker} sent initial parameters after training had begun")
        if message.routing != self._routing:
            return None
        here = message.slice in self.follower.replicas or self.primary.find(message.slice)
        if here and not unseeded:
            return None  # ignore a seed for a slice that has its initial parameters
        event = self._seed(message, data)
        with self._ledger_lock:
            self.ledger.seeded(message.slice)
        return event

    def _seed(self, message: Seed, data: memoryview) -> SliceSeeded:
        if message.slice in self.follower.replicas:
            return self.follower.seed(message, data)
        part = self.primary.find(message.slice)
        if part is None:
            raise LinkError(f"the peer sent slice {message.slice}, which is not held here")
        incoming = self.primary.incoming(part, data)
        with self._locks.of(message.slice):
            self.primary.seed(part, incoming)
        return SliceSeeded(message.slice, message.routing)

    # -- checkpoints ---------------------------------------------------------------------------

    def copied(self) -> tuple[dict[int, SliceState], int]:
        """Copy every slice whose primary this server is, with the state of its updater. Also
        returns the number of contributions that are folded into some of these slices but not into
        all. While this runs, the machine lets no fold begin, but contributions may be added."""
        copies = {}
        for id_ in self.primary.ids:
            with self._lock(id_):
                state = self.primary.export(id_)
                copies[id_] = {**state, PARAMETERS: state[PARAMETERS].clone()}
        with self._ledger_lock:
            return copies, self.ledger.torn

    @property
    def kept(self) -> list[Slice]:
        """The slices of which this server is the primary or a replica."""
        kept = {*self.primary.ids, *self.follower.replicas.ids}
        return [slice_ for slice_ in self._layout.slices if slice_.id in kept]

    def restore(self, slice_: int, state: Mapping[str, torch.Tensor]) -> None:
        """Begin a slice with this state, which was read from a checkpoint."""
        mine = {name: value.clone() for name, value in state.items() if name != PARAMETERS}
        mine[PARAMETERS] = state[PARAMETERS]
        with self._locks.of(slice_):
            part = self.primary.find(slice_)
            if part is not None:
                self.primary.restore(part, mine)
            else:
                self.follower.replicas.adopt(slice_, mine)
        with self._ledger_lock:
            self.ledger.seeded(slice_)

    # -- contributions -------------------------------------------------------------------------

    def add(
        self, message: Contribution, data: memoryview, *, verify: bool = True
    ) -> Contributed | Repeated | None:
        """Add one slice of a contribution. Returns an event if all slices of the contribution that
        this server gets are added now, or if the slice was sent before. `verify`: refuse NaN and
        infinity. This makes sense only if the sender cannot change `data` after the check."""
        if not LEAST_WEIGHT <= message.weight < math.inf:
            raise LinkError(
                f"a contribution weighs {message.weight}: it must be a positive number, and at"
                f" least {LEAST_WEIGHT}"
            )
        worker, incarnation, sequence = message.worker, message.incarnation, message.sequence
        with self._lock(message.slice):
            primary = self.primary
            part = primary.find(message.slice)
            if part is None and message.routing >= self._routing:
                raise LinkError(f"the peer sent slice {message.slice}, which is not held here")
            if part is None or self._frozen:
                return None  # the sender does not know the new routes yet, or the job is over
            if message.indices is not None and not verify:
                # check a copy: the sender could change `data` after the check
                data = memoryview(bytearray(data))
            incoming = primary.contributed(part, data, message)
            primary.check_weight(part, message.weight)
            with self._ledger_lock:
                verdict = self.ledger.judge(worker, incarnation, sequence, message.slice)
                if verdict is REPEATED:
                    return self._said(Repeated(worker, incarnation, sequence))
            if verdict is STRANGER:
                return None  # the worker was evicted, or is not admitted yet; the lead tells it so
            if verify and not _finite(part.held.slice, incoming, message):
                raise NotFinite(f"a contribution holds NaN or infinity in slice {message.slice}")
            try:
                return self._enter(part, incoming, message, data)
            except Exception as error:
                what = f"slice {message.slice} may be half changed"
                raise InvariantBroken(f"{what}: {type(error).__name__}: {error}") from error

    def _enter(
        self, part: PrimarySlice, incoming: Incoming, message: Contribution, data: memoryview
    ) -> Contributed | None:
        """Add a slice that was checked. Returns an event if this server now has all its slices of
        the contribution."""
        self._add_slice(part, incoming, message, data)
        with self._ledger_lock:
            event = ledger_events.contributed(self.ledger, message)
            return None if event is None else self._said(event)

    def _lock(self, slice_: int) -> AbstractContextManager[object]:
        """The locks that a thread holds while it adds to a slice."""
        raise NotImplementedError

    def _add_slice(
        self, part: PrimarySlice, incoming: Incoming, message: Contribution, data: memoryview
    ) -> None:
        raise NotImplementedError

    def fold(
        self, round_: int, slot: int, fill: int, share: float = 1.0, rows: tuple[Row, ...] = ()
    ) -> float:
        raise AssertionError("contributions are folded on arrival: there is no round to fold")

    def _said(self, event: _Told) -> _Told:
        self._put(event)
        return event

    # -- readers -------------------------------------------------------------------------------

    def news_for(self, worker: int, incarnation: int) -> dict[int, tuple[int, ...]]:
        """For each slice of buffers that this worker has read before, the parts that may have
        changed since the seed, without those that the worker keeps to itself. A worker that has
        contributed to a slice has read it."""
        if not self.primary.changed:
            return {}
        with self._ledger_lock:
            return {
                slice_: tuple(sorted(parts - self._layout.slices[slice_].local))
                for slice_, parts in self.primary.changed.items()
                if self.ledger.has_contributed(worker, incarnation, slice_)
            }

    def lease(self, worker: int, ticket: int) -> list[int]:
        raise AssertionError("slices are leased one by one only in jobs without rounds")

    def unlease(self, worker: int, ticket: int | None) -> list[Segment]:
        raise AssertionError("slices are leased one by one only in jobs without rounds")

    def freeze(self) -> None:
        with self._fold_lock:
            self._frozen = True

    def parameters_of(self, slice_: int) -> memoryview:
        """A copy of the parameters of a slice, in the dtype of the model. Must not be called while
        a round is folded."""
        with self._locks.of(slice_):
            part = self.primary.find(slice_)
            assert part is not None
            dtype = DTYPES[self._layout.spaces[part.held.slice.space].dtype]
            parameters = part.held.parameters.detach().to(dtype).contiguous()
            return memoryview(bytes(parameters.view(torch.uint8).numpy()))

    # -- routes --------------------------------------------------------------------------------

    def send_state(self, to: int, asked: Sequence[Stamp], routing: int) -> None:
        """Send the state of the slices that the server `to` will copy, one slice at a time. Must
        not be called while a round is folded."""
        held = [stamp for stamp in asked if self.primary.find(stamp.slice)]
        for stamp in held:
            with self._locks.of(stamp.slice):
                self._replica_sender.teach(to, stamp, len(held), self.primary, routing)

    def reroute(self, routes: Sequence[Route], routing: int) -> tuple[Rerouted, list[Segment]]:
        """Apply new routes: become the primary or a replica of slices, or drop them. Only the
        slices whose role changes are locked and copied. Also returns the memory that readers no
        longer need.

        The event is queued under the ledger's lock, as the events of contributions and steps are.
        So no event that belongs to the old routes is queued after it."""
        kept = ledger_events.kept_by(self._server, routes)
        mine = self._mine(routes)
        primary, memory = self.primary, self.follower.replicas
        now = {slice_.id for slice_ in mine}
        coming = [slice_ for slice_ in mine if slice_.id not in primary.index]
        going = [id_ for id_ in primary.ids if id_ not in now]
        replicas = kept.keys() - now
        moving = {*going, *(slice_.id for slice_ in coming), *(replicas ^ memory.ids)}
        with self._locks.all_of(sorted(moving)):
            promoted = {s.id: memory.export(s.id) for s in coming if s.id in memory}
            prepared = primary.prepare(coming, promoted)
            memory.hold(replicas, {id_: primary.export(id_) for id_ in going if id_ in kept})
            with self._fold_lock, self._ledger_lock:
                self.ledger.reroute(self._server, kept, routing)
                self._routing, self.routes = routing, routes
                old = primary.change(going, prepared)
                return self._said(ledger_events.rerouted(self.ledger, routing)), old

    def close(self) -> None:
        self.primary.close()


def _finite(slice_: Slice, incoming: Incoming, message: Contribution) -> bool:
    """Whether the numbers that are added up are finite. A buffer of which servers only hold the
    evaluator's value may contain infinity, such as the bounds of a range."""
    if not slice_.values:
        return all_finite(numbers_in(incoming))
    assert isinstance(incoming, torch.Tensor)
    pieces = pieces_of(slice_, incoming, message.parts)
    return all(all_finite(piece) for part, piece in pieces if part not in slice_.values)
