"""The slice store of a server: the memory of the slices whose primary it is, and of its replicas of
other slices. `core/server/slices.py` has the rules: this module asks them, and moves the bytes.

Several threads may call all methods at once. Every slice has a lock. A thread holds it while it
adds to the slice, copies or sends it, or changes its role between primary and replica. *A change of
routes locks only the slices that move.* With rounds, a fold holds the locks of all slices, so all
slices of a late contribution are added to the next round. Without rounds, the fold lock orders the
folds of single slices and the leases of their readers. A thread takes locks in this order: slices
by number, the fold lock, the lock of the rules.
"""

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import torch

from polyrhythm.core import builders
from polyrhythm.core.effects import Build
from polyrhythm.core.events import Contributed, Repeated, Rerouted, SliceSeeded, StateHeld
from polyrhythm.core.kinds import keeps_rows, sums_only
from polyrhythm.core.machine import Event
from polyrhythm.core.names import server_name
from polyrhythm.core.placement.slices import BUFFERS, Slice, layout_of
from polyrhythm.core.server.slices import OnArrivalSlices, RoundsSlices, Verdict, refusal_of
from polyrhythm.core.server.stepping import Stepping
from polyrhythm.core.sync.registry import traits_of
from polyrhythm.core.values import name_order
from polyrhythm.errors import InvariantBroken, LinkError, NotFinite
from polyrhythm.io.link import Link
from polyrhythm.io.segments import Segment
from polyrhythm.runtime import crashpoint
from polyrhythm.runtime.server.primary import (
    OnArrivalPrimary,
    Primary,
    PrimarySlice,
    RoundsPrimary,
    RowsPrimary,
    SummedPrimary,
)
from polyrhythm.runtime.server.replica_memory import ReplicaMemory, SummedReplicas
from polyrhythm.runtime.server.replication import Put, ReplicaApply, ReplicaSender, Rules, Tell
from polyrhythm.runtime.server.slots import Allocate, SliceLocks
from polyrhythm.runtime.slice_state import (
    PARAMETERS,
    SliceState,
    checked_tensor,
)
from polyrhythm.tensors.buffers import pieces_of
from polyrhythm.tensors.dtypes import DTYPES
from polyrhythm.tensors.finite import all_finite
from polyrhythm.tensors.held import Held
from polyrhythm.tensors.rows import ABSENT, Incoming, numbers_in
from polyrhythm.wire.messages import (
    EVERY_SLICE,
    LEAST_WEIGHT,
    Contribution,
    JobSpec,
    MemberSpec,
    Route,
    Row,
    Seed,
    Shared,
    SliceStep,
    Stamp,
)

_Told = TypeVar("_Told", bound=Event)


class SliceStore:
    """The common part of the two slice stores; `choose_slice_store` chooses one for a job."""

    _rules_type: type[RoundsSlices] | type[OnArrivalSlices]
    _primary_type: type[Primary]
    _replicas_type = ReplicaMemory

    def __init__(
        self,
        server: int,
        build: Build,
        job: JobSpec,
        allocate: Allocate,
        *,
        tell: Tell = lambda server, message, payload: None,
        put: Put = lambda event: None,
    ) -> None:
        """`build`: the slices that the lead has placed on this server. `tell` sends a step or a state
        to another server. `put` is called with every event, under the lock of the rules."""
        spec = build.spec
        self._server = server
        self._job = job
        self._layout = layout_of(spec, job)
        self._put = put
        self._locks = SliceLocks(len(self._layout.slices))
        self._fold_lock = threading.Lock()
        self._rules_lock = threading.Lock()
        self._stepping = Stepping(job, spec)
        self._order: dict[int, int] = {}
        """The position of each worker in the order of their names."""
        self._sharers: frozenset[int] = frozenset()
        """Without rounds: the workers among which a full step is divided."""
        self.rules: Rules = self._rules_type(server, build.routes, build.routing, fresh=build.fresh)
        mine = self._slices(self.rules.mine)
        self.primary = self._primary_type(mine, self._layout, job, spec, allocate)
        memory = self._replicas_type(self._layout, job, spec, grows=self.primary.grows)
        memory.hold(self.rules.copies, {})
        self.follower = ReplicaApply(memory, self.rules, self._rules_lock, self._locks, put)
        self._replica_sender = ReplicaSender(self.rules, self._rules_lock, tell)

    def _slices(self, ids: Iterable[int]) -> tuple[Slice, ...]:
        return tuple(self._layout.slices[id_] for id_ in ids)

    def enlist(self, members: Sequence[MemberSpec]) -> None:
        with self._rules_lock:
            self.rules.enlist(members)
            self._stepping.enlist(len(members))
            by_name = sorted(members, key=lambda member: name_order(member.name))
            self._order = {member.worker: at for at, member in enumerate(by_name)}
            if self._job.async_scale != "none":
                self._sharers = frozenset(member.worker for member in members)

    def seed(self, message: Seed, data: memoryview) -> SliceSeeded | None:
        """Store the initial parameters of one slice. Returns None if they are ignored."""
        slice_ = message.slice
        with self._locks.of(slice_):
            with self._rules_lock:
                verdict = self.rules.judge_seed(message)
            _refuse(verdict, message)
            if verdict is not Verdict.NEW:
                return None
            part = self.primary.find(slice_)
            if part is not None:
                self.primary.seed(part, self.primary.incoming(part, data))
            else:
                self.follower.seed(slice_, data)
            with self._rules_lock:
                return self.rules.seeded(slice_, message.routing)

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
        with self._rules_lock:
            return copies, self.rules.torn

    @property
    def kept(self) -> list[Slice]:
        """The slices of which this server is the primary or a replica."""
        return [slice_ for slice_ in self._layout.slices if slice_.id in self.rules]

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
            with self._rules_lock:
                self.rules.seeded(slice_, self.rules.routing)

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
        with self._lock(message.slice):
            with self._rules_lock:
                verdict = self.rules.judge(message)
            _refuse(verdict, message)
            primary = self.primary
            part = primary.find(message.slice)
            if part is None or verdict is Verdict.FROZEN:
                return None
            if message.indices is not None and not verify:
                # check a copy: the sender could change `data` after the check
                data = memoryview(bytearray(data))
            incoming = primary.contributed(part, data, message)
            primary.check_weight(part, message.weight)
            if verdict is Verdict.REPEATED:
                with self._rules_lock:
                    return self._said(
                        Repeated(message.worker, message.incarnation, message.sequence)
                    )
            if verdict is not Verdict.NEW:
                return None
            if verify and not _finite(part.held.slice, incoming, message):
                raise NotFinite(f"a contribution holds NaN or infinity in slice {message.slice}")
            try:
                return self._enter(part, incoming, message, data)
            except Exception as error:
                what = f"slice {message.slice} may be only partly changed"
                raise InvariantBroken(f"{what}: {type(error).__name__}: {error}") from error

    def _enter(
        self, part: PrimarySlice, incoming: Incoming, message: Contribution, data: memoryview
    ) -> Contributed | None:
        """Add a slice that was checked. Returns an event if this server now has all its slices of
        the contribution."""
        self._add_slice(part, incoming, message, data)
        with self._rules_lock:
            event = self.rules.add(message)
            return None if event is None else self._said(event)

    def _lock(self, slice_: int) -> AbstractContextManager[object]:
        """The locks for adding to a slice."""
        raise NotImplementedError

    def _add_slice(
        self, part: PrimarySlice, incoming: Incoming, message: Contribution, data: memoryview
    ) -> None:
        raise NotImplementedError

    def fold(
        self, round_: int, slot: int, fill: int, share: float = 1.0, rows: tuple[Row, ...] = ()
    ) -> float:
        raise AssertionError("a round was to be folded in a job without rounds")

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
        with self._rules_lock:
            return {
                slice_: tuple(sorted(parts - self._layout.slices[slice_].local))
                for slice_, parts in self.primary.changed.items()
                if self.rules.has_contributed(worker, incarnation, slice_)
            }

    def lease(self, worker: int, ticket: int) -> list[int]:
        raise AssertionError("slices are leased one by one only in jobs without rounds")

    def unlease(self, worker: int, ticket: int | None) -> list[Segment]:
        raise AssertionError("slices are leased one by one only in jobs without rounds")

    def freeze(self) -> None:
        with self._fold_lock, self._rules_lock:
            self.rules.freeze()

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
        held = self.rules.taught(asked)
        for stamp in held:
            with self._locks.of(stamp.slice):
                self._replica_sender.teach(to, stamp, len(held), self.primary, routing)

    def reroute(self, routes: Sequence[Route], routing: int) -> tuple[Rerouted, list[Segment]]:
        """Apply new routes: become the primary or a replica of slices, or drop them. Only the
        slices whose role changes are locked and copied. Also returns the memory that readers no
        longer need.

        The event is queued under the lock of the rules, as the events of contributions and steps
        are. So no event that belongs to the old routes is queued after it."""
        changes = self.rules.role_changes(routes)
        primary, memory = self.primary, self.follower.replicas
        with self._locks.all_of(changes.moving):
            promoted = {slice_: memory.export(slice_) for slice_ in changes.promoted}
            prepared = primary.prepare(self._slices(changes.coming), promoted)
            memory.hold(changes.copies, {id_: primary.version_of(id_) for id_ in changes.demoted})
            with self._fold_lock, self._rules_lock:
                event = self.rules.reroute(routes, routing)
                old = primary.change(changes.going, prepared)
                return self._said(event), old

    def close(self) -> None:
        self.primary.close()


def _refuse(verdict: Verdict, message: Contribution | Seed) -> None:
    if (fault := refusal_of(verdict, message)) is not None:
        raise LinkError(fault)


def _finite(slice_: Slice, incoming: Incoming, message: Contribution) -> bool:
    """Whether the added numbers are finite. A buffer that only the evaluator sends may contain
    infinity, such as the bounds of a range."""
    if not slice_.values:
        return all_finite(numbers_in(incoming))
    assert isinstance(incoming, torch.Tensor)
    pieces = pieces_of(slice_, incoming, message.parts)
    return all(all_finite(piece) for part, piece in pieces if part not in slice_.values)


class RoundsSliceStore(SliceStore):
    """Contributions are added to aggregates; a fold makes the next version of all slices."""

    rules: RoundsSlices
    primary: RoundsPrimary
    _rules_type = RoundsSlices
    _primary_type = RoundsPrimary

    def _lock(self, slice_: int) -> AbstractContextManager[object]:
        return self._locks.of(slice_)

    def _add_slice(
        self, part: PrimarySlice, incoming: Incoming, message: Contribution, data: memoryview
    ) -> None:
        if self._job.deterministic:
            part.kept.append((incoming.clone(), message))
        else:
            self.primary.add(part, incoming, message)

    def fold(
        self, round_: int, slot: int, fill: int, share: float = 1.0, rows: tuple[Row, ...] = ()
    ) -> float:
        """Fold every aggregate, write the new version to `slot`, and return the largest weight. If
        the former primary of a slice has already folded it in this round, the slice is only copied.
        `share`: see `Fold.share`."""
        primary = self.primary
        with self._locks.all_of(primary.ids):
            if self._job.deterministic:
                primary.add_kept(self._order)
            weight = max((held.weight for held in primary.held), default=0.0)
            with self._rules_lock:
                due = self.rules.fold(round_)
                sent_on = self.rules.sent_on(due)
            steps = {
                id_: self._step_of(primary.part(id_).held, share, forwarded=id_ in sent_on)
                for id_ in due
            }
            for id_ in sent_on:
                held, shared = primary.part(id_).held, primary.shares_aggregates
                piece = primary.aggregate_piece(held, slot)
                self._replica_sender.fold_too(id_, steps[id_], piece, shared=shared)
            primary.fold(slot, fill, steps)
        return weight

    def _step_of(self, held: Held, share: float, *, forwarded: bool) -> SliceStep:
        self.primary.settle(held, forwarded=forwarded)
        return self._stepping.step(held.weight, held.rate, held.clock, share, held.slice.group)


@dataclass(slots=True)
class _Arriving:
    """The arrived part of the state that a worker shares."""

    parts: dict[int, SliceState] = field(default_factory=dict)
    """The tensors of slices that are not complete yet."""
    whole: set[int] = field(default_factory=set)
    """The slices that are complete."""


class SummedSliceStore(RoundsSliceStore):
    """With `--optimizer-on workers`: a fold makes the sum of the gradients, and workers make the step.
    Parameters and states come from a worker when they are needed, slice by slice."""

    primary: SummedPrimary
    _primary_type = SummedPrimary
    _replicas_type = SummedReplicas
    _arriving: Mapping[tuple[int, int, int], _Arriving] = {}
    """What workers are sharing, by worker, incarnation and version."""
    link_over_bytes: Callable[[int, int], Link | None] = staticmethod(lambda worker, of: None)
    """The link to a worker of this incarnation, if it carries bytes instead of references."""

    def _enter(
        self, part: PrimarySlice, incoming: Incoming, message: Contribution, data: memoryview
    ) -> Contributed | None:
        event = super()._enter(part, incoming, message, data)
        if part.held.slice.group != BUFFERS:
            self._send_early(part)
        return event

    def _send_early(self, part: PrimarySlice) -> None:
        """Send the sum of a slice to the workers once every member has contributed to it, while
        other slices are still being sent. Links that carry references do not need this, because
        they transfer no bytes."""
        slice_, primary = part.held.slice.id, self.primary
        with self._rules_lock:
            round_, routing = self.rules.open_round(slice_), self.rules.routing
            if part.early[0] == round_ or not self.rules.is_summed(slice_):
                return
            found = [
                ((row.worker, row.incarnation), self.link_over_bytes(row.worker, row.incarnation))
                for row in self.rules.members
            ]
        links = {reader: link for reader, link in found if link is not None}
        if not links:
            return
        primary.add_kept_of(part, self._order)
        primary.settle(part.held, forwarded=False)
        step = self._stepping.step(part.held.weight, part.held.rate, part.held.clock)
        part.early = (round_, step, frozenset(links))
        piece = primary.early_sum(slice_)
        for reader, link in links.items():
            sent = (*reader, self._server, slice_, round_, routing, step)
            link.send(builders.early_sum(*sent), (piece,))
            crashpoint.reach_step(server_name(self._server), "sent", "early")

    def _step_of(self, held: Held, share: float, *, forwarded: bool) -> SliceStep:
        """If a sum was already sent, its step does not change any more."""
        round_, step, _ = self.primary.part(held.slice.id).early
        if round_ == self.rules.round - 1 and held.slice.group != BUFFERS:
            return step
        return super()._step_of(held, share, forwarded=forwarded)

    @property
    def _summed(self) -> list[int]:
        """The slices of parameters whose primary this server is."""
        return [slice_.id for slice_ in self.primary.slices if slice_.group != BUFFERS]

    def take_shared(self, message: Shared, data: memoryview) -> None:
        """Receive one tensor of the state that a worker shares, or the end of that state."""
        whose = (message.worker, message.incarnation, message.round)
        with self._rules_lock:
            if Row(message.worker, message.incarnation, 0) not in self.rules.members:
                return
            if whose not in self._arriving:
                # states of earlier versions will not become complete
                later = {key: each for key, each in self._arriving.items() if key[2] >= whose[2]}
                self._arriving = {**later, whose: _Arriving()}
            arriving = self._arriving[whose]
        if message.slice != EVERY_SLICE:
            self._take_tensor(arriving, message, data)
            return
        with self._rules_lock:
            self._arriving = {k: each for k, each in self._arriving.items() if k != whose}
            if arriving.whole.issuperset(self._summed):
                self._put(StateHeld(message.round, message.routing))

    def _take_tensor(self, arriving: "_Arriving", message: Shared, data: memoryview) -> None:
        slice_ = message.slice
        if not 0 <= slice_ < len(self._layout.slices):
            raise LinkError(f"the peer shared slice {slice_}, which does not exist")
        with self._locks.of(slice_):
            part = self.primary.find(slice_)
            if part is None:
                return  # the slice has moved
            state = arriving.parts.setdefault(slice_, {})
            state[message.name] = checked_tensor(message, data, part.held, part.updater).clone()
            if len(state) < message.parts:
                return
            if PARAMETERS not in state:
                raise LinkError(f"the peer shared slice {slice_} without its parameters")
            self.primary.adopt(slice_, arriving.parts.pop(slice_))
            arriving.whole.add(slice_)

    def given(self) -> Iterator[tuple[int, SliceState]]:
        """The states of the slices of parameters, for a worker that joins."""
        for slice_ in self._summed:
            with self._locks.of(slice_):
                state = self.primary.export(slice_)
            yield slice_, state


class OnArrivalSliceStore(SliceStore):
    """Every contribution to a slice is folded when it arrives, as a separate step."""

    rules: OnArrivalSlices
    primary: OnArrivalPrimary
    _rules_type = OnArrivalSlices
    _primary_type = OnArrivalPrimary

    @contextmanager
    def _lock(self, slice_: int) -> Iterator[None]:
        """The lock of the slice and the fold lock: all slices have one updater, so their steps are
        made one after the other."""
        with self._locks.of(slice_), self._fold_lock:
            yield

    def _add_slice(
        self, part: PrimarySlice, incoming: Incoming, message: Contribution, data: memoryview
    ) -> None:
        """Make the step of a contribution, here and on every replica."""
        primary = self.primary
        step = self._stepping.step(
            message.weight, message.rate, message.sequence, group=part.held.slice.group
        )
        # the worker had no gradient for this tensor, so the step changes nothing
        if message.indices == ABSENT:
            step = SliceStep(0.0)
        # end the worker's lease first: then the fold can reuse the slot that the worker has read
        if message.pulled >= 0:
            primary.latest.release(message.worker, message.pulled)
        buffers = primary.buffer_step(part, data, message, self._sharers)
        # `buffer_step` has scaled the change of each buffer, so the step is a full one
        if buffers is not None:
            data, step = buffers, SliceStep(1.0 if len(buffers) else 0.0)
        with self._rules_lock:
            sent_on = self.rules.step_of(message, step)
        if sent_on is not None:
            payload = self._replica_sender.forward(*sent_on, data)
            # make the step from the same bytes that the replicas get
            if buffers is None:
                incoming = primary.contributed(part, payload, message)
        if buffers is None:
            primary.add(part, incoming, message)
        primary.fold_slice(part, step)

    def lease(self, worker: int, ticket: int) -> list[int]:
        """Lease the current slot of each slice to this worker, and return the slots."""
        with self._fold_lock:
            return list(self.primary.latest.lease(worker, ticket))

    def unlease(self, worker: int, ticket: int | None) -> list[Segment]:
        """End the lease of the version that the worker got with `ticket`: it has read the version.
        Returns the memory that this frees."""
        with self._fold_lock:
            latest = self.primary.latest
            latest.release(worker, ticket)
            return self.primary.slots.free(latest.surplus())


class WithoutRows(SliceStore):
    """The slice stores of kind statistics. Their checkpoints contain no rows."""

    def copied(self) -> tuple[dict[int, SliceState], int]:
        """Copy the slices without their rows: a job that resumes begins without rows."""
        copies, torn = super().copied()
        return {id_: {PARAMETERS: state[PARAMETERS]} for id_, state in copies.items()}, torn

    def restore(self, slice_: int, state: Mapping[str, torch.Tensor]) -> None:
        """Begin a slice with the parameters of a checkpoint. Statistics begin with zero, because no
        worker remembers its points."""
        parameters = state[PARAMETERS]
        if self._layout.slices[slice_].group != BUFFERS:
            parameters = torch.zeros_like(parameters)
        super().restore(slice_, {PARAMETERS: parameters})


class RowsSliceStore(WithoutRows, RoundsSliceStore):
    """Kind statistics: contributions wait until a fold names them; a version is the sum of the rows
    that the fold names. A row is the sum of what one worker's points have added."""

    primary: RowsPrimary
    _primary_type = RowsPrimary

    def _add_slice(
        self, part: PrimarySlice, incoming: Incoming, message: Contribution, data: memoryview
    ) -> None:
        assert isinstance(incoming, torch.Tensor)
        self.primary.hold(part, incoming, message)

    def fold(
        self, round_: int, slot: int, fill: int, share: float = 1.0, rows: tuple[Row, ...] = ()
    ) -> float:
        """Add the contributions that `rows` names, delete all other rows, and write the new version
        to `slot`. Returns the number of contributions in a slice."""
        primary = self.primary
        with self._locks.all_of(primary.ids):
            with self._rules_lock:
                due = self.rules.fold(round_, rows)
                sent_on = self.rules.sent_on(due)
            named = {id_: primary.enter(primary.part(id_).held, rows) for id_ in due}
            steps = {id_: SliceStep(float(len(taken))) for id_, taken in named.items()}
            for id_ in sent_on:
                self._replica_sender.fold_rows(id_, steps[id_], rows, named[id_])
            primary.fold(slot, fill, steps)
        return max((step.weight for step in steps.values()), default=0.0)


class RowsOnArrivalSliceStore(WithoutRows, OnArrivalSliceStore):
    """Kind statistics without rounds: a contribution is added to its worker's row when it arrives.
    The row of a worker that has left is deleted with the next contribution. *Servers add
    contributions in different orders, so this store is for comparison only.*"""

    def _add_slice(
        self, part: PrimarySlice, incoming: Incoming, message: Contribution, data: memoryview
    ) -> None:
        assert isinstance(incoming, torch.Tensor)
        primary = self.primary
        if message.pulled >= 0:
            primary.latest.release(message.worker, message.pulled)
        if not len(incoming):
            return
        with self._rules_lock:
            live = self.rules.members
        whose = Row(message.worker, message.incarnation, message.sequence)
        part.updater.enter(part.held, live, [(whose, incoming.clone())])
        if part.held.slice.group == BUFFERS:
            primary.changed[message.slice].update(range(len(part.held.slice.parts)))
        part.held.weight = 1.0
        primary.fold_slice(part, SliceStep(1.0))


def choose_slice_store(job: JobSpec) -> type[SliceStore]:
    """The class of a server's slice store, which depends on the job's sync policy and kind."""
    if not traits_of(job.sync).rounds:
        return RowsOnArrivalSliceStore if keeps_rows(job.kind) else OnArrivalSliceStore
    if sums_only(job):
        return SummedSliceStore
    return RowsSliceStore if keeps_rows(job.kind) else RoundsSliceStore
