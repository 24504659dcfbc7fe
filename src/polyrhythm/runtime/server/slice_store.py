"""What a server holds: the slices that it is the primary of, copies of others, and the ledger.

Everything here may be called by several threads at once. With rounds a slice is added under its own
lock, and a fold holds the locks of all slices, so that what comes late joins the next aggregate
whole. Without, one lock orders the folds of single slices and the leases of their readers. A change
of routes holds all locks, and what a slice is here is looked up under its lock.
"""

import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TypeVar

import torch

from polyrhythm.core.events import Contributed, Repeated, Rerouted, SliceSeeded
from polyrhythm.core.machine import Event
from polyrhythm.core.placement.slices import Slice, lay_out
from polyrhythm.core.server import ledger_events
from polyrhythm.core.server.leases import SliceVersions
from polyrhythm.core.server.ledger import Ledger, Verdict
from polyrhythm.core.server.stepping import Stepping
from polyrhythm.core.sync.registry import traits_of
from polyrhythm.errors import InvariantBroken, LinkError, NotFinite
from polyrhythm.io.segments import Segment
from polyrhythm.runtime.server.primary import Primary
from polyrhythm.runtime.server.replica_apply import Put, ReplicaApply
from polyrhythm.runtime.server.replica_memory import ReplicaMemory, SliceState
from polyrhythm.runtime.server.replica_send import ReplicaSender, Tell
from polyrhythm.runtime.server.slots import Allocate
from polyrhythm.tensors.finite import all_finite
from polyrhythm.tensors.updaters import Held
from polyrhythm.wire.messages import (
    LEAST_WEIGHT,
    Contribution,
    JobSpec,
    MemberSpec,
    ModelSpec,
    Route,
    Seed,
    SliceStep,
    Stamp,
)

_Told = TypeVar("_Told", bound=Event)


class SliceStore:
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
        """`tell` sends a step or a state to another server. `put` is handed what happened, under the
        locks under which it did: so nothing that was true by the old routes is told after the new
        ones. `fresh`: what is routed here will be seeded, and so will its copies elsewhere."""
        self._server = server
        self._spec = spec
        self._job = job
        self._layout = lay_out(spec, job.servers, job.slice_nbytes)
        self._routing = routing
        self.routes = routes
        self._allocate = allocate
        self._put = put
        self._copying = job.replicas > 0
        self._rounds = traits_of(job.sync).rounds
        self._locks = [threading.Lock() for _ in self._layout.slices]
        self._fold_lock = threading.Lock()
        self._ledger_lock = threading.Lock()
        self._frozen = False
        self._stepping = Stepping(job)
        self._sharers: frozenset[int] = frozenset()
        """The workers that share a step where contributions are folded one by one."""
        kept = ledger_events.kept_by(server, routes)
        mine = self._mine(routes)
        self.ledger = Ledger((s.id for s in mine), copying=self._copying, rounds=self._rounds)
        if self._copying:
            (self.ledger.begin if fresh else self.ledger.reroute)(server, kept, routing)
        grows = job.updater == "addition" and self._rounds
        copies = ReplicaMemory(self._layout, job, spec, grows=grows)
        copies.hold(kept.keys() - {s.id for s in mine}, {})
        self.follower = ReplicaApply(server, copies, self.ledger, self._ledger_lock, put)
        if fresh:
            self.ledger.await_seeds(kept)
        self._replicas = ReplicaSender(server, self.ledger, self._ledger_lock, tell)
        self.primary = self._hold(mine, {})

    def _mine(self, routes: Sequence[Route]) -> tuple[Slice, ...]:
        return tuple(s for s in self._layout.slices if routes[s.id].primary == self._server)

    def _hold(self, slices: Sequence[Slice], states: Mapping[int, SliceState]) -> Primary:
        return Primary(slices, self._layout, self._job, self._spec, self._allocate, states)

    def enlist(self, members: Sequence[MemberSpec]) -> None:
        with self._ledger_lock:
            self.ledger.enlist({member.worker: member.incarnation for member in members})
            self._stepping.enlist(len(members))
            if self._job.async_scale == "members":
                self._sharers = frozenset(member.worker for member in members)

    def seed(self, message: Seed, data: memoryview) -> SliceSeeded | None:
        """Take the initial parameters of one slice, once; None for those of a seeder that is gone.
        *Once training has begun, no worker can overwrite parameters: its seed is refused.*"""
        if message.routing < self._routing:
            return None
        with self._ledger_lock:
            awaited, opened = self.ledger.may_seed(message.slice), self.ledger.opened
        if opened and not awaited:
            raise LinkError(f"w{message.worker} sent initial parameters after training had begun")
        if message.routing != self._routing:
            return None
        held = message.slice in self.follower.copies or message.slice in self.primary.index
        if held and not awaited:
            return None  # they have come already: the first ones count
        event = self._seed(message, data)
        with self._ledger_lock:
            self.ledger.seeded(message.slice)
        return event

    def _seed(self, message: Seed, data: memoryview) -> SliceSeeded:
        if message.slice in self.follower.copies:
            return self.follower.seed(message, data)
        primary = self.primary
        index = primary.index.get(message.slice)
        if index is None:
            raise LinkError(f"the peer sent slice {message.slice}, which is not held here")
        incoming = primary.incoming(index, data)
        with self._locks[message.slice]:
            primary.seed(index, incoming)
        return SliceSeeded(message.slice, message.routing)

    # -- contributions -------------------------------------------------------------------------

    def add(
        self, message: Contribution, data: memoryview, *, verify: bool = True
    ) -> Contributed | Repeated | None:
        """Add one slice of a contribution; an event once that made it complete here. `verify`:
        refuse NaN and infinity, where the sender cannot change its mind after the check."""
        if not LEAST_WEIGHT <= message.weight < math.inf:
            raise LinkError(
                f"a contribution weighs {message.weight}: it must be a positive number, and at"
                f" least {LEAST_WEIGHT}"
            )
        worker, incarnation, sequence = message.worker, message.incarnation, message.sequence
        with self._lock_of(message.slice):
            primary = self.primary
            index = primary.index.get(message.slice)
            if index is None and message.routing >= self._routing:
                raise LinkError(f"the peer sent slice {message.slice}, which is not held here")
            if index is None or self._frozen:
                return None  # it was its primary by routes that are no more
            incoming = primary.incoming(index, data, message.parts)
            primary.check_weight(index, message.weight)
            with self._ledger_lock:
                verdict = self.ledger.judge(worker, incarnation, sequence, message.slice)
            if verdict is Verdict.STRANGER:
                return None  # it was evicted, or is not let in yet: it will be told
            if verdict is Verdict.REPEATED:
                return self._said(Repeated(worker, incarnation, sequence))
            if verify and not all_finite(incoming):
                raise NotFinite(f"a contribution holds NaN or infinity in slice {message.slice}")
            try:
                round_ = self._enter(primary, index, incoming, message, data)
            except Exception as error:
                what = f"slice {message.slice} may be half changed"
                raise InvariantBroken(f"{what}: {type(error).__name__}: {error}") from error
            if round_ is None:
                return None
            asked = (message.pull, message.pulled)
            return self._said(Contributed(worker, incarnation, sequence, round_, *asked))

    def _enter(
        self,
        primary: Primary,
        index: int,
        incoming: torch.Tensor,
        message: Contribution,
        data: memoryview,
    ) -> int | None:
        """Add a slice that was checked; the round of its contribution if that is complete here."""
        if primary.latest is None:
            primary.add(index, incoming, message)
        else:
            self._fold_slice(primary, primary.latest, index, message, data)
        whose = message.worker, message.incarnation, message.sequence
        with self._ledger_lock:
            return self.ledger.add(*whose, message.slice, message.slices)

    def _fold_slice(
        self,
        primary: Primary,
        latest: SliceVersions,
        index: int,
        message: Contribution,
        data: memoryview,
    ) -> None:
        """Without rounds: a contribution is a step of its own, here and on every replica."""
        step = self._stepping.step(message.weight, message.rate, message.sequence)
        if message.pulled >= 0:  # before the fold, which then needs no spare for that reader
            latest.release(message.worker, message.pulled)
        buffers = primary.buffer_step(index, data, message, self._sharers)
        if buffers is not None:  # each part has a scale of its own, and it is in the numbers
            data, step = buffers, SliceStep(1.0 if len(buffers) else 0.0)
        if self._copying:
            data = self._replicas.forward(message, data, step, self._routing)
        if buffers is None:
            primary.add(index, primary.incoming(index, data), message)
        primary.fold_slice(index, latest, step)

    def _lock_of(self, slice_: int) -> threading.Lock:
        known = self._rounds and 0 <= slice_ < len(self._locks)
        return self._locks[slice_] if known else self._fold_lock

    def _said(self, event: _Told) -> _Told:
        self._put(event)
        return event

    # -- readers -------------------------------------------------------------------------------

    def news_for(self, worker: int, incarnation: int) -> dict[int, tuple[int, ...]]:
        """Per slice of buffers that this worker has read before, the parts that may have changed
        since the seed. It has read a slice if it has contributed to it."""
        if not self.primary.changed:
            return {}
        with self._ledger_lock:
            return {
                slice_: tuple(sorted(parts))
                for slice_, parts in self.primary.changed.items()
                if self.ledger.has_contributed(worker, incarnation, slice_)
            }

    def lease(self, worker: int, ticket: int) -> list[int]:
        """Without rounds: the slot of each slice as it is now, leased to this worker."""
        with self._fold_lock:
            assert self.primary.latest is not None
            return list(self.primary.latest.lease(worker, ticket))

    def unlease(self, worker: int, ticket: int | None) -> list[Segment]:
        """This worker has read what it got with `ticket`; the memory that is surplus now."""
        with self._fold_lock:
            latest = self.primary.latest
            assert latest is not None
            latest.release(worker, ticket)
            return self.primary.slots.free(latest.surplus())

    def freeze(self) -> None:
        with self._fold_lock:
            self._frozen = True

    # -- folds ---------------------------------------------------------------------------------

    def fold(self, round_: int, slot: int, fill: int, share: float = 1.0) -> float:
        """Fold every aggregate into `slot`; the largest weight folded. A slice that was folded in
        this round by the primary before is only carried over. `share`: how much of a full step it is."""
        primary = self.primary
        target = primary.slots.at(slot)
        with ExitStack() as locks:
            for id_ in primary.ids:
                locks.enter_context(self._locks[id_])
            weight = max((held.weight for held in primary.held), default=0.0)
            behind = self._behind(primary, round_)
            with self._ledger_lock:
                self.ledger.close(round_)
            steps = {held.slice.id: self._step_of(primary, held, share) for held in behind}
            for held in behind if self._copying else ():
                id_ = held.slice.id
                piece = primary.aggregate_piece(held, target)
                self._replicas.fold_too(id_, steps[id_], piece, self.routes[id_], self._routing)
            primary.fold(target, fill, steps)
        return weight

    def _step_of(self, primary: Primary, held: Held, share: float) -> SliceStep:
        primary.settle_buffers(held)
        if self._copying:
            primary.take_mean(held)
        return self._stepping.step(held.weight, held.rate, held.clock, share)

    def _behind(self, primary: Primary, round_: int) -> Sequence[Held]:
        if not self._copying:
            return primary.held
        with self._ledger_lock:
            return [held for held in primary.held if self.ledger.number(held.slice.id) < round_]

    # -- routes --------------------------------------------------------------------------------

    def send_state(self, to: int, asked: Sequence[Stamp], routing: int) -> None:
        """Send the state of what `to` is to copy. Not while a round is folded."""
        with self._all_locked():
            self._replicas.teach(to, asked, self.primary, routing)

    @contextmanager
    def _all_locked(self) -> Iterator[None]:
        with ExitStack() as locks:
            locks.enter_context(self.follower.lock)
            locks.enter_context(self._fold_lock)
            for lock in self._locks:  # those too that this server is only about to hold
                locks.enter_context(lock)
            yield

    def reroute(self, routes: Sequence[Route], routing: int) -> tuple[Rerouted, list[Segment]]:
        """Be the primary, a copy or nobody of each slice, as these routes say. What was added and
        not folded stays where the primary does. Also the memory that readers need no more."""
        kept = ledger_events.kept_by(self._server, routes)
        mine = self._mine(routes)
        old: list[Segment] = []
        with self._all_locked():
            with self._ledger_lock:
                self.ledger.reroute(self._server, kept, routing)
            self._routing, self.routes = routing, routes
            states: dict[int, SliceState] = {}
            if mine != self.primary.slices:
                states = self._states(kept)
                before, self.primary = self.primary, self._hold(mine, states)
                old = self.primary.take_over(before)
            self.follower.copies.hold(kept.keys() - {s.id for s in mine}, states)
            with self._ledger_lock:
                event = ledger_events.rerouted(self.ledger, routing)
            return self._said(event), old

    def _states(self, kept: Mapping[int, Route]) -> dict[int, SliceState]:
        primary, copies = self.primary, self.follower.copies
        states = {id_: primary.export(id_) for id_ in primary.ids if id_ in kept}
        return states | {id_: copies.export(id_) for id_ in kept if id_ in copies}

    def close(self) -> None:
        self.primary.close()
