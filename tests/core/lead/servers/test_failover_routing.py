"""Which slices a failover moves, according to the routes that the lead sends to its servers.

The tests send the events of a running job to a lead until its routes stop changing. They check the
routes of every epoch, because a slice may move away and come back.
"""

import itertools
from collections import Counter
from collections.abc import Iterable

import pytest

from polyrhythm.core.machine import Effect
from polyrhythm.wire import messages as m
from tests.core.stage import Stage, sent, spec

Routes = tuple[m.Route, ...]
configurations = pytest.mark.parametrize(
    ("servers", "slices", "replicas"),
    list(itertools.product((3, 4, 5, 6), (6, 7, 9, 12, 23), (1, 2))),
)
few_configurations = pytest.mark.parametrize(
    ("servers", "slices", "replicas"), list(itertools.product((4, 5), (7, 12, 23), (1, 2)))
)


class Company(Stage):
    """A lead with servers that apply all routes, and that learn every slice which the lead tells
    them to learn."""

    def __init__(self, servers: int, slices: int, replicas: int, sync: str = "asp") -> None:
        self.alive = set(range(servers))
        self.epochs: list[Routes] = []
        """The routes of every epoch."""
        super().__init__(servers=servers, replicas=replicas, sync=sync, workers=1)
        self.hello("worker-0")
        self.attach(0, spec((16 * slices,)))
        self.from_servers(m.Placed)
        self.from_servers(m.Seeded)
        self.folded(0)
        assert len(self.routes) == slices
        self.round = 0

    @property
    def routes(self) -> Routes:
        return self.epochs[-1]

    def tell(self, event: object) -> list[Effect]:
        effects = super().tell(event)
        for place in sent(effects, m.Place):
            if not self.epochs or place.routes != self.routes:
                self.epochs.append(place.routes)
        return effects

    def from_servers(self, kind: type[m.Message], **fields: object) -> list[Effect]:
        effects: list[Effect] = []
        for server in sorted(self.alive):
            effects = self.tell(kind(**{"server": server, "routing": self.routing, **fields}))
        return effects

    def die(self, *servers: int) -> None:
        for server in servers:
            self.alive.remove(server)
            self.closed(f"s{server}")

    def return_(self, server: int) -> None:
        self.alive.add(server)
        self.server(server)

    def settle(self) -> None:
        """Let servers apply the routes, learners catch up, and rounds be folded, until the routes
        stay the same."""
        for _ in range(50):
            epoch = self.routing
            self.from_servers(m.Placed, round=self.round)
            self.learn()
            self.make_round()
            if self.routing == epoch:
                return
        raise AssertionError(f"it does not end: {self.epochs[-3:]}")

    def learn(self) -> None:
        """Every learner catches up with its primary."""
        for primary, learner in sorted(
            {(route.primary, learner) for route in self.routes for learner in route.learners}
        ):
            self.tell(m.CaughtUp(server=primary, peer=learner, routing=self.routing))

    def make_round(self) -> None:
        self.round += 1
        self.contribute(0, self.round, self.round)
        self.folded(self.round)


def assert_unmoved(company: Company, before: Routes, gone: Iterable[int]) -> None:
    """In every epoch since `before`, a slice whose primary is alive keeps its primary, and a slice
    without a copy on a dead server keeps all its copies."""
    gone = set(gone)
    for routes in company.epochs[company.epochs.index(before) :]:
        for slice_, (now, was) in enumerate(zip(routes, before, strict=True)):
            if was.primary not in gone:
                assert now.primary == was.primary, f"slice {slice_}: {was} became {now}"
                assert now.since == was.since
            if not gone.intersection(was.holders):
                assert now == was, f"slice {slice_} had nothing on a dead server"


def assert_balanced_and_restored(company: Company, replicas: int) -> None:
    load = Counter(route.primary for route in company.routes)
    loads = [load[server] for server in company.alive]
    assert max(loads) - min(loads) <= 1, load
    copies = min(replicas, len(company.alive) - 1)
    assert all(len(r.replicas) == copies and not r.learners for r in company.routes)


@pytest.mark.guarantee("own-slices-only", policies=("bsp", "asp"))
@configurations
def test_a_server_that_dies_moves_only_its_own_slices(
    servers: int, slices: int, replicas: int
) -> None:
    for dead in range(1, servers):
        sync = "asp" if dead % 2 else "bsp"
        company = Company(servers, slices, replicas, sync)
        before = company.routes
        company.die(dead)
        company.settle()
        assert_unmoved(company, before, [dead])
        assert_balanced_and_restored(company, replicas)


@configurations
def test_a_slice_of_a_dead_server_moves_no_more_than_it_must(
    servers: int, slices: int, replicas: int
) -> None:
    """The slice stays with the replica that took it over, unless every replica already is the
    primary of its full share of the slices."""
    for dead in range(1, servers):
        company = Company(servers, slices, replicas)
        before = company.routes
        company.die(dead)
        company.settle()
        load = Counter(route.primary for route in company.routes)
        for was, now in zip(before, company.routes, strict=True):
            if was.primary == dead and now.primary not in was.replicas:
                heirs = [load[server] for server in was.replicas]
                assert min(heirs) >= slices // (servers - 1)


@few_configurations
@pytest.mark.parametrize("settled", [True, False], ids=["settled", "while copies are restored"])
def test_a_second_death_moves_only_the_slices_of_both(
    servers: int, slices: int, replicas: int, settled: bool
) -> None:
    for first, second in itertools.permutations(range(1, servers), 2):
        company = Company(servers, slices, replicas)
        before = company.routes
        company.die(first)
        company.from_servers(m.Placed)
        company.learn()  # without new copies, the second death might lose a slice
        if settled:
            company.settle()
        company.die(second)
        company.settle()
        assert_unmoved(company, before, [first, second])
        assert_balanced_and_restored(company, replicas)


@pytest.mark.parametrize(("servers", "slices"), list(itertools.product((4, 5, 6), (7, 12, 23))))
def test_two_servers_that_die_at_once_move_only_their_own_slices(servers: int, slices: int) -> None:
    for dead in itertools.permutations(range(1, servers), 2):
        company = Company(servers, slices, 2)
        before = company.routes
        company.die(*dead)
        company.settle()
        assert_unmoved(company, before, dead)
        assert_balanced_and_restored(company, 2)


@pytest.mark.guarantee("own-slices-only", policies=("asp",))
@few_configurations
@pytest.mark.parametrize("settled", [True, False], ids=["settled", "while copies are restored"])
def test_a_server_that_comes_back_takes_only_its_share(
    servers: int, slices: int, replicas: int, settled: bool
) -> None:
    """Slices that never were on the dead server stay where they are, both when the server dies and
    when it comes back."""
    for dead in range(1, servers):
        company = Company(servers, slices, replicas)
        before = company.routes
        company.die(dead)
        if settled:
            company.settle()
        at_return = company.routes
        company.return_(dead)
        company.settle()
        moved = [
            (was.primary, now.primary)
            for was, now in zip(at_return, company.routes, strict=True)
            if was.primary != now.primary
        ]
        share = -(-slices // servers)
        if settled:
            assert all(now == dead for _, now in moved)
        assert sum(now == dead for _, now in moved) <= share
        assert_unmoved(company, before, [dead])
        assert_balanced_and_restored(company, replicas)
