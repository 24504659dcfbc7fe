"""Which servers there are, what each of them holds, and whose parameters begin.

*Round 1 opens on the parameters of one worker, the seeder. If it dies before every server has all of
them, the routing epoch rises and the servers make room anew. What was said under an older epoch is
not listened to, so that seeds still on their way never mix with another worker's.*

*Later the epoch rises when a server is gone, has come or has learned a slice; servers keep what they
hold then, and workers are told once every server has followed.*
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from polyrhythm.core.placement import steps
from polyrhythm.core.placement.ring import Ring
from polyrhythm.core.placement.slices import Layout, lay_out
from polyrhythm.errors import InvariantBroken
from polyrhythm.wire.messages import (
    Address,
    CaughtUp,
    ModelSpec,
    Placed,
    Route,
    Row,
    Seeded,
    ServerSpec,
)


@dataclass(frozen=True, slots=True)
class SliceLoss:
    """What is gone for good."""

    slices: int
    nbytes: int


@dataclass(slots=True)
class Change:
    """Servers follow a new routing epoch: since when, because of whom, and what it steps."""

    since_ns: int
    lost: list[int] = field(default_factory=list)
    promoted: dict[int, int] = field(default_factory=dict)
    """Per server, how many slices it is the primary of that it was not before."""


class Routing:
    def __init__(self, servers: int, slice_nbytes: int, replicas: int = 0) -> None:
        self.addresses: dict[int, Address] = {}
        self.incarnations: dict[int, int] = {}
        """Per server, the routing epoch in which it came."""
        self.spec: ModelSpec | None = None
        self.nbytes = 0
        self.routes: tuple[Route, ...] = ()
        self.epoch = 0
        self.primaries: frozenset[int] = frozenset()
        """The servers that are primaries: with few slices, not every server is."""
        self.primary_since: dict[int, int] = {}
        """Since which epoch each of them is the primary of all that it is the primary of."""
        self.seeder: int | None = None
        self.change: Change | None = None
        """The servers have not all followed yet, and workers still go by the old routes."""
        self._awaited = servers
        self._slice_nbytes = slice_nbytes
        self._replicas = replicas
        self._layout: Layout | None = None
        self._gathered = False
        self._begun = False
        self._holders: frozenset[int] = frozenset()
        self._placed: dict[int, Placed] = {}
        self._seeded: set[int] = set()
        self._lessons: dict[tuple[int, int], tuple[int, frozenset[int]]] = {}
        """Per primary and learner, the slices that are learned, and the epoch since when those."""

    @property
    def servers(self) -> list[int]:
        return sorted(self.addresses)

    @property
    def specs(self) -> tuple[ServerSpec, ...]:
        return tuple(
            ServerSpec(server, self.addresses[server], self.incarnations[server])
            for server in self.servers
        )

    @property
    def gathered(self) -> bool:
        """Every server of the job is here, or was."""
        return self._gathered or len(self.addresses) >= self._awaited

    @property
    def all_placed(self) -> bool:
        return self.spec is not None and self._placed.keys() >= self.addresses.keys()

    @property
    def all_seeded(self) -> bool:
        return self._begun

    @property
    def moving(self) -> bool:
        """Slices change their primary, and not every server has followed."""
        return self.change is not None and bool(self.change.promoted)

    @property
    def late(self) -> list[int]:
        """Servers that have not followed the last change."""
        return sorted(self.addresses.keys() - self._placed.keys())

    @property
    def learning(self) -> int:
        """Copies that are being restored or moved."""
        return sum(len(route.learners) for route in self.routes)

    def seat(self, asked: int) -> int | None:
        """The number of a server that comes: the one it asks for, or, if it leaves that open, the
        highest free one, because the lead's host numbers its own from 0. None: there is no seat."""
        free = [number for number in range(self._awaited) if number not in self.addresses]
        return max(free, default=None) if asked < 0 else asked if asked in free else None

    def come(self, server: int, address: Address) -> None:
        self.addresses[server] = address
        self.incarnations[server] = self.epoch + 1
        self._gathered = self.gathered

    def vacate(self, server: int) -> bool:
        """A server is gone. True if nobody was told of it: then another may take its seat."""
        if self.gathered or server not in self.addresses:
            return False
        del self.addresses[server]
        return True

    def place(self, spec: ModelSpec) -> None:
        """Cut the first worker's model and route its slices."""
        self.spec = spec
        self._layout = lay_out(spec, self._awaited, self._slice_nbytes)
        self.nbytes = self._layout.nbytes
        self.epoch = 1
        self._route(steps.begin(self._goal(), self.epoch))

    def _goal(self) -> tuple[Route, ...]:
        """Where slices should be, given the servers that are here; what can stay stays."""
        assert self._layout is not None
        current = steps.candidates(self.routes, self.addresses.keys())
        return Ring(self.servers).place(len(self._layout.slices), self._replicas, current)

    def _route(self, routes: tuple[Route, ...]) -> None:
        self.routes = routes
        self.primary_since = {}
        for route in routes:
            self.primary_since[route.primary] = max(
                route.since, self.primary_since.get(route.primary, 0)
            )
        self.primaries = frozenset(self.primary_since)
        self._holders = frozenset(server for route in routes for server in route.holders)
        self._lessons = {
            pair: (self._since(pair, slices), slices)
            for pair, slices in _learned_by(routes).items()
        }

    def _since(self, pair: tuple[int, int], slices: frozenset[int]) -> int:
        """What was said of fewer slices is not said of these."""
        since, before = self._lessons.get(pair, (self.epoch, frozenset[int]()))
        return since if slices <= before else self.epoch

    def slice_counts(self) -> list[int]:
        """How many slices each server is the primary of."""
        return [sum(route.primary == server for route in self.routes) for server in self.servers]

    def placed(self, message: Placed) -> bool:
        """A server has made room; True if that was the last one."""
        if message.routing != self.epoch or message.server not in self.addresses:
            return False
        self._placed[message.server] = message
        return self.all_placed

    def seeds(self, worker: int) -> bool:
        """Whether this worker, which is about to be routed, must seed: the first one must."""
        if self.seeder is None:
            self.seeder = worker
        return self.seeder == worker and not self.all_seeded

    def seeded(self, message: Seeded) -> None:
        if message.routing == self.epoch:
            self._seeded.add(message.server)
            self._begun = self._begun or self._seeded >= self._holders

    def lose(self, worker: int) -> bool:
        """A worker is gone; True if it was still seeding, and the servers must place anew."""
        if self.seeder != worker or self.all_seeded:
            return False
        self.begin_anew()
        return True

    def begin_anew(self) -> None:
        self.seeder = None
        self.epoch += 1
        self._placed.clear()
        self._seeded.clear()
        self._route(steps.begin(self._goal(), self.epoch))

    # -- servers come and go while the job runs ------------------------------------------------

    def would_lose(self, server: int) -> SliceLoss | None:
        """What would be gone for good without this server; None: nothing."""
        if not self._replicas:
            gone = [s for s, route in enumerate(self.routes) if route.primary == server]
        elif self._begun:
            gone = steps.orphaned(self.routes, server)
        else:
            return None  # no parameters are there yet: the others begin anew
        if self._layout is None or (not gone and self._replicas):
            return None if self._replicas else SliceLoss(0, 0)
        spaces = self._layout.spaces
        slices = [self._layout.slices[slice_] for slice_ in gone]
        return SliceLoss(len(slices), sum(s.length * spaces[s.space].item_nbytes for s in slices))

    def lose_server(self, server: int, now_ns: int) -> bool:
        """A server is gone, and nothing with it. True if the servers must begin anew, because no
        parameters were there yet; otherwise they follow the routes without it."""
        del self.addresses[server]
        if self.spec is None:
            return False
        if not self.all_seeded:
            self.routes = ()
            self.begin_anew()
            return True
        goal = self._goal()
        routes = steps.without(self.routes, server, goal, self.epoch + 1)
        self._change(steps.teach(routes, goal), now_ns)
        assert self.change is not None
        self.change.lost.append(server)
        return False

    def welcome(self, now_ns: int) -> None:
        """A server has come into the running job: it learns what it should hold."""
        self._change(steps.teach(self.routes, self._goal()), now_ns)

    def caught_up(self, message: CaughtUp, now_ns: int) -> int:
        """A learner has caught up with a primary: of how many slices it is a replica now."""
        pair = (message.server, message.peer)
        if pair not in self._lessons or message.routing < self._lessons[pair][0]:
            return 0  # it was said of one that is gone or has the seat no more, or of fewer slices
        routes = steps.learned(self.routes, *pair)
        changed = sum(now != before for now, before in zip(routes, self.routes, strict=True))
        self._change(routes, now_ns)
        return changed

    def arrive(self, now_ns: int) -> bool:
        """Use what was learned: at a fold, or at any moment where there are none. True if slices
        change their primary, or are dropped where they are not wanted any more."""
        if self.change is not None or self.learning or len(self.addresses) <= 1:
            return False
        routes = steps.arrive(self.routes, self._goal(), self.epoch + 1)
        if routes == self.routes:
            return False
        self._change(routes, now_ns)
        return True

    def _change(self, routes: tuple[Route, ...], now_ns: int) -> None:
        self.epoch += 1
        self._placed.clear()
        self.change = self.change or Change(now_ns)
        for now, before in zip(routes, self.routes, strict=True):
            if now.primary != before.primary:
                count = self.change.promoted.get(now.primary, 0)
                self.change.promoted[now.primary] = count + 1
        self._route(routes)

    def followed(self) -> tuple[Change, Mapping[int, tuple[Row, ...]], Mapping[int, int]]:
        """Every server goes by the new routes: the change, and per server its rows and version."""
        assert self.change is not None and self.all_placed
        change, self.change = self.change, None
        rows = {server: placed.rows for server, placed in self._placed.items()}
        versions = {server: placed.round for server, placed in self._placed.items()}
        return change, rows, versions

    def check(self) -> None:
        if self.seeder is not None and not self.all_placed and not self.all_seeded:
            raise InvariantBroken(f"w{self.seeder} seeds servers that have made no room yet")
        if not self.all_seeded and not self._seeded <= self._placed.keys():
            raise InvariantBroken("a server is seeded that has made no room in this epoch")
        for slice_, route in enumerate(self.routes):
            if len(set(route.holders)) != len(route.holders):
                raise InvariantBroken(f"slice {slice_} is twice on one server: {route}")
            if not set(route.holders) <= self.addresses.keys():
                raise InvariantBroken(f"slice {slice_} is routed to a server that is gone: {route}")


def _learned_by(routes: tuple[Route, ...]) -> dict[tuple[int, int], frozenset[int]]:
    """Per primary and learner, which slices it learns from that one."""
    found: dict[tuple[int, int], set[int]] = {}
    for slice_, route in enumerate(routes):
        for learner in route.learners:
            found.setdefault((route.primary, learner), set()).add(slice_)
    return {pair: frozenset(slices) for pair, slices in found.items()}
