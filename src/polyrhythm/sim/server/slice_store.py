"""The slice store of a simulated server: the sizes of slices in place of their parameters. Like the
runtime's, it asks the rules of `core/server/slices.py`.

With rounds, slices are folded when the lead orders it. Without rounds, they are folded as they
arrive. A *place* is a slice in a slot, and every write to a place changes its stamp. So a checker
notices a write during a read. The contributions in each slice are recorded only on request
(`keep`), because recording many workers takes most of the run time.

The store also holds replicas, which make the same steps as their primaries.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from polyrhythm.core.events import (
    Contributed,
    Repeated,
    Rerouted,
    SliceSeeded,
    StateAdopted,
    StateHeld,
    StepCopied,
)
from polyrhythm.core.server.leases import SliceVersions
from polyrhythm.core.server.slices import OnArrivalSlices, RoundsSlices, Verdict, refusal_of
from polyrhythm.core.server.stepping import Stepping
from polyrhythm.errors import InvariantBroken, LinkError
from polyrhythm.wire.messages import (
    EVERY_SLICE,
    Contribution,
    Copy,
    Fetch,
    MemberSpec,
    Parameters,
    Route,
    Row,
    Seed,
    Shared,
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
    sum: tuple[Given, ...] = ()


class CarriedSum(Parameters, frozen=True, kw_only=True):
    """The `Parameters` of `--optimizer-on workers` with the contributions in the sum (if recorded) in
    place of its payload."""

    cargo: tuple[Given, ...] = ()


class SimSliceStore:
    """The base class of `SimRoundsSliceStore` and `SimOnArrivalSliceStore`."""

    _rules_type: type[RoundsSlices] | type[OnArrivalSlices]

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
        `keep`: record the contributions in each slice. `fresh`: the slices will get initial parameters
        from a seed, and not from other servers or a checkpoint."""
        self.contents: dict[int, Counter[Given]] = {}
        """Per slice, the contributions that were folded into it (if recorded)."""
        self.weights: dict[int, float] = {}
        """Per slice, the weight of all contributions that were folded into it."""
        self.rules: RoundsSlices | OnArrivalSlices = self._rules_type(
            server, routes, routing, fresh=fresh
        )
        self._server = server
        self._sizes = sizes
        self._stepping = stepping
        self._keep = keep
        self._aggregate: dict[int, float] = {}
        self._added: dict[int, list[Given]] = {}
        self._stamps: dict[Place, int] = {}
        self._writes = 0
        self._moves: Counter[int] = Counter()
        """Per slice, how often its role on this server has changed. The slice gets new memory with
        each change."""
        self.outgoing_steps: list[tuple[int, CarriedCopy]] = []
        """Steps to send to replicas, each with the number of the server that holds the replica."""
        self.state_nbytes: Mapping[int, int] = {}
        """With `--optimizer-on workers`: the bytes of the parameters and the state of each slice."""
        self._shared: set[int] = set()
        self.sums: dict[int, tuple[Given, ...]] = {}
        """Per slice, the contributions of the present version that the previous version lacks (if
        recorded)."""
        self._early: dict[int, tuple[int, frozenset[tuple[int, int]]]] = {}
        """Per slice, the last round whose sum was sent before the fold was ordered, and the workers to
        which it was sent, with their incarnations."""
        self._open_slots()
        self._hold()

    def take_shared(self, message: Shared) -> StateHeld | None:
        """Receive a slice of the state that a worker shares. Returns an event when all slices whose
        primary this server is have arrived."""
        if message.slice != EVERY_SLICE:
            self._shared.add(message.slice)
            return None
        whole, self._shared = self._shared >= self.slices.keys(), set()
        return StateHeld(message.round, message.routing) if whole else None

    def is_summed(self, slice_: int) -> bool:
        """Whether the sum of a slice can be sent before the fold is ordered, and was not sent yet."""
        rules = self.rules
        assert isinstance(rules, RoundsSlices)
        return self._early.get(slice_, (0,))[0] != rules.open_round(slice_) and rules.is_summed(
            slice_
        )

    def sum_early(
        self, slice_: int, readers: frozenset[tuple[int, int]]
    ) -> tuple[int, tuple[Given, ...]]:
        """Note that the sum of a slice is sent to these workers. Returns the round of the sum and the
        contributions in it."""
        assert isinstance(self.rules, RoundsSlices)
        round_ = self.rules.open_round(slice_)
        self._early[slice_] = (round_, readers)
        return round_, tuple(self._added[slice_])

    def early(self, round_: int, reader: tuple[int, int]) -> set[int]:
        """The slices whose sum of this round was sent to this worker before the fold was ordered."""
        sent = self._early.items()
        return {slice_ for slice_, (of, readers) in sent if of == round_ and reader in readers}

    def _hold(self) -> None:
        """Hold the slices that the rules now name."""
        self.slices = {slice_: self._sizes[slice_] for slice_ in self.rules.mine}
        """Per slice of which this server is the primary, its bytes on the wire."""
        self.nbytes = sum(self.slices.values())
        self._first = self._first_slot()
        """The slot that holds the first version of the slices that came with these routes."""
        for slice_ in (*self.rules.mine, *self.rules.copies):
            self.contents.setdefault(slice_, Counter())
            self.weights.setdefault(slice_, 0.0)
            self._aggregate.setdefault(slice_, 0.0)
            self._added.setdefault(slice_, [])
        for slice_ in [s for s in self.contents if s not in self.rules]:
            for book in (self.contents, self.weights, self._aggregate, self._added):
                del book[slice_]

    def _open_slots(self) -> None:
        raise NotImplementedError

    def _first_slot(self) -> int:
        raise NotImplementedError

    def enlist(self, members: tuple[MemberSpec, ...]) -> None:
        self.rules.enlist(members)
        self._stepping.enlist(len(members))

    def seed(self, message: Seed) -> SliceSeeded | None:
        """Store the initial parameters of one slice. Returns None if they are ignored."""
        verdict = self.rules.judge_seed(message)
        _refuse(verdict, message)
        if verdict is not Verdict.NEW:
            return None
        self._write(message.slice, 0)
        return self.rules.seeded(message.slice, message.routing)

    def nbytes_of(self, message: Contribution) -> int:
        """The size of the slice of a contribution; 0 if the slice has moved."""
        nbytes = self.slices.get(message.slice)
        if nbytes is None:
            _refuse(self.rules.judge(message), message)
        return nbytes or 0

    def add(self, message: Contribution) -> Contributed | Repeated | None:
        """Add one slice of a contribution. Returns an event if all slices of the contribution on
        this server are now added, or if the slice was sent before."""
        verdict = self.rules.judge(message)
        if verdict is not Verdict.NEW:
            repeated = verdict is Verdict.REPEATED
            whose = message.worker, message.incarnation, message.sequence
            return Repeated(*whose) if repeated else None
        self._aggregate[message.slice] += message.weight
        if self._keep:
            whose = message.worker, message.incarnation, message.sequence
            self._added[message.slice].append(whose)
        self._added_slice(message)
        return self.rules.add(message)

    def _added_slice(self, message: Contribution) -> None:
        """Called when a slice was added to its aggregate."""

    @property
    def torn(self) -> int:
        """How many contributions are folded into some slices of this server but not into all of
        them."""
        return self.rules.torn

    def nbytes_at(self, slice_: int) -> int:
        return self._sizes[slice_]

    # -- folds ---------------------------------------------------------------------------------

    def fold(self, round_: int, slot: int, share: float = 1.0, rows: tuple[Row, ...] = ()) -> float:
        raise AssertionError("a round was to be folded in a job without rounds")

    def _fold_slice(self, slice_: int, slot: int, step: SliceStep) -> None:
        self._write(slice_, slot)
        self.weights[slice_] += step.weight
        self._aggregate[slice_] = 0.0
        if not self._keep:
            return
        contents, added = self.contents[slice_], self._added[slice_]
        self.sums[slice_] = tuple(added)
        contents.update(added)
        for given in added:
            if contents[given] > 1:
                raise InvariantBroken(f"s{self._server}: {given} was added to slice {slice_} twice")
        added.clear()

    def _write(self, slice_: int, slot: int) -> None:
        self._writes += 1
        self._stamps[self.place(slice_, slot)] = self._writes

    def freeze(self) -> None:
        self.rules.freeze()

    def holds(self, given: Given) -> bool:
        """Whether every slice has this contribution in its parameters or in its aggregate. This
        needs `keep`."""
        return all(
            given in self.contents[slice_] or given in self._added[slice_] for slice_ in self.slices
        )

    # -- replicas ------------------------------------------------------------------------------

    def _send_step(self, copy: Copy, peers: Sequence[int], cargo: tuple[Given, ...]) -> None:
        carried = CarriedCopy(**msgspec.structs.asdict(copy), cargo=cargo)
        self.outgoing_steps += [(peer, carried) for peer in peers]

    def take_outgoing_steps(self) -> list[tuple[int, CarriedCopy]]:
        """Return the steps to send, in order, and empty the list."""
        steps, self.outgoing_steps = self.outgoing_steps, []
        return steps

    def copy(self, message: CarriedCopy) -> StepCopied | None:
        """Make the same step as the primary. Returns an event when all replicas of that primary's
        slices on this server have made it."""
        verdict = self.rules.judge_step(message)
        if verdict is Verdict.NEW:
            self._copy_slice(message)
        return self.rules.copied(message, verdict)

    def _copy_slice(self, message: CarriedCopy) -> None:
        self._added[message.slice] = list(message.cargo)
        self._fold_slice(message.slice, _REPLICA_SLOT, message.step)

    def reroute(self, routes: Sequence[Route], routing: int) -> Rerouted:
        """Follow new routes: become the primary or a replica of slices, or drop them."""
        changes = self.rules.role_changes(routes)
        event = self.rules.reroute(routes, routing)
        for slice_ in self.contents.keys() - (self.slices.keys() & set(changes.mine)):
            self._aggregate[slice_] = 0.0
            self._added[slice_] = []
        if changes.moving:
            self._hold()
        for slice_ in (*changes.coming, *changes.going):
            self._moves[slice_] += 1
            self._write(slice_, self._first if slice_ in self.slices else _REPLICA_SLOT)
        return event

    def fetch(self, slices: Sequence[int], routing: int) -> Fetch:
        return self.rules.fetch(slices, routing)

    def states(self, to: int, fetch: Sequence[Stamp], routing: int) -> list[CarriedState]:
        """The states of these slices for the server `to`. From now on that server also gets every
        step of these slices."""
        asked = self.rules.taught(fetch)
        heads = [self.rules.teach(to, stamp, len(asked), routing) for stamp in asked]
        return [self._state(head) for head in heads]

    def _state(self, head: State) -> CarriedState:
        return CarriedState(
            **msgspec.structs.asdict(head),
            cargo=tuple(self.contents[head.slice]),
            total=self.weights[head.slice],
            sum=self.sums.get(head.slice, ()),
        )

    def adopt(self, message: CarriedState) -> StateAdopted | None:
        """Replace this server's replica of a slice by the state that its primary has sent. Returns
        an event when this server has the states of all slices that it fetched from that primary."""
        verdict = self.rules.judge_state(message)
        if verdict is Verdict.NEW and message.parts:
            self._adopt_slice(message)
        return self.rules.adopted(message, verdict)

    def _adopt_slice(self, message: CarriedState) -> None:
        slice_ = message.slice
        self.contents[slice_] = Counter(message.cargo)
        self.weights[slice_] = message.total
        self.sums[slice_] = message.sum
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
        """The stamp of the last write to each of these places."""
        return [self._stamps.get(place, _NOTHING) for place in places]


def _refuse(verdict: Verdict, message: Contribution | Seed) -> None:
    if (fault := refusal_of(verdict, message)) is not None:
        raise LinkError(fault)


class SimRoundsSliceStore(SimSliceStore):
    rules: RoundsSlices
    _rules_type = RoundsSlices

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
        due = self.rules.fold(round_)
        steps = {s: self._stepping.step(self._aggregate[s], None, -1, share) for s in due}
        for slice_ in self.rules.sent_on(due):
            copy, peers = self.rules.copy_of_fold(slice_, steps[slice_])
            self._send_step(copy, peers, tuple(self._added[slice_]))
        for slice_ in self.slices:
            if slice_ in steps:
                self._fold_slice(slice_, slot, steps[slice_])
            else:
                self._write(slice_, slot)
        return weight


class SimOnArrivalSliceStore(SimSliceStore):
    rules: OnArrivalSlices
    _rules_type = OnArrivalSlices

    def _open_slots(self) -> None:
        self._latest = SliceVersions(())

    def _first_slot(self) -> int:
        return self._latest.hold(tuple(self.slices), self.nbytes)

    def _added_slice(self, message: Contribution) -> None:
        """Fold the slice at once."""
        slice_ = message.slice
        step = self._stepping.step(message.weight, message.rate, message.sequence)
        if (sent_on := self.rules.step_of(message, step)) is not None:
            self._send_step(*sent_on, tuple(self._added[slice_]))
        if message.pulled >= 0:
            self._latest.release(message.worker, message.pulled)
        slot = self._latest.target(slice_)
        self._fold_slice(slice_, slot, step)
        self._latest.on_folded(slice_, slot)

    def lease(self, worker: int, ticket: int) -> tuple[int, ...]:
        """Lease the current slot of each slice to this worker, and return these slots."""
        return self._latest.lease(worker, ticket)

    def unlease(self, worker: int, ticket: int | None) -> None:
        self._latest.release(worker, ticket)
        self.free(self._latest.surplus())
        if self._keep:
            self._latest.check()
