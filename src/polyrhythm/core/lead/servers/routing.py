"""Decides which server holds which slice, how slices move, and which worker sends the initial
parameters.

*Round 1 begins with the initial parameters of one worker, the seeder. If the seeder dies before
every server has all parameters, the routing epoch rises and the servers allocate their slices
again. Servers ignore messages of an older epoch, so the parameters of two seeders never mix.*

*After that, the epoch rises when a server is lost, joins or leaves, and when a server has learned a
slice. Servers keep the slices that they hold. Workers get the new routes when every server applies
them.*

*A scheme gives the goal of placement (`core/placement/schemes.py`), and each slice moves towards
the goal independently of the others. A new goal is made when servers join, leave or are drained,
and when the lead adopts a new assignment (`placement.py`). The goal gives no slice to a server that
is being drained, and the server leaves when it holds no slice.*
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
from msgspec.structs import replace

from polyrhythm.core.lead.servers.roster import Roster
from polyrhythm.core.placement import steps
from polyrhythm.core.placement.load import LoadLine
from polyrhythm.core.placement.schemes import RING, SCHEMES, Lines
from polyrhythm.core.placement.slices import lay_out
from polyrhythm.errors import InvariantBroken
from polyrhythm.wire.messages import (
    Address,
    CaughtUp,
    Division,
    ModelSpec,
    Placed,
    Route,
    Row,
    Seeded,
)


class SliceLoss(msgspec.Struct, frozen=True):
    """The slices that have no copy left."""

    slices: int
    nbytes: int


@dataclass(slots=True)
class Change:
    """A change of routes that not every server applies yet."""

    since_ns: int
    joined: list[int] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    left: list[int] = field(default_factory=list)
    """The servers that were drained and hold nothing any more."""
    promoted: dict[int, int] = field(default_factory=dict)
    """Per server, the number of slices of which it becomes the primary."""


class PlacementGoal(msgspec.Struct):
    """The routes towards which slices move."""

    scheme: str = RING
    replicas: int = 0
    lines: dict[int, LoadLine] = {}
    """The last forecast of the time of a round on each server (`core/placement/forecast.py`)."""
    routes: tuple[Route, ...] = ()
    servers: tuple[int, ...] = ()
    """The servers for which the goal was made."""
    copied: int = 0
    """The most bytes that one server had to copy from another one when the goal was made. 0: slices
    move as fast as they can."""


class Seeding(msgspec.Struct):
    """Which worker gives the servers their initial parameters, and which servers have them."""

    restores: bool = False
    """Whether servers read the initial parameters from a checkpoint, so that no worker seeds them."""
    seeder: int | None = None
    seeded: set[int] = set()
    done: bool = False
    """Whether every server has its initial parameters."""

    def seeds(self, worker: int) -> bool:
        """Whether this worker, which will get the routes now, must send the servers their initial
        parameters. The first worker must, unless the servers read a checkpoint."""
        if self.restores:
            return False
        if self.seeder is None:
            self.seeder = worker
        return self.seeder == worker and not self.done

    def on_seeded(self, server: int, holders: frozenset[int]) -> None:
        """Note that a server has its parameters. `holders`: the servers that need them."""
        self.seeded.add(server)
        self.done = self.done or self.seeded >= holders

    def begin_again(self) -> None:
        self.seeder = None
        self.seeded.clear()


class RoutingTable(msgspec.Struct):
    roster: Roster
    seeding: Seeding
    _goal: PlacementGoal
    division: Division | None
    """How the model is cut into slices; None if that is not decided yet."""
    slices_stay: bool = False
    """Whether slices cannot move, so the job keeps its first servers. Workers that read the
    parameters in place cannot follow a slice to another server."""
    resumes: ModelSpec | None = None
    """The model of the checkpoint from which the job resumes."""
    spec: ModelSpec | None = None
    nbytes: int = 0
    routes: tuple[Route, ...] = ()
    epoch: int = 0
    primaries: frozenset[int] = frozenset()
    """The servers that are the primary of at least one slice. If the model has fewer slices than
    there are servers, some servers are not in this set."""
    primary_since: dict[int, int] = {}
    """Per primary, the epoch in which its set of slices last grew."""
    change: Change | None = None
    """The change that not every server applies yet; None if there is none. Until every server
    applies it, workers use the old routes."""
    _folded_ns: int = 0
    _round_s: float = 0.0
    """With rounds: when the last round was folded, and how long it took."""
    _settled: tuple[int, frozenset[int], frozenset[int]] = (-1, frozenset(), frozenset())
    """The routing epoch, the servers and the draining servers with which `advance` last found
    nothing to change."""
    _sizes: tuple[int, ...] = ()
    """The size of each slice in bytes."""
    _holders: frozenset[int] = frozenset()
    _placed: dict[int, Placed] = {}
    _copying: dict[tuple[int, int], tuple[int, frozenset[int]]] = {}
    """Per primary and learner: the epoch since which the learner copies all slices that it copies
    now, and the set of these slices."""

    @classmethod
    def begin(
        cls,
        servers: int,
        division: Division | None,
        replicas: int = 0,
        scheme: str = RING,
        *,
        slices_stay: bool = False,
        restores: bool = False,
    ) -> "RoutingTable":
        """The table of a job that no server has joined."""
        goal = PlacementGoal(scheme, replicas)
        return cls(Roster(servers), Seeding(restores), goal, division, slices_stay)

    @property
    def all_placed(self) -> bool:
        return self.spec is not None and self._placed.keys() >= self.roster.addresses.keys()

    @property
    def all_seeded(self) -> bool:
        return self.seeding.done

    @property
    def moving(self) -> bool:
        """Whether some slices are changing their primary, and not every server applies the change
        yet."""
        return self.change is not None and bool(self.change.promoted)

    @property
    def late(self) -> list[int]:
        """The servers that do not apply the last change of routes yet."""
        return sorted(self.roster.addresses.keys() - self._placed.keys())

    @property
    def learning(self) -> int:
        """The number of copies of slices that learners are fetching, or will fetch next."""
        return sum(
            len(set(now.learners).union(then.holders).difference(now.replicas, (now.primary,)))
            for now, then in zip(self.routes, self.goal if self.routes else (), strict=True)
        )

    def join(self, server: int, address: Address) -> None:
        self.roster.join(server, address, self.epoch + 1)

    def resume(self, epoch: int, spec: ModelSpec, division: Division) -> None:
        """Continue from a checkpoint of this model that was made in this routing epoch: count
        routing epochs from there. `division`: how the model is cut now."""
        self.epoch = epoch
        self.resumes, self.division = spec, division

    def place(self, spec: ModelSpec) -> None:
        """Cut the first worker's model into slices, and route them."""
        cut = self.division
        assert cut is not None
        self.spec = replace(spec, division=cut)
        layout = lay_out(spec, cut.servers, cut.slice_nbytes, cut.probes)
        self.nbytes = layout.nbytes
        self._sizes = tuple(
            slice_.length * layout.spaces[slice_.space].item_nbytes for slice_ in layout.slices
        )
        self.epoch += 1
        self._route(steps.begin(self.goal, self.epoch))

    @property
    def largest(self) -> int:
        """The size of the largest slice in bytes."""
        return max(self._sizes)

    @property
    def goal(self) -> tuple[Route, ...]:
        """The target routes for the servers that stay."""
        goal, staying = self._goal, self.roster.staying
        if goal.servers != staying or len(goal.routes) != len(self._sizes):
            goal.routes, goal.servers = self.propose(goal.lines), staying
            copies = self.fetched(goal.routes) if self.routes else {}
            goal.copied = max(copies.values(), default=0)
        return goal.routes

    @property
    def at_goal(self) -> bool:
        """Whether every slice has reached the goal, and no route changes."""
        if not self.seeding.done or self.change is not None or self.roster.draining:
            return False
        return all(
            (now.primary, now.replicas, now.learners) == (then.primary, then.replicas, ())
            for now, then in zip(self.routes, self.goal, strict=True)
        )

    def propose(self, lines: Lines) -> tuple[Route, ...]:
        """The goal that the scheme gives with this forecast. As many slices as possible stay on
        their servers."""
        staying, goal = self.roster.staying, self._goal
        stays = steps.candidates(self.routes, staying)
        return SCHEMES[goal.scheme].place(self._sizes, staying, goal.replicas, stays, lines)

    def remember(self, lines: Lines) -> None:
        """Set the next goal with this forecast."""
        self._goal.lines = dict(lines)

    def adopt(self, goal: tuple[Route, ...]) -> None:
        """Let the slices move towards this goal of `propose`. *They move as fast as they can,
        because the goal makes rounds shorter.*"""
        self._goal.routes, self._goal.servers, self._goal.copied = goal, self.roster.staying, 0
        self._settled = (-1, frozenset(), frozenset())

    def held(self, routes: Sequence[Route]) -> dict[int, int]:
        """Per server, the bytes of the slices of which it is the primary in these routes."""
        held = dict.fromkeys(self.roster.servers, 0)
        for route, nbytes in zip(routes, self._sizes, strict=True):
            held[route.primary] += nbytes
        return held

    def fetched(self, goal: Sequence[Route]) -> dict[tuple[int, int], int]:
        """Per source and target, the bytes of the slices that must be copied to reach a goal."""
        copied: dict[tuple[int, int], int] = {}
        for now, then, nbytes in zip(self.routes, goal, self._sizes, strict=True):
            for server in set(then.holders).difference(now.holders):
                pair = (now.primary, server)
                copied[pair] = copied.get(pair, 0) + nbytes
        return copied

    def _route(self, routes: tuple[Route, ...]) -> None:
        self.routes = routes
        self.primary_since = {}
        for route in routes:
            self.primary_since[route.primary] = max(
                route.since, self.primary_since.get(route.primary, 0)
            )
        self.primaries = frozenset(self.primary_since)
        self._holders = frozenset(server for route in routes for server in route.holders)
        self._copying = {
            pair: (self._since(pair, slices), slices)
            for pair, slices in _learned_slices(routes).items()
        }

    def _since(self, pair: tuple[int, int], slices: frozenset[int]) -> int:
        """The epoch since which this learner has copied all of these slices. If it copied fewer
        slices until now, this is the current epoch, because its earlier reports do not cover all of
        them."""
        since, before = self._copying.get(pair, (self.epoch, frozenset[int]()))
        return since if slices <= before else self.epoch

    def slice_count(self, server: int) -> int:
        """The number of slices of which this server is the primary."""
        return sum(route.primary == server for route in self.routes)

    def slice_counts(self) -> list[int]:
        """Per server, the number of slices of which it is the primary."""
        return [self.slice_count(server) for server in self.roster.servers]

    def on_placed(self, message: Placed) -> bool:
        """Note that a server has allocated its slices, or applies the new routes. Returns True if
        all servers have done so."""
        if message.routing != self.epoch or message.server not in self.roster.addresses:
            return False
        self._placed[message.server] = message
        return self.all_placed

    def on_seeded(self, message: Seeded) -> None:
        if message.routing == self.epoch:
            self.seeding.on_seeded(message.server, self._holders)

    def lose_seeder(self, worker: int) -> bool:
        """Note the removal of a worker. Returns True if it was the seeder; then the servers must
        allocate their slices again."""
        if self.seeding.seeder != worker or self.all_seeded:
            return False
        self.begin_again()
        return True

    def begin_again(self) -> None:
        self.seeding.begin_again()
        self.epoch += 1
        self._placed.clear()
        self._route(steps.begin(self.goal, self.epoch))

    # -- servers come and go while the job runs ------------------------------------------------

    def lost_with(self, server: int) -> SliceLoss | None:
        """The slices that are lost if this server has ended; None if there are none. *Before every
        server has the initial parameters nothing is lost: the seeder sends them again.*"""
        gone = steps.orphaned(self.routes, server) if self.seeding.done else []
        return SliceLoss(len(gone), sum(self._sizes[slice_] for slice_ in gone)) if gone else None

    def spares(self, server: int) -> bool:
        """Whether the job prefers to continue without this server instead of waiting for it.
        *Without replicas, the job waits for every server until round 1: sending the initial
        parameters again takes longer than a short silence.*"""
        return (self.seeding.done or self._goal.replicas > 0) and self.lost_with(server) is None

    def lose_server(self, server: int, now_ns: int) -> bool:
        """Remove a server whose loss loses no slice. Returns True if seeding must begin again,
        because not every server had its parameters yet. Otherwise the servers change to routes
        without the lost server."""
        self.roster.remove(server)
        if self.spec is None:
            return False
        if not self.all_seeded:
            self.routes = ()
            self.begin_again()
            return True
        goal = self.goal
        routes = steps.without(self.routes, server, goal, self.epoch + 1)
        self._change(self._with_learners(routes, goal), now_ns).lost.append(server)
        return False

    def add_server(self, server: int, now_ns: int) -> int:
        """Let a server that has joined the running job learn the slices that the target routes give it.
        Returns their number."""
        goal = self.goal
        self._change(self._with_learners(self.routes, goal), now_ns).joined.append(server)
        return sum(server in route.holders for route in goal)

    def on_caught_up(self, message: CaughtUp, now_ns: int) -> int:
        """Note that a learner has caught up with a primary, and let it learn the next slices.
        Returns the number of slices whose replica it becomes."""
        pair = (message.server, message.peer)
        if pair not in self._copying or message.routing < self._copying[pair][0]:
            # The message is outdated: it is about an earlier server with this number, or about
            # fewer slices than the learner copies now.
            return 0
        routes = steps.learned(self.routes, *pair)
        changed = sum(now != before for now, before in zip(routes, self.routes, strict=True))
        self._change(self._with_learners(routes, self.goal, begins=False), now_ns)
        return changed

    def on_round(self, now_ns: int) -> None:
        """Measure the duration of the round that every primary has now folded."""
        if self._folded_ns:
            self._round_s = (now_ns - self._folded_ns) / 1e9
        self._folded_ns = now_ns

    def _with_learners(
        self, routes: tuple[Route, ...], goal: tuple[Route, ...], *, begins: bool = True
    ) -> steps.Routes:
        """`begins`: whether a learner may now begin to fetch slices, if it does that only once per
        round."""
        paced = steps.paced_nbytes(self._goal.copied, self._round_s) if self._goal.copied else None
        if paced is None:
            return steps.add_learners(routes, goal, self._sizes)
        return steps.add_learners(routes, goal, self._sizes, paced, begins=begins)

    def drain(self, server: int, now_ns: int) -> bool:
        """Begin to move the slices of this server to the others, because it must leave. Returns
        True if the routes change."""
        self.roster.draining.add(server)
        if not self.seeding.done or self.change is not None:
            return False
        return self.advance(now_ns, promotes=False, begins=True)

    def advance(self, now_ns: int, *, promotes: bool = True, begins: bool = False) -> bool:
        """Take the next steps towards the goal: promote every slice whose copies are ready
        (`promotes`), and let servers learn the next slices. If learners fetch once per round, they
        begin together with promotions and at the beginning (`begins`). Returns True if the routes
        change."""
        here = (self.epoch, frozenset(self.roster.addresses), frozenset(self.roster.draining))
        if self.change is not None or not self.seeding.done or self._settled == here:
            return (
                False  # this method is called after every round, and usually has nothing to change
            )
        goal = self.goal
        routes = steps.promote(self.routes, goal, self.epoch + 1) if promotes else self.routes
        routes = self._with_learners(routes, goal, begins=promotes or begins)
        if routes == self.routes:
            if promotes and not self.learning:
                self._settled = here
            return False
        self._change(routes, now_ns)
        return True

    def drained(self) -> list[int]:
        """The draining servers that hold no slice any more."""
        if self.change is not None or not self.seeding.done:
            return []
        return sorted(self.roster.draining - self._holders)

    def leave(self, server: int, now_ns: int) -> None:
        """Remove a server that was drained: the others go on without it."""
        self.roster.remove(server, drained=True)
        self._change(self.routes, now_ns).left.append(server)

    def _change(self, routes: tuple[Route, ...], now_ns: int) -> Change:
        self.epoch += 1
        self._placed.clear()
        self.change = self.change or Change(now_ns)
        for now, before in zip(routes, self.routes, strict=True):
            if now.primary != before.primary:
                count = self.change.promoted.get(now.primary, 0)
                self.change.promoted[now.primary] = count + 1
        self._route(routes)
        return self.change

    def on_followed(self) -> tuple[Change, Mapping[int, tuple[Row, ...]], Mapping[int, int]]:
        """Note that every server applies the new routes. Returns the change, and per server the
        last contributions in its slices (`Row`) and its version."""
        assert self.change is not None and self.all_placed
        change, self.change = self.change, None
        rows = {server: placed.rows for server, placed in self._placed.items()}
        versions = {server: placed.round for server, placed in self._placed.items()}
        return change, rows, versions

    def check(self) -> None:
        if not self.seeding.done:
            self._check_seeding()
        self._check_routes()

    def _check_seeding(self) -> None:
        """Check a job in which not every server has its parameters yet."""
        if self.seeding.seeder is not None and not self.all_placed:
            raise InvariantBroken(
                f"w{self.seeding.seeder} seeds servers that have not allocated their slices"
            )
        if not self.seeding.seeded <= self._placed.keys():
            raise InvariantBroken(
                "a server counts as seeded, but has not allocated its slices in this epoch"
            )

    def _check_routes(self) -> None:
        known = self.roster.addresses.keys()
        for slice_, route in enumerate(self.routes):
            holders = {route.primary, *route.replicas, *route.learners}
            if len(holders) <= len(route.replicas) + len(route.learners):
                raise InvariantBroken(f"slice {slice_} is on one server twice: {route}")
            if not known >= holders:
                raise InvariantBroken(
                    f"slice {slice_} is routed to a server that was lost: {route}"
                )


def _learned_slices(routes: tuple[Route, ...]) -> dict[tuple[int, int], frozenset[int]]:
    """Per primary and learner, the slices that the learner copies from this primary."""
    found: dict[tuple[int, int], set[int]] = {}
    for slice_, route in enumerate(routes):
        for learner in route.learners:
            found.setdefault((route.primary, learner), set()).add(slice_)
    return {pair: frozenset(slices) for pair, slices in found.items()}
