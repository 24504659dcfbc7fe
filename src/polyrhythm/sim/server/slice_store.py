"""The slice store of a simulated server: the core's ledger and the sizes of slices, without
parameters.

With rounds, slices are folded when the lead orders it. Without rounds, they are folded as they
arrive. A *place* is a slice in a slot, and every write to a place changes its stamp. So a checker
notices if a slot is written while it is read. The contributions in each slice are recorded only on
request (`keep`), because with many workers the recording takes most of the run time.

The store also holds replicas, which make the same steps as their primaries.

The two slice stores of a simulated server: with rounds, and with folds on arrival.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from polyrhythm.core.events import (
    Contributed,
    Repeated,
    Rerouted,
    SliceSeeded,
    StateAdopted,
    StepCopied,
)
from polyrhythm.core.server import ledger as ledger_events
from polyrhythm.core.server.leases import SliceVersions
from polyrhythm.core.server.ledger import REPEATED, STRANGER, Ledger, OnArrivalLedger, RoundsLedger
from polyrhythm.core.server.replication import fold_step
from polyrhythm.core.server.stepping import Stepping
from polyrhythm.errors import InvariantBroken, LinkError
from polyrhythm.wire.messages import (
    Contribution,
    Copy,
    Fetch,
    MemberSpec,
    Route,
    Row,
    Seed,
    SliceStep,
    Stamp,
    State,
)

Given = tuple[int, int, int]
"""A contribution: the number of the worker, its incarnation, and the sequence number."""
Place = tuple[int, int, int]
"""A place: a slice, how often the role of the slice on this server has changed, and a slot."""
_NOTHING = 0
_REPLICA_SLOT = 0


class CarriedCopy(Copy, frozen=True, kw_only=True):
    """A `Copy` with the contributions in the step (if recorded) in place of its payload."""

    cargo: tuple[Given, ...] = ()


class CarriedState(State, frozen=True, kw_only=True):
    """A `State` with the contributions in the slice (if recorded) in place of its payload."""

    cargo: tuple[Given, ...] = ()
    total: float = 0.0


class SimSliceStore:
    """The base class of `SimRoundsSliceStore` and `SimOnArrivalSliceStore`."""

    _ledger_type: type[Ledger]

    def __init__(
        self,
        server: int,
        sizes: Mapping[int, int],
        routes: Sequence[Route],
        routing: int,
        stepping: Stepping,
        *,
        keep: bool,
        fresh: bool = True,
    ) -> None:
        """`sizes`: the bytes of every slice of the model. `stepping` makes the step of each fold.
        `keep`: record the contributions in each slice. `fresh`: the slices will get initial
        parameters from a seed, and not from other servers or a checkpoint."""
        kept = ledger_events.kept_by(server, routes)
        self.contents: dict[int, Counter[Given]] = {}
        """Per slice, the contributions that were folded into it (if recorded)."""
        self.weights: dict[int, float] = {}
        """Per slice, the weight of all contributions that were folded into it."""
        self._server = server
        self._sizes = sizes
        self._routing = routing
        self._stepping = stepping
        self._keep = keep
        self._replicated = any(len(route.holders) > 1 for route in routes)
        mine = [s for s, route in kept.items() if route.primary == server]
        self._ledger = self._ledger_type(mine, replicated=self._replicated)
        if self._replicated or not fresh:
            (self._ledger.begin if fresh else self._ledger.reroute)(server, kept, routing)
        self._frozen = False
        self._aggregate: dict[int, float] = {}
        self._added: dict[int, list[Given]] = {}
        self._stamps: dict[Place, int] = {}
        self._writes = 0
        self._moves: Counter[int] = Counter()
        """Per slice, how often its role on this server has changed. The slice gets new memory with
        each change."""
        self.outgoing_steps: list[tuple[int, CarriedCopy]] = []
        """Steps to send to replicas, each with the number of the server that holds the replica."""
        self._open_slots()
        self._hold(mine, kept)

    def _hold(self, mine: Sequence[int], kept: Mapping[int, Route]) -> None:
        self.slices = {slice_: self._sizes[slice_] for slice_ in mine}
        """Per slice of which this server is the primary, its bytes on the wire."""
        self.nbytes = sum(self.slices.values())
        self._first = self._first_slot()
        """The slot that holds the first version of the slices that came with these routes."""
        self._keep_books(kept)

    def _open_slots(self) -> None:
        raise NotImplementedError

    def _first_slot(self) -> int:
        raise NotImplementedError

    def _keep_books(self, kept: Mapping[int, Route]) -> None:
        for slice_ in kept:
            self.contents.setdefault(slice_, Counter())
            self.weights.setdefault(slice_, 0.0)
            self._aggregate.setdefault(slice_, 0.0)
            self._added.setdefault(slice_, [])
        for slice_ in [s for s in self.contents if s not in kept]:
            for book in (self.contents, self.weights, self._aggregate, self._added):
                del book[slice_]

    def enlist(self, members: tuple[MemberSpec, ...]) -> None:
        self._ledger.enlist({member.worker: member.incarnation for member in members})
        self._stepping.enlist(len(members))

    def seed(self, message: Seed) -> SliceSeeded | None:
        """Take the initial parameters of one slice. Returns None if they belong to an older routing
        epoch, because the worker that sent them is gone."""
        if message.routing != self._routing:
            return None
        if message.slice not in self.contents:
            raise LinkError(f"the peer sent slice {message.slice}, which is not held here")
        self._write(message.slice, 0)
        return SliceSeeded(message.slice, message.routing)

    def add(self, message: Contribution) -> Contributed | Repeated | None:
        """Add one slice of a contribution. Returns an event if all slices of the contribution on
        this server are now added."""
        if self._frozen:
            return None
        slice_ = message.slice
        if slice_ not in self.slices:
            return None  # the sender does not know yet that the slice has moved
        worker, incarnation, sequence = message.worker, message.incarnation, message.sequence
        verdict = self._ledger.judge(worker, incarnation, sequence, slice_)
        if verdict is STRANGER:
            return None  # the worker was evicted or is not admitted yet; the lead tells it so
        if verdict is REPEATED:
            return Repeated(worker, incarnation, sequence)
        self._aggregate[slice_] += message.weight
        if self._keep:
            self._added[slice_].append((worker, incarnation, sequence))
        self._added_slice(message)
        return ledger_events.contributed(self._ledger, message)

    def _added_slice(self, message: Contribution) -> None:
        """Called when a slice was added to its aggregate."""

    def nbytes_of(self, slice_: int, routing: int) -> int:
        nbytes = self.slices.get(slice_)
        if nbytes is None and routing >= self._routing:
            raise LinkError(f"the peer sent slice {slice_}, which is not held here")
        return nbytes or 0

    @property
    def torn(self) -> int:
        """How many contributions are folded into some slices of this server but not into all of
        them."""
        return self._ledger.torn

    def nbytes_at(self, slice_: int) -> int:
        return self._sizes[slice_]

    # -- folds ---------------------------------------------------------------------------------

    def fold(self, round_: int, slot: int, share: float = 1.0, rows: tuple[Row, ...] = ()) -> float:
        raise AssertionError("contributions are folded on arrival: there is no round to fold")

    def _fold_slice(self, slice_: int, slot: int, step: SliceStep) -> None:
        self._write(slice_, slot)
        self.weights[slice_] += step.weight
        self._aggregate[slice_] = 0.0
        if not self._keep:
            return
        contents, added = self.contents[slice_], self._added[slice_]
        contents.update(added)
        for given in added:
            if contents[given] > 1:
                raise InvariantBroken(f"s{self._server}: {given} was added to slice {slice_} twice")
        added.clear()

    def _write(self, slice_: int, slot: int) -> None:
        self._writes += 1
        self._stamps[self.place(slice_, slot)] = self._writes

    def freeze(self) -> None:
        self._frozen = True

    def holds(self, given: Given) -> bool:
        """Whether every slice has this contribution in its parameters or in its aggregate. This
        needs `keep`."""
        return all(
            given in self.contents[slice_] or given in self._added[slice_] for slice_ in self.slices
        )

    # -- replicas ------------------------------------------------------------------------------

    def _copy_step(
        self,
        slice_: int,
        stamp: Stamp,
        step: SliceStep,
        rows: tuple[Row, ...],
        given: Given | None,
        cargo: tuple[Given, ...],
    ) -> None:
        worker, incarnation, sequence = given or fold_step(0)
        for peer in sorted(self._ledger.copy_targets(slice_)):
            copy = CarriedCopy(
                routing=self._routing,
                server=self._server,
                worker=worker,
                incarnation=incarnation,
                sequence=sequence,
                slice=slice_,
                stamp=stamp,
                step=step,
                rows=rows,
                cargo=cargo,
            )
            self.outgoing_steps.append((peer, copy))

    def take_outgoing_steps(self) -> list[tuple[int, CarriedCopy]]:
        """Return the steps to send, in order, and empty the list."""
        steps, self.outgoing_steps = self.outgoing_steps, []
        return steps

    def copy(self, message: CarriedCopy) -> StepCopied | None:
        """Make a step that a primary has made. Returns an event when all replicas of that primary's
        slices on this server have made the step."""
        slice_, primary = message.slice, message.server
        if not self._ledger.accepts(primary, slice_):
            # the sender is not the primary, or the state of the slice has not arrived yet
            return None
        if self._ledger.may_copy(primary, message.stamp):
            self._copy_slice(message)
            self._ledger.copied(message.stamp, message.rows)
        return ledger_events.copied(self._ledger, message)

    def _copy_slice(self, message: CarriedCopy) -> None:
        self._added[message.slice] = list(message.cargo)
        self._fold_slice(message.slice, _REPLICA_SLOT, message.step)

    def reroute(self, routes: Sequence[Route], routing: int) -> Rerouted:
        """Follow new routes: become the primary or a replica of slices, or drop them."""
        kept = ledger_events.kept_by(self._server, routes)
        mine = [s for s, route in kept.items() if route.primary == self._server]
        self._replicated = True
        self._routing = routing
        self._ledger.reroute(self._server, kept, routing)
        for slice_ in self.contents.keys() - (self.slices.keys() & set(mine)):
            self._aggregate[slice_] = 0.0
            self._added[slice_] = []
        moved = self.slices.keys() ^ set(mine)
        if moved:
            self._hold(mine, kept)
        else:
            self._keep_books(kept)
        for slice_ in moved:
            self._moves[slice_] += 1
            self._write(slice_, self._first if slice_ in self.slices else _REPLICA_SLOT)
        return ledger_events.rerouted(self._ledger, routing)

    def fetch(self, slices: Sequence[int], routing: int) -> Fetch:
        return ledger_events.fetch(self._ledger, self._server, slices, routing)

    def states(self, to: int, fetch: Sequence[Stamp], routing: int) -> list[CarriedState]:
        """The states of these slices for the server `to`. From now on that server also gets every
        step of these slices."""
        asked = [stamp.slice for stamp in fetch if stamp.slice in self.slices]
        same = self._ledger.teach(to, asked, fetch)
        return [
            self._state(
                CarriedState(
                    routing=routing,
                    server=self._server,
                    slice=slice_,
                    slices=len(asked),
                    stamp=self._ledger.stamp(slice_),
                    rows=self._ledger.folded_rows(slice_),
                    parts=0 if same[slice_] else 1,
                    cargo=tuple(self.contents[slice_]),
                    total=self.weights[slice_],
                )
            )
            for slice_ in asked
        ]

    def _state(self, state: CarriedState) -> CarriedState:
        """The state of a slice. A subclass adds what its kind of contribution needs."""
        return state

    def adopt(self, message: CarriedState) -> StateAdopted | None:
        """Replace this server's replica of a slice by the state that its primary has sent. Returns
        an event when this server has the states of all slices that it fetched from that primary."""
        slice_, primary = message.slice, message.server
        if self._ledger.awaits(primary, slice_, message.routing):
            if message.parts:
                self._adopt_slice(message)
            self._ledger.adopt(message.stamp, message.rows)
        return ledger_events.adopted(self._ledger, message)

    def _adopt_slice(self, message: CarriedState) -> None:
        slice_ = message.slice
        self.contents[slice_] = Counter(message.cargo)
        self.weights[slice_] = message.total
        self._added[slice_] = []
        self._write(slice_, _REPLICA_SLOT)

    # -- readers -------------------------------------------------------------------------------

    def lease(self, worker: int, ticket: int) -> tuple[int, ...]:
        raise AssertionError("slices are leased one by one only in jobs without rounds")

    def unlease(self, worker: int, ticket: int | None) -> None:
        raise AssertionError("slices are leased one by one only in jobs without rounds")

    def free(self, slots: Sequence[int]) -> None:
        """Free these slots of all slices."""
        for slot in slots:
            for slice_ in self.slices:
                self._stamps.pop(self.place(slice_, slot), None)

    def place(self, slice_: int, slot: int) -> Place:
        return slice_, self._moves[slice_], slot

    def places(self, slots: Sequence[int]) -> list[Place]:
        """The places of all slices. `slots` has one slot for each slice."""
        return [self.place(*pair) for pair in zip(self.slices, slots, strict=True)]

    def stamps(self, places: Sequence[Place]) -> list[Any]:
        """The current stamps of these places."""
        return [self._stamps.get(place, _NOTHING) for place in places]


class SimRoundsSliceStore(SimSliceStore):
    _ledger: RoundsLedger
    _ledger_type = RoundsLedger

    def _open_slots(self) -> None:
        self._slot = 0
        """The slot of the current version."""

    def _first_slot(self) -> int:
        return self._slot

    def fold(self, round_: int, slot: int, share: float = 1.0, rows: tuple[Row, ...] = ()) -> float:
        """Fold every aggregate into `slot`. Returns the largest weight of an aggregate. `share`:
        which fraction of a full step to make."""
        self._slot = slot
        weight = max(self._aggregate.values(), default=0.0)
        behind = [s for s in self.slices if not self._replicated or self._ledger.number(s) < round_]
        steps = {s: self._stepping.step(self._aggregate[s], None, -1, share) for s in behind}
        cargos = {s: tuple(self._added[s]) for s in behind}
        for slice_ in self.slices:
            if slice_ in steps:
                self._fold_slice(slice_, slot, steps[slice_])
            else:
                self._write(slice_, slot)
        self._ledger.close(round_)
        for slice_, step in steps.items() if self._replicated else ():
            rows, stamp = self._ledger.folded_rows(slice_), self._ledger.stamp(slice_)
            self._copy_step(slice_, stamp, step, rows, None, cargos[slice_])
        return weight


class SimOnArrivalSliceStore(SimSliceStore):
    _ledger: OnArrivalLedger
    _ledger_type = OnArrivalLedger

    def _open_slots(self) -> None:
        self._latest = SliceVersions(())

    def _first_slot(self) -> int:
        return self._latest.hold(tuple(self.slices), self.nbytes)

    def _added_slice(self, message: Contribution) -> None:
        """Fold the slice at once."""
        slice_ = message.slice
        step = self._stepping.step(message.weight, message.rate, message.sequence)
        if self._replicated:
            given = (message.worker, message.incarnation, message.sequence)
            cargo = tuple(self._added[slice_])
            stamp = self._ledger.next_step(slice_)
            self._copy_step(slice_, stamp, step, (Row(*given),), given, cargo)
        if message.pulled >= 0:
            self._latest.release(message.worker, message.pulled)
        slot = self._latest.target(slice_)
        self._fold_slice(slice_, slot, step)
        self._latest.folded(slice_, slot)

    def lease(self, worker: int, ticket: int) -> tuple[int, ...]:
        """Lease the current slot of each slice to this worker, and return these slots."""
        return self._latest.lease(worker, ticket)

    def unlease(self, worker: int, ticket: int | None) -> None:
        self._latest.release(worker, ticket)
        self.free(self._latest.surplus())
        if self._keep:
            self._latest.check()
