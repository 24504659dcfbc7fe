"""How fast slices move to a server that joins, and away from one that leaves."""

import pytest

from polyrhythm.core.lead.servers.routing import RoutingTable
from polyrhythm.core.placement.schemes import AVERAGE
from polyrhythm.core.placement.steps import SPREAD_S, WINDOW_NBYTES, paced_nbytes
from polyrhythm.wire import messages as m

ADDRESS = m.Address("memory", 0, "", "")
NBYTES = 102_000_000
SPEC = m.ModelSpec(
    (m.TensorSpec("weight", (NBYTES // 4,), "float32", 0, (1,)),),
    m.OptimizerSpec("SGD", ({"lr": 0.1},)),
)


class Moves:
    """The slices of a job with two servers, whose rounds take `round_s`."""

    def __init__(self, round_s: float) -> None:
        self.now_ns, self._round_ns = 10**9, round(round_s * 1e9)
        self.routing = RoutingTable.begin(2, m.Division(2, 2 * 2**20), scheme=AVERAGE)
        for server in range(2):
            self.routing.join(server, ADDRESS)
        self.routing.place(SPEC)
        for server in range(2):
            self.routing.on_placed(m.Placed(routing=1, server=server))
            self.routing.on_seeded(m.Seeded(routing=1, server=server))
        self._follow()
        for _ in range(2):
            self._round()

    def _follow(self) -> None:
        """Every server follows the routes, and what learners fetch arrives at once."""
        routing = self.routing
        while routing.change is not None:
            for server in routing.roster.servers:
                routing.on_placed(m.Placed(routing=routing.epoch, server=server))
            routing.on_followed()
            for server, peer in sorted(
                {(r.primary, p) for r in routing.routes for p in r.learners}
            ):
                said = m.CaughtUp(routing=routing.epoch, server=server, peer=peer)
                routing.on_caught_up(said, self.now_ns)
            routing.advance(self.now_ns, promotes=False)

    def _round(self) -> None:
        self.now_ns += self._round_ns
        self.routing.on_round(self.now_ns)
        self.routing.advance(self.now_ns)
        self._follow()

    def join(self) -> None:
        self.routing.join(2, ADDRESS)
        self.routing.add_server(2, self.now_ns)
        self._follow()

    def copied(self, rounds: int = 200) -> list[int]:
        """The bytes that were copied before the next round, and in each of the rounds after that."""
        copied, before = [], 0
        for _ in range(rounds):
            now = self._nbytes_copied()
            copied.append(now - before)
            if self.routing.at_goal:
                return copied[:-1]
            before = now
            self._round()
        raise AssertionError("the slices do not reach their goal")

    def _nbytes_copied(self) -> int:
        """The bytes that s2 has, of the slices that the first servers had."""
        sizes = self.routing.held([m.Route(0)] * len(self.routing.routes))[0] // len(
            self.routing.routes
        )
        return sum(sizes for route in self.routing.routes if 2 in (route.primary, *route.replicas))


def test_short_rounds_get_slower_by_a_few_slices_each() -> None:
    moves = Moves(0.2)
    moves.join()
    assert moves.routing.learning, "most slices are copied later"
    copied = moves.copied()
    assert not moves.routing.learning
    pair_nbytes = NBYTES / 3 / 2
    assert len(copied) * 0.2 < SPREAD_S
    assert max(copied) <= 2 * (pair_nbytes * 0.2 / SPREAD_S + 2 * 2 * 2**20)


@pytest.mark.parametrize("round_s", [0.0, 30.0], ids=["without-rounds", "long-rounds"])
def test_where_no_round_gets_much_slower_all_is_copied_at_once(round_s: float) -> None:
    moves = Moves(round_s)
    moves.join()
    assert len(moves.copied()) == 1


def test_slices_go_back_at_the_same_pace() -> None:
    moves = Moves(0.2)
    moves.join()
    moves.copied()
    began_ns = moves.now_ns
    moves.routing.drain(2, moves.now_ns)
    while not moves.routing.drained():
        moves._round()
    assert 1.0 < (moves.now_ns - began_ns) / 1e9 < SPREAD_S


def test_a_goal_that_makes_rounds_shorter_is_reached_as_fast_as_possible() -> None:
    moves = Moves(0.2)
    moves.join()
    moves.copied()
    routing = moves.routing
    routing.adopt(tuple(m.Route(2) for _ in routing.routes))
    assert routing.advance(moves.now_ns, promotes=False)
    moves._follow()
    moves._round()
    assert routing.at_goal


def test_the_pace_follows_the_length_of_rounds() -> None:
    assert paced_nbytes(20_000_000, 0.0) is None
    assert paced_nbytes(20_000_000, SPREAD_S) is None
    assert paced_nbytes(20_000_000, 1.0) == 4_000_000
    assert paced_nbytes(20_000_000, 0.01) == 2 * 2**20
    assert paced_nbytes(10 * WINDOW_NBYTES, SPREAD_S / 2) is None
