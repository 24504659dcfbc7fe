"""The ledger: which contributions are in each slice of a server.

*Per slice and worker the ledger keeps one row: the last sequence that was added. One row is enough,
because a worker sends its contributions in order. Contributions of incarnations that are not in the
view are refused.* The rows are copied together with the slice, so a replica that is promoted knows
which contributions its slices contain. *A replica makes a step only if the step comes from the
slice's primary and directly follows the last step that the replica made.*

The ledger has no lock of its own: the slice store calls it under a lock.

The two ledgers: of policies with rounds, and of policies that fold on arrival.

Events and messages that a server derives from its ledger, for the runtime and the simulator.

The caller holds the ledger's lock.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from polyrhythm.core.events import Contributed, Rerouted, StateAdopted, StepCopied
from polyrhythm.core.server.replication import fold_step
from polyrhythm.wire.messages import Contribution, Copy, Fetch, Route, Row, Stamp, State

_NO_WORKER = -1
"""The worker number in the row for the fold of a round. Such a fold belongs to no single worker."""
_NO_ROW = (0, 0)
MOST_PARTIAL = 64
"""The most incomplete contributions that are kept per member. A correct member completes one
contribution before it sends the next. The limit keeps a faulty member from making the ledger grow."""
Rows = dict[int, tuple[int, int]]
"""Per worker, its incarnation, and the sequence number of its last contribution in the slice."""


class Verdict(Enum):
    NEW = "new"
    REPEATED = "repeated"
    STRANGER = "stranger"


# reading a member of an Enum costs a call, and these members are read for every slice
NEW, REPEATED, STRANGER = Verdict.NEW, Verdict.REPEATED, Verdict.STRANGER


@dataclass(slots=True)
class _Arrival:
    sequence: int
    slices: int
    round: int


class Ledger:
    """The rows of all slices of one server. For each incomplete contribution, the ledger also
    counts the slices that have arrived. A server has a `RoundsLedger` or an `OnArrivalLedger`
    (`ledger.py`)."""

    def __init__(self, mine: Iterable[int] = (), *, replicated: bool = False) -> None:
        """`mine`: the slices that this server is the primary of. `replicated`: the job has
        replicas."""
        self.round = 1
        self._replicated = replicated
        self._members: dict[int, int] = {}
        self._mine = frozenset(mine)
        self._rows: dict[int, Rows] = {}
        self._arrivals: dict[tuple[int, int, int], _Arrival] = {}
        self._rerouted = False
        self._primary_since: dict[int, int] = {}
        self._stamps: dict[int, tuple[int, int]] = {}
        self._primaries: dict[int, int] = {}
        self._fresh: set[int] = set()
        self._learning: set[int] = set()
        self._copied_since: dict[int, int] = {}
        """Per slice, the epoch in which this server began to copy it from its current primary."""
        self._copy_targets: dict[int, set[int]] = {}
        self._unseeded: set[int] = set()
        """Slices whose initial parameters have not come."""
        self._opened = False

    # -- the initial parameters ----------------------------------------------------------------

    def await_seeds(self, slices: Iterable[int]) -> None:
        """Expect the initial parameters of these slices. Each slice may be seeded once."""
        self._unseeded = set(slices)

    def may_seed(self, slice_: int) -> bool:
        """Whether the initial parameters of this slice are still missing."""
        return slice_ in self._unseeded

    def seeded(self, slice_: int) -> None:
        self._unseeded.discard(slice_)

    @property
    def opened(self) -> bool:
        """Whether the lead has named the members. The lead names them only when every server has
        all initial parameters."""
        return self._opened

    # -- members -------------------------------------------------------------------------------

    def enlist(self, members: dict[int, int]) -> None:
        """Set the incarnation of each worker in the lead's view. Rows of workers that left stay: a
        primary may still have to find out whether a replica has their contributions."""
        self._members = dict(members)
        self._opened = self._opened or bool(members)
        self._arrivals = {
            key: arrival for key, arrival in self._arrivals.items() if members.get(key[0]) == key[1]
        }

    @property
    def members(self) -> tuple[Row, ...]:
        """The members in the form of rows, each with the sequence 0."""
        return tuple(Row(worker, incarnation, 0) for worker, incarnation in self._members.items())

    # -- contributions -------------------------------------------------------------------------

    def judge(self, worker: int, incarnation: int, sequence: int, slice_: int) -> Verdict:
        if self._members.get(worker) != incarnation:
            return STRANGER
        rows = self._rows.get(slice_)
        row = None if rows is None else rows.get(worker)
        if row is not None and row[0] == incarnation and sequence <= row[1]:
            return REPEATED
        return NEW

    def add(
        self, worker: int, incarnation: int, sequence: int, slice_: int, slices: int
    ) -> int | None:
        """Record that a slice with the verdict NEW was added. Returns the round of the contribution
        if it is complete now, else None. A contribution is complete when `slices` slices have come;
        its sender has counted them. After a change of routes, it is complete when every slice of
        which this server is the primary has come."""
        rows = self._rows.get(slice_)
        if rows is None:
            rows = self._rows[slice_] = {}
        rows[worker] = (incarnation, sequence)
        if slices == 1 and not self._arrivals and not self._rerouted:
            # For a model of one slice, the lines below would have the same result, but take longer.
            return self.round
        key = (worker, incarnation, sequence)
        arrival = self._arrivals.get(key)
        if arrival is None:
            before = self._count(worker, incarnation, sequence) - 1 if self._rerouted else 0
            if len(self._arrivals) >= MOST_PARTIAL:
                self._make_room(worker)
            arrival = self._arrivals[key] = _Arrival(sequence, before, self.round)
        arrival.slices += 1
        arrival.round = self.round
        if arrival.slices < (len(self._mine) if self._rerouted else slices):
            return None
        del self._arrivals[key]
        return arrival.round

    def _make_room(self, worker: int) -> None:
        """Forget the oldest incomplete contribution of a worker that has `MOST_PARTIAL` of them."""
        partial = [key for key in self._arrivals if key[0] == worker]
        if len(partial) >= MOST_PARTIAL:
            del self._arrivals[partial[0]]

    @property
    def partial(self) -> int:
        """The number of incomplete contributions."""
        return len(self._arrivals)

    @property
    def torn(self) -> int:
        """How many contributions are folded into some slices of this server but not into all of
        them."""
        return len(self._arrivals)

    def has_contributed(self, worker: int, incarnation: int, slice_: int) -> bool:
        """Whether the slice contains a contribution of this incarnation of the worker. If so, the
        worker has also read a version."""
        row = self._rows.get(slice_, {}).get(worker)
        return row is not None and row[0] == incarnation

    def _count(self, worker: int, incarnation: int, sequence: int) -> int:
        """Of the slices whose primary this server is, how many contain the contribution."""
        count = 0
        for slice_ in self._mine:
            row = self._rows.get(slice_, {}).get(worker)
            count += row is not None and row[0] == incarnation and row[1] >= sequence
        return count

    # -- primary and replicas ------------------------------------------------------------------

    def begin(self, server: int, routes: Mapping[int, Route], routing: int) -> None:
        """Set the first routes. All holders of a slice begin with the same parameters, so every
        replica is current."""
        self.reroute(server, routes, routing)
        self._copy_targets = {slice_: set(routes[slice_].replicas) for slice_ in self._mine}
        self._fresh = set(routes) - self._mine

    def reroute(self, server: int, routes: Mapping[int, Route], routing: int) -> None:
        """Set the routes. `server`: the number of the server that this ledger belongs to."""
        mine = led_by(server, routes)
        for slice_ in mine - self._mine:
            self._primary_since[slice_] = routes[slice_].since
        for slice_ in [s for s in self._stamps | self._rows if s not in routes]:
            self._drop(slice_)
        self._copy_targets = {
            slice_: self._copy_targets.get(slice_, set()).intersection(routes[slice_].holders)
            for slice_ in mine
        }
        changed = {s for s, p in self._primaries.items() if s in routes and routes[s].primary != p}
        self._fresh -= changed
        stays = self._primaries.keys() - changed
        self._copied_since = {s: self._copied_since[s] if s in stays else routing for s in routes}
        self._primaries = {slice_: route.primary for slice_, route in routes.items()}
        self._learning = {slice_ for slice_, route in routes.items() if server in route.learners}
        self._mine = mine
        self._rerouted = True
        self._arrivals.clear()

    def _drop(self, slice_: int) -> None:
        """Forget a slice that this server no longer holds."""
        self._rows.pop(slice_, None)
        self._stamps.pop(slice_, None)
        self._fresh.discard(slice_)

    def copy_targets(self, slice_: int) -> set[int]:
        """The servers that are sent every step of the slice."""
        return self._copy_targets.get(slice_, set())

    def teach(self, peer: int, slices: Iterable[int], held: Iterable[Stamp]) -> dict[int, bool]:
        """From now on every step of these slices goes to `peer`. Returns, per slice, whether the
        copy on `peer` is current according to its stamps in `held`. A copy without any step never
        counts as current: it may lack the initial parameters."""
        theirs = {stamp.slice: stamp for stamp in held}
        for slice_ in slices:
            self._copy_targets[slice_].add(peer)
        return {
            slice_: self.number(slice_) > 0 and theirs.get(slice_) == self.stamp(slice_)
            for slice_ in slices
        }

    def _make_step(self, slice_: int, number: int) -> None:
        """Record that this server, as the primary, makes this step of a slice."""
        self._stamps[slice_] = (self._primary_since.get(slice_, 0), number)

    def stamp(self, slice_: int) -> Stamp:
        return Stamp(slice_, *self._stamps.get(slice_, (0, 0)))

    def number(self, slice_: int) -> int:
        return self._stamps.get(slice_, (0, 0))[1]

    def folded_rows(self, slice_: int) -> tuple[Row, ...]:
        """The rows of the contributions that are folded into the slice."""
        return as_tuple(self._rows.get(slice_, {}))

    def may_copy(self, server: int, stamp: Stamp) -> bool:
        """Whether the step comes from the slice's primary and directly follows the last step of
        this server's copy. So no step is made twice, and no step is left out."""
        follows = stamp.number == self.number(stamp.slice) + 1
        return self.accepts(server, stamp.slice) and follows

    def accepts(self, server: int, slice_: int) -> bool:
        """Whether `server` is the slice's primary and this server's copy is current."""
        return self._primaries.get(slice_) == server and slice_ in self._fresh

    def copied(self, stamp: Stamp, rows: Iterable[Row]) -> None:
        """Record that this server's copy has made a step of the primary."""
        self._stamps[stamp.slice] = (stamp.primary_since, stamp.number)
        mine = self._rows.setdefault(stamp.slice, {})
        mine.update((row.worker, (row.incarnation, row.sequence)) for row in rows)

    def awaits(self, server: int, slice_: int, routing: int) -> bool:
        """Whether a state that was requested from `server` in this routing epoch is still wanted.
        It is not if this server has begun to copy the slice from another primary since then."""
        mine = self._primaries.get(slice_) == server
        return mine and routing >= self._copied_since[slice_]

    def adopted(self, primary: int) -> bool:
        """Whether this server's copies of all slices of this primary are current."""
        return self._fresh.issuperset(self.replicas_of(primary))

    def adopt(self, stamp: Stamp, rows: Iterable[Row]) -> None:
        """The state of a slice has arrived from its primary, so this server's copy is current."""
        self._rows[stamp.slice] = {}
        self.copied(stamp, rows)
        self._fresh.add(stamp.slice)

    def replicas_of(self, primary: int) -> list[int]:
        """The slices that this server copies from this primary."""
        return [
            slice_
            for slice_, of in self._primaries.items()
            if of == primary and slice_ not in self._mine
        ]

    def made(self, primary: int, steps: Iterable[Row]) -> tuple[Row, ...]:
        """Returns those of `steps` that every slice copied from `primary` contains. Such a slice
        also contains all earlier steps. Slices whose state is still being fetched are left out."""
        replicas = self._reliable(primary)
        return tuple(
            step for step in steps if replicas and all(self._has(s, step) for s in replicas)
        )

    def made_all(self, primary: int) -> tuple[Row, ...]:
        """Per worker, the last step that is in every slice copied from `primary`. Slices whose
        state is still being fetched are left out."""
        rows = [self._all_rows(slice_) for slice_ in self._reliable(primary)]
        common = set(rows[0]).intersection(*rows[1:]) if rows else set()
        return tuple(Row(*key, min(row[key] for row in rows)) for key in sorted(common))

    def _reliable(self, primary: int) -> list[int]:
        """The slices that are copied from `primary`, except those whose state is still being
        fetched; empty if this server's copy of one of them is not current."""
        replicas = self.replicas_of(primary)
        if self._fresh.issuperset(replicas):
            return replicas
        replicas = [s for s in replicas if s not in self._learning or s in self._fresh]
        return replicas if self._fresh.issuperset(replicas) else []

    def made_of_all(self) -> tuple[tuple[int, tuple[Row, ...]], ...]:
        """Per primary, the last steps that are in every slice copied from it."""
        primaries = sorted(set(self._primaries.values()))
        made = [(primary, self.made_all(primary)) for primary in primaries]
        return tuple((primary, rows) for primary, rows in made if rows)

    def _all_rows(self, slice_: int) -> dict[tuple[int, int], int]:
        rows = {(worker, row[0]): row[1] for worker, row in self._rows.get(slice_, {}).items()}
        return rows | {(_NO_WORKER, 0): self.number(slice_)}

    def least(self) -> tuple[int, tuple[Row, ...]]:
        """What is in every slice of which this server is the primary: the version, and per member
        the last contribution."""
        version = min((self.number(slice_) for slice_ in self._mine), default=0)
        rows = []
        for worker, incarnation in self._members.items():
            least = min(
                (self._last(slice_, worker, incarnation) for slice_ in self._mine), default=0
            )
            rows.append(Row(worker, incarnation, least))
        return version, tuple(rows)

    def _last(self, slice_: int, worker: int, incarnation: int) -> int:
        row = self._rows.get(slice_, {}).get(worker)
        return row[1] if row is not None and row[0] == incarnation else 0

    def _has(self, slice_: int, step: Row) -> bool:
        """Whether a step is in the slice: the slice has this or a later step of the worker, or a step
        of a later incarnation. Once a slice has a step of a later incarnation, contributions of
        earlier incarnations are refused."""
        if step.worker == _NO_WORKER:
            return self.number(slice_) >= step.sequence
        row = self._rows.get(slice_, {}).get(step.worker, _NO_ROW)
        return row >= (step.incarnation, step.sequence)


def led_by(server: int, routes: Mapping[int, Route]) -> frozenset[int]:
    """The slices that `server` is the primary of."""
    return frozenset(slice_ for slice_, route in routes.items() if route.primary == server)


def as_tuple(rows: Rows) -> tuple[Row, ...]:
    return tuple(Row(worker, *row) for worker, row in rows.items())


class RoundsLedger(Ledger):
    """The ledger of a policy with rounds. A step of a slice has the number of the round that it folds.
    The rows as of the last fold are kept too, beside the current rows."""

    def __init__(self, mine: Iterable[int] = (), *, replicated: bool = False) -> None:
        super().__init__(mine, replicated=replicated)
        self._folded: dict[int, Rows] = {}
        self._torn = 0

    def close(self, round_: int, named: Iterable[Row] | None = None) -> None:
        """Round `round_` is folded; contributions that come later count in the next round. A slice is
        not folded again if its former primary had folded this round already. `named`: the last
        contribution of each member that the fold contains; None if the fold contains all
        contributions that have come."""
        self.round = round_ + 1
        self._torn = len(self._arrivals) if named is None else 0
        if self._replicated:
            last = None if named is None else {(r.worker, r.incarnation): r.sequence for r in named}
            for slice_ in [s for s in self._mine if self.number(s) < round_]:
                self._folded[slice_] = _limited(self._rows.get(slice_, {}), last)
                self._make_step(slice_, round_)

    def reroute(self, server: int, routes: Mapping[int, Route], routing: int) -> None:
        """Set the routes. Contributions to a slice that were not folded are discarded if the slice
        gets another primary. If some slices are rounds behind, contributions count in the round of
        the slice that is furthest ahead."""
        mine = led_by(server, routes)
        for slice_ in mine - self._mine:
            self._folded[slice_] = dict(self._rows.get(slice_, {}))
        for slice_ in self._mine - mine:
            self._rows[slice_] = self._folded.pop(slice_, {})
        super().reroute(server, routes, routing)
        self.round = 1 + max((self.number(slice_) for slice_ in mine), default=0)

    @property
    def torn(self) -> int:
        return self._torn

    def _drop(self, slice_: int) -> None:
        super()._drop(slice_)
        self._folded.pop(slice_, None)

    def folded_rows(self, slice_: int) -> tuple[Row, ...]:
        if slice_ in self._mine:
            return as_tuple(self._folded.get(slice_, {}))
        return super().folded_rows(slice_)


class OnArrivalLedger(Ledger):
    """The ledger of a policy that folds every contribution on arrival, as a step of its own."""

    def next_step(self, slice_: int) -> Stamp:
        """Record the next step of a slice, which this server makes as the primary. Returns its
        stamp."""
        self._make_step(slice_, self.number(slice_) + 1)
        return self.stamp(slice_)


def _limited(rows: Rows, last: Mapping[tuple[int, int], int] | None) -> Rows:
    """A copy of the rows that leaves out contributions after the last one that is folded. The rows
    of workers that left are kept."""
    if last is None:
        return dict(rows)
    return {
        worker: (incarnation, min(sequence, last.get((worker, incarnation), sequence)))
        for worker, (incarnation, sequence) in rows.items()
    }


def kept_by(server: int, routes: Sequence[Route]) -> dict[int, Route]:
    """The routes of the slices that `server` holds, as the primary or as a copy."""
    return {slice_: route for slice_, route in enumerate(routes) if server in route.holders}


def step_of(copy: Copy) -> Row:
    """The step of a `Copy`: a contribution that was folded by itself, or the fold of a round."""
    if copy.worker < 0:
        return Row(*fold_step(copy.stamp.number))
    return Row(copy.worker, copy.incarnation, copy.sequence)


def contributed(ledger: Ledger, message: Contribution) -> Contributed | None:
    """Note that the slice of this message was added. Returns the event that reports the contribution,
    if all of its slices for this server are added; else None."""
    whose = message.worker, message.incarnation, message.sequence
    round_ = ledger.add(*whose, message.slice, message.slices)
    if round_ is None:
        return None
    # a worker computes the contribution to a round from the version of the round before it
    version = message.round - 1
    return Contributed(*whose, round_, message.pull, message.pulled, version)


def copied(ledger: Ledger, copy: Copy) -> StepCopied | None:
    """The event that reports this step, if the step is made in all slices that are copied from its
    primary; else None."""
    made = ledger.made(copy.server, (step_of(copy),))
    return StepCopied(copy.server, made) if made else None


def adopted(ledger: Ledger, state: State) -> StateAdopted | None:
    """The event that reports the arrival of this state, if all copies of the primary's slices are
    current now; else None."""
    if not ledger.adopted(state.server):
        return None
    return StateAdopted(state.server, state.routing, ledger.made_all(state.server))


def rerouted(ledger: Ledger, routing: int) -> Rerouted:
    version, rows = ledger.least()
    return Rerouted(routing, version, rows, ledger.made_of_all(), ledger.round)


def fetch(ledger: Ledger, server: int, slices: Sequence[int], routing: int) -> Fetch:
    """The request of `server` for these slices, with the stamps of the copies that it has."""
    held = tuple(ledger.stamp(slice_) for slice_ in slices)
    return Fetch(routing=routing, server=server, held=held)
