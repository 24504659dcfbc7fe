"""The rules for the slices that a server holds, either as their primary or as a copy.

*For each slice and worker, a server keeps one row in the ledger: the sequence of the last
contribution that was added. One row is enough, because a worker sends its contributions in order.
Contributions of incarnations that are not in the view are refused.* The rows are copied together
with the slice, so a promoted replica knows which contributions its slices contain. *A replica makes
a step only if it comes from the slice's primary and directly follows the replica's last step.*

A node calls this module twice: before it touches the memory of a slice (`judge...`), and after it
has changed the memory (`add`, `seeded`, `copied`, `adopted`). The second call records what the
slice contains now, and returns the event for the server's machine, if there is one. The whole state
of a slice is in its `HeldSlice`, so one slice can change while others are in use.

This module has no locks. The runtime calls every method under one lock. It also holds the lock of a
slice from the judgement until the change is recorded. *Members and routes may change in between,
but not the server's role for the slice (primary or copy): a change of the role takes the slice's
lock.*
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Generic, TypeVar

import msgspec

from polyrhythm.core.events import Contributed, Rerouted, SliceSeeded, StateAdopted, StepCopied
from polyrhythm.core.server.replication import fold_step
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

_NO_WORKER = -1
"""The worker number in the row for the fold of a round, which belongs to no single worker."""
_NO_ROW = (0, 0)
MOST_PARTIAL = 64
"""The most incomplete contributions that are kept per member. A correct member completes one
contribution before it sends the next. The limit keeps a faulty member from making a server keep ever
more of them."""
Rows = dict[int, tuple[int, int]]
"""Per worker, its incarnation, and the sequence number of its last contribution in the slice."""


Held = TypeVar("Held", bound="HeldSlice")


class Verdict(Enum):
    """The decision about a message for a slice, with the reason."""

    NEW = "new"
    """The server accepts it."""
    REPEATED = "repeated"
    """The slice contains it already."""
    STRANGER = "stranger"
    """The sender is not a member in this incarnation, or not the primary of the slice."""
    MOVED = "moved"
    """It belongs to other routes than those of this server."""
    FROZEN = "frozen"
    """The parameters are final."""
    GAP = "gap"
    """An earlier step is missing."""
    NOT_HELD = "not-held"
    """The sender knows the routes, but this server does not hold the slice. The server refuses
    it."""
    OPENED = "opened"
    """Training has begun, so initial parameters must not overwrite the slice. The server refuses
    them."""


def refusal_of(verdict: Verdict, message: Contribution | Seed) -> str | None:
    """Why the link of the sender must end; None if the message is accepted or merely ignored."""
    if verdict is Verdict.NOT_HELD:
        return f"the peer sent slice {message.slice}, which is not held here"
    if verdict is Verdict.OPENED:
        return f"w{message.worker} sent initial parameters after training had begun"
    return None


class HeldSlice:
    """One slice that this server holds."""

    __slots__ = (
        "copied_since",
        "copy_targets",
        "is_current",
        "is_primary",
        "is_seeded",
        "route",
        "rows",
        "slice",
        "stamp",
    )

    def __init__(
        self, slice_: int, route: Route, server: int, routing: int, *, fresh: bool
    ) -> None:
        """`fresh`: a worker sends the initial parameters of the slice to all of its holders."""
        self.slice = slice_
        self.route = route
        self.is_primary = route.primary == server
        self.is_seeded = not fresh
        """Whether the slice needs no initial parameters, or has them."""
        self.is_current = fresh
        """For a copy: whether it contains everything that the present primary has sent so far."""
        self.copied_since = routing
        """For a copy: the epoch in which this server began to copy from the present primary."""
        self.copy_targets = set(route.replicas) if fresh and self.is_primary else set[int]()
        """For a primary: the servers that are sent every step of the slice."""
        self.rows: Rows = {}
        self.stamp = Stamp(slice_, 0, 0)
        """The last step that is in the slice."""

    # -- what the slice contains ---------------------------------------------------------------

    def last(self, worker: int, incarnation: int) -> int:
        """The last contribution of this incarnation of a worker; 0 if there is none."""
        row = self.rows.get(worker)
        return row[1] if row is not None and row[0] == incarnation else 0

    def has(self, step: Row) -> bool:
        """Whether a step is in the slice: the slice has this or a later step of the worker, or a
        step of a later incarnation. After a step of a later incarnation, contributions of earlier
        ones are refused."""
        if step.worker == _NO_WORKER:
            return self.stamp.number >= step.sequence
        return self.rows.get(step.worker, _NO_ROW) >= (step.incarnation, step.sequence)

    @property
    def steps(self) -> dict[tuple[int, int], int]:
        """The last contribution of each worker and incarnation, and the last fold, by their numbers."""
        rows = {(worker, row[0]): row[1] for worker, row in self.rows.items()}
        return rows | {(_NO_WORKER, 0): self.stamp.number}

    @property
    def folded_rows(self) -> tuple[Row, ...]:
        """The rows of the contributions that are folded into the slice."""
        return _as_tuple(self.rows)

    # -- its steps -----------------------------------------------------------------------------

    def make_step(self, number: int) -> Stamp:
        """Record that this server makes this step as the primary."""
        self.stamp = Stamp(self.slice, self.route.since, number)
        return self.stamp

    def follow(self, stamp: Stamp, rows: Iterable[Row]) -> None:
        """Record that this server's copy has made a step of the primary."""
        self.stamp = stamp
        self.rows.update((row.worker, (row.incarnation, row.sequence)) for row in rows)

    def is_copied_from(self, server: int) -> bool:
        return not self.is_primary and self.route.primary == server

    # -- its route -----------------------------------------------------------------------------

    def reroute(self, route: Route, server: int, routing: int) -> None:
        if route.primary != self.route.primary:
            self.is_current = False
            self.copied_since = routing
        self.copy_targets.intersection_update(route.holders)
        self.route = route
        if self.is_primary != (route.primary == server):
            self.is_primary = not self.is_primary
            self._change_role()

    def _change_role(self) -> None:
        """Record that this server has become the primary of the slice, or is no longer its
        primary."""
        self.copy_targets.clear()


class RoundsSlice(HeldSlice):
    """With rounds, a primary also keeps the rows of the last fold, beside the present ones."""

    __slots__ = ("_folded",)

    def __init__(
        self, slice_: int, route: Route, server: int, routing: int, *, fresh: bool
    ) -> None:
        super().__init__(slice_, route, server, routing, fresh=fresh)
        self._folded: Rows | None = {} if self.is_primary else None

    def fold(self, round_: int, last: Mapping[tuple[int, int], int] | None) -> None:
        """`last`: per member, its last contribution in the fold; None if the fold contains all
        contributions that have arrived."""
        self._folded = _limited(self.rows, last)
        self.make_step(round_)

    def has_all(self, members: Mapping[int, int]) -> bool:
        """Whether every member has added a contribution since the last fold. `members` gives the
        incarnation of each worker."""
        folded, rows = self._folded, self.rows
        if folded is None or not members:
            return False
        for worker, incarnation in members.items():
            row = rows.get(worker, _NO_ROW)
            if row[0] != incarnation or row == folded.get(worker):
                return False
        return True

    @property
    def folded_rows(self) -> tuple[Row, ...]:
        return _as_tuple(self.rows if self._folded is None else self._folded)

    def _change_role(self) -> None:
        """Discard contributions that were not folded: the slice gets another primary."""
        super()._change_role()
        if self._folded is None:
            self._folded = dict(self.rows)
        else:
            self.rows, self._folded = self._folded, None


class RoleChanges(msgspec.Struct, frozen=True):
    """How the roles of a server change with new routes. All numbers of slices are in ascending
    order."""

    mine: tuple[int, ...]
    """The slices that the server is the primary of."""
    copies: tuple[int, ...]
    coming: tuple[int, ...]
    """The slices whose primary the server becomes."""
    promoted: tuple[int, ...]
    """Those of `coming` of which the server has a copy."""
    going: tuple[int, ...]
    """The slices that get another primary than this server."""
    demoted: tuple[int, ...]
    """Those of `going` of which the server keeps a copy."""
    moving: tuple[int, ...]
    """Every slice that comes, goes, or changes its role. All other slices stay in use meanwhile."""


class HeldSlices(Generic[Held]):
    """All slices that one server holds. A server has `RoundsSlices` or `OnArrivalSlices`."""

    _slice_type: type[Held]

    def __init__(
        self,
        server: int,
        routes: Sequence[Route],
        routing: int,
        *,
        fresh: bool = True,
    ) -> None:
        """`fresh`: the slices have no values yet, and a worker will send the initial parameters to
        their holders. Otherwise this server must fetch its slices."""
        self.routing = routing
        self.round = 1
        """The round in which a contribution counts that becomes complete now."""
        self.opened = False
        """Whether the lead has named the members. The lead names them only when every server has
        all initial parameters."""
        self._server = server
        self._frozen = False
        self._members: dict[int, int] = {}
        self._partial: dict[tuple[int, int, int], int] = {}
        """Per incomplete contribution, how many of its slices have arrived."""
        self._rerouted = not fresh
        """Whether other servers may have sent slices with contributions that `_partial` does not
        count."""
        self._held = {
            slice_: self._slice_type(slice_, route, server, routing, fresh=fresh)
            for slice_, route in _kept_by(server, routes).items()
        }
        self._list()

    def _list(self) -> None:
        self._primaries = [held for held in self._held.values() if held.is_primary]
        self.mine = tuple(held.slice for held in self._primaries)
        """The slices that this server is the primary of, in ascending order."""
        self.copies = tuple(slice_ for slice_, held in self._held.items() if not held.is_primary)

    def __contains__(self, slice_: int) -> bool:
        """Whether this server holds the slice, as its primary or as a copy."""
        return slice_ in self._held

    def held(self, slice_: int) -> Held:
        """A slice that this server holds."""
        return self._held[slice_]

    # -- the initial parameters ----------------------------------------------------------------

    def judge_seed(self, message: Seed) -> Verdict:
        """Decide whether to accept the initial parameters of a slice. *They are accepted once, and
        never after training has begun.* They are ignored if they come from the seeder of earlier
        routes."""
        if message.routing < self.routing:
            return Verdict.MOVED
        held = self._held.get(message.slice)
        missing = held is not None and not held.is_seeded
        if self.opened and not missing:
            return Verdict.OPENED
        if message.routing != self.routing:
            return Verdict.MOVED
        if held is None:
            return Verdict.NOT_HELD
        return Verdict.NEW if missing else Verdict.REPEATED

    def seeded(self, slice_: int, routing: int) -> SliceSeeded:
        """Record that the slice has the initial parameters of this epoch, or those of a
        checkpoint."""
        if (held := self._held.get(slice_)) is not None:
            held.is_seeded = True
        return SliceSeeded(slice_, routing)

    # -- members -------------------------------------------------------------------------------

    def enlist(self, members: Iterable[MemberSpec]) -> None:
        """Set the members of the lead's view. Rows of workers that left are kept: a primary may
        have to find out whether a replica has their contributions."""
        now = self._members = {member.worker: member.incarnation for member in members}
        self.opened = self.opened or bool(now)
        self._partial = {key: of for key, of in self._partial.items() if now.get(key[0]) == key[1]}

    @property
    def members(self) -> tuple[Row, ...]:
        """The members as rows with the sequence 0."""
        return tuple(Row(worker, incarnation, 0) for worker, incarnation in self._members.items())

    def freeze(self) -> None:
        """From now on, ignore contributions: the parameters are final."""
        self._frozen = True

    # -- contributions -------------------------------------------------------------------------

    def judge(self, message: Contribution) -> Verdict:
        """Decide whether to add a slice of a contribution. A sender that is not a member was
        evicted, or is not admitted yet; the lead will tell it. A worker that sends a slice that has
        moved does not know the new routes yet."""
        held = self._held.get(message.slice)
        if held is None or not held.is_primary:
            return Verdict.NOT_HELD if message.routing >= self.routing else Verdict.MOVED
        if self._frozen:
            return Verdict.FROZEN
        worker, incarnation = message.worker, message.incarnation
        if self._members.get(worker) != incarnation:
            return Verdict.STRANGER
        row = held.rows.get(worker)
        if row is not None and row[0] == incarnation and message.sequence <= row[1]:
            return Verdict.REPEATED
        return Verdict.NEW

    def add(self, message: Contribution) -> Contributed | None:
        """Record that a slice with the verdict NEW was added. Returns an event if all slices whose
        primary this server is now contain the contribution. *A contribution counts in the round in
        which its last slice was added.*"""
        whose = message.worker, message.incarnation, message.sequence
        self._held[message.slice].rows[message.worker] = whose[1:]
        if len(self.mine) > 1:
            slices = self._partial[whose] = (self._partial.get(whose) or self._begin(whose)) + 1
            if slices < len(self.mine):
                return None
            del self._partial[whose]
        # a worker computes the contribution to a round from the version of the round before it
        version = message.round - 1
        return Contributed(*whose, self.round, message.pull, message.pulled, version)

    def _begin(self, whose: tuple[int, int, int]) -> int:
        """Begin to count the slices of a contribution; one of them was added. Returns how many
        other slices contained the contribution already when the routes changed."""
        if len(self._partial) >= MOST_PARTIAL:
            self._make_room(whose[0])
        if not self._rerouted:
            return 0
        return sum(held.last(*whose[:2]) >= whose[2] for held in self._primaries) - 1

    def _make_room(self, worker: int) -> None:
        """Forget the oldest incomplete contribution of a worker that has `MOST_PARTIAL` of them."""
        partial = [key for key in self._partial if key[0] == worker]
        if len(partial) >= MOST_PARTIAL:
            del self._partial[partial[0]]

    @property
    def partial(self) -> int:
        """The number of incomplete contributions."""
        return len(self._partial)

    @property
    def torn(self) -> int:
        """How many contributions are folded into only a part of this server's slices."""
        return len(self._partial)

    def has_contributed(self, worker: int, incarnation: int, slice_: int) -> bool:
        """Whether the slice contains a contribution of this incarnation of the worker. Then the
        worker has also read a version."""
        row = self._held[slice_].rows.get(worker)
        return row is not None and row[0] == incarnation

    # -- routes --------------------------------------------------------------------------------

    def role_changes(self, routes: Sequence[Route]) -> RoleChanges:
        """How the roles of this server would change with these routes."""
        kept = _kept_by(self._server, routes)
        mine = tuple(slice_ for slice_, route in kept.items() if route.primary == self._server)
        copies = tuple(slice_ for slice_ in kept if slice_ not in set(mine))
        coming = tuple(slice_ for slice_ in mine if slice_ not in set(self.mine))
        going = tuple(slice_ for slice_ in self.mine if slice_ not in set(mine))
        return RoleChanges(
            mine,
            copies,
            coming,
            tuple(slice_ for slice_ in coming if slice_ in self._held),
            going,
            tuple(slice_ for slice_ in going if slice_ in kept),
            tuple(sorted({*coming, *going, *set(copies).symmetric_difference(self.copies)})),
        )

    def reroute(self, routes: Sequence[Route], routing: int) -> Rerouted:
        """Set the routes. Returns the event that reports what the slices contain."""
        before, self._held = self._held, {}
        for slice_, route in _kept_by(self._server, routes).items():
            held = before.get(slice_)
            if held is None:
                held = self._slice_type(slice_, route, self._server, routing, fresh=False)
            else:
                held.reroute(route, self._server, routing)
            self._held[slice_] = held
        self.routing = routing
        self._rerouted = True
        self._partial.clear()
        self._list()
        self._set_round()
        version, rows = self._least()
        return Rerouted(routing, version, rows, self._made_of_all(), self.round)

    def _set_round(self) -> None:
        """Set the round in which later contributions count, after a change of the slices."""

    def _least(self) -> tuple[int, tuple[Row, ...]]:
        """The contents of all slices whose primary this server is: the version, and per member the
        last contribution."""
        version = min((held.stamp.number for held in self._primaries), default=0)
        rows = []
        for member in self._members.items():
            least = min((held.last(*member) for held in self._primaries), default=0)
            rows.append(Row(*member, least))
        return version, tuple(rows)

    # -- as a primary: its copies on other servers ---------------------------------------------

    def copy_of_fold(
        self,
        slice_: int,
        step: SliceStep,
        live: tuple[Row, ...] = (),
        differences: tuple[Row, ...] = (),
    ) -> tuple[Copy, list[int]]:
        """The message about the step that a fold has made in a slice, and the servers that must
        make the step too. `live`, `differences`: see `Copy`."""
        held = self._held[slice_]
        copy = Copy(
            routing=self.routing,
            server=self._server,
            slice=slice_,
            stamp=held.stamp,
            step=step,
            rows=held.folded_rows,
            live=live,
            differences=differences,
        )
        return copy, sorted(held.copy_targets)

    def sent_on(self, slices: Iterable[int]) -> list[int]:
        """Those of these slices whose steps are sent to other servers."""
        return [slice_ for slice_ in slices if self._held[slice_].copy_targets]

    def teach(self, peer: int, theirs: Stamp, slices: int, routing: int) -> State:
        """Build the head of the message with the state of a slice for `peer`. From now on, `peer`
        also gets every step of the slice. The message has 0 `parts` if the stamp `theirs` shows
        that the copy of `peer` equals the slice. A copy without any step never counts as equal,
        because it may lack the initial parameters. `slices`: how many slices `peer` asked for."""
        held = self._held[theirs.slice]
        held.copy_targets.add(peer)
        same = held.stamp.number > 0 and held.stamp == theirs
        return State(
            routing=routing,
            server=self._server,
            slice=held.slice,
            slices=slices,
            stamp=held.stamp,
            rows=held.folded_rows,
            parts=0 if same else 1,
        )

    def taught(self, asked: Iterable[Stamp]) -> list[Stamp]:
        """The stamps in a peer's request that refer to slices whose state this server can send."""
        mine = set(self.mine)
        return [stamp for stamp in asked if stamp.slice in mine]

    # -- as a copy -----------------------------------------------------------------------------

    def fetch(self, slices: Iterable[int], routing: int) -> Fetch:
        """Build the request for the states of these slices, with the stamps of this server's
        copies."""
        stamps = (self.stamp(slice_) for slice_ in slices)
        return Fetch(routing=routing, server=self._server, held=tuple(stamps))

    def stamp(self, slice_: int) -> Stamp:
        """The last step of a slice on this server."""
        held = self._held.get(slice_)
        return Stamp(slice_, 0, 0) if held is None else held.stamp

    def judge_step(self, copy: Copy) -> Verdict:
        """Decide whether to make a step that a server has sent. Each step is made exactly once, in
        order, and only if it comes from the slice's primary."""
        held = self._held.get(copy.slice)
        if held is None or not held.is_copied_from(copy.server):
            return Verdict.STRANGER
        if not held.is_current:
            # the state of the slice has not arrived since the slice got this primary
            return Verdict.MOVED
        if copy.stamp.number == held.stamp.number + 1:
            return Verdict.NEW
        return Verdict.REPEATED if copy.stamp.number <= held.stamp.number else Verdict.GAP

    def copied(self, copy: Copy, verdict: Verdict) -> StepCopied | None:
        """Record the result of `judge_step`, `verdict`. If it is NEW, this server's copy has made
        the step. Returns an event if all slices that are copied from this primary now contain the
        step. *Record the step even if the slice has meanwhile got another primary: the stamp then
        shows the new primary that the two slices differ.*"""
        if verdict not in (Verdict.NEW, Verdict.REPEATED, Verdict.GAP):
            return None
        if verdict is Verdict.NEW and (held := self._held.get(copy.slice)) is not None:
            held.follow(copy.stamp, copy.rows)
        step = _step_of(copy)
        copies = self._reliable(copy.server)
        made = bool(copies) and all(held.has(step) for held in copies)
        return StepCopied(copy.server, (step,)) if made else None

    def judge_state(self, state: State) -> Verdict:
        """Whether this server still needs the state of a slice that it has requested. It does not
        if it has since begun to copy the slice from another primary."""
        held = self._held.get(state.slice)
        if held is None or held.route.primary != state.server:
            return Verdict.STRANGER
        return Verdict.NEW if state.routing >= held.copied_since else Verdict.MOVED

    def adopted(self, state: State, verdict: Verdict) -> StateAdopted | None:
        """Record the state of a slice after `judge_state`. If the state was needed, it is in the
        slice now. Returns an event if all copies of this primary's slices are current. *The copy is
        current only if its primary did not change while the state was written.*"""
        if verdict is Verdict.NEW and (held := self._held.get(state.slice)) is not None:
            held.rows = {}
            held.follow(state.stamp, state.rows)
            held.is_current = self.judge_state(state) is Verdict.NEW
        copies = self._copies_from(state.server)
        if not all(held.is_current for held in copies):
            return None
        return StateAdopted(state.server, state.routing, self._made_all(state.server))

    def _copies_from(self, primary: int) -> list[Held]:
        return [held for held in self._held.values() if held.is_copied_from(primary)]

    def _reliable(self, primary: int) -> list[Held]:
        """The slices that are copied from `primary`, except those whose state is still being
        fetched. Empty if one of these copies is not current."""
        copies = [
            held
            for held in self._copies_from(primary)
            if held.is_current or self._server not in held.route.learners
        ]
        return copies if all(held.is_current for held in copies) else []

    def _made_all(self, primary: int) -> tuple[Row, ...]:
        """Per worker, the last step that every slice copied from `primary` contains, except slices
        whose state is still being fetched."""
        steps = [held.steps for held in self._reliable(primary)]
        common = set(steps[0]).intersection(*steps[1:]) if steps else set()
        return tuple(Row(*key, min(each[key] for each in steps)) for key in sorted(common))

    def _made_of_all(self) -> tuple[tuple[int, tuple[Row, ...]], ...]:
        """Per primary, the last steps that every slice copied from it contains."""
        primaries = sorted({held.route.primary for held in self._held.values()})
        made = [(primary, self._made_all(primary)) for primary in primaries]
        return tuple((primary, rows) for primary, rows in made if rows)


class RoundsSlices(HeldSlices[RoundsSlice]):
    """The slices of a policy with rounds. A step of a slice is numbered by the round that it
    folds."""

    _slice_type = RoundsSlice
    _torn = 0

    def fold(self, round_: int, named: Iterable[Row] | None = None) -> tuple[int, ...]:
        """Record the fold of round `round_`. Later contributions count in the next round. Returns
        the slices in which this server folds the round. *If the former primary of a slice has
        already folded it, the slice only moves on to the new version.* `named`: per member, its
        last contribution in the fold; None if the fold contains all contributions that have
        arrived."""
        self.round = round_ + 1
        self._torn = len(self._partial) if named is None else 0
        last = None if named is None else {(r.worker, r.incarnation): r.sequence for r in named}
        behind = tuple(s for s in self.mine if self._held[s].stamp.number < round_)
        for slice_ in behind:
            self._held[slice_].fold(round_, last)
        return behind

    def open_round(self, slice_: int) -> int:
        """The round that the next fold of a slice makes. *After a failover during a fold, some slices
        of this server have folded the round and others have not.*"""
        return self._held[slice_].stamp.number + 1

    def is_summed(self, slice_: int) -> bool:
        """With `--optimizer-on workers`: whether the sum of a slice may be sent before the lead
        orders the fold. *It may once every member has added its contribution of the open round.
        Then the sum cannot change any more: a member contributes once per round, and only a fold
        names new members.* If a member dies afterwards, its contribution may be in this slice and
        not in others. That can always happen, and every worker still gets the same sum of each
        slice."""
        held = self._held[slice_]
        return held.is_primary and held.has_all(self._members)

    @property
    def torn(self) -> int:
        return self._torn

    def _set_round(self) -> None:
        """Set the round in which contributions count: the round of the most advanced slice, if
        others are behind it."""
        self.round = 1 + max((held.stamp.number for held in self._primaries), default=0)


class OnArrivalSlices(HeldSlices[HeldSlice]):
    """The slices of a policy that folds every contribution on arrival, as a separate step."""

    _slice_type = HeldSlice

    def step_of(self, message: Contribution, step: SliceStep) -> tuple[Copy, list[int]] | None:
        """Make the message about the next step of a slice, which folds this contribution. Returns
        the message and the servers that must make the step too; None if there are no such
        servers."""
        held = self._held[message.slice]
        stamp = held.make_step(held.stamp.number + 1)
        if not held.copy_targets:
            return None
        copy = Copy(
            routing=self.routing,
            server=self._server,
            worker=message.worker,
            incarnation=message.incarnation,
            sequence=message.sequence,
            slice=message.slice,
            stamp=stamp,
            step=step,
            rows=(Row(message.worker, message.incarnation, message.sequence),),
            indices=message.indices,
            quantised=message.quantised,
        )
        return copy, sorted(held.copy_targets)


def _as_tuple(rows: Rows) -> tuple[Row, ...]:
    return tuple(Row(worker, *row) for worker, row in rows.items())


def _limited(rows: Rows, last: Mapping[tuple[int, int], int] | None) -> Rows:
    """A copy of the rows without contributions that are not folded yet. The rows of workers that
    left are kept."""
    if last is None:
        return dict(rows)
    return {
        worker: (incarnation, min(sequence, last.get((worker, incarnation), sequence)))
        for worker, (incarnation, sequence) in rows.items()
    }


def _kept_by(server: int, routes: Sequence[Route]) -> dict[int, Route]:
    """The routes of the slices that `server` holds, as the primary or as a copy."""
    return {slice_: route for slice_, route in enumerate(routes) if server in route.holders}


def _step_of(copy: Copy) -> Row:
    """The step of a `Copy`: a single contribution, or the fold of a round."""
    if copy.worker < 0:
        return Row(*fold_step(copy.stamp.number))
    return Row(copy.worker, copy.incarnation, copy.sequence)
