"""The primaries and replicas of slices after any sequence of deaths, joins and catch-ups of
servers. Also which steps are acknowledged when replicas confirm them in any order."""

from hypothesis import example, given, settings
from hypothesis import strategies as st

from polyrhythm.core.events import Computed
from polyrhythm.core.lead.servers.routing import RoutingTable
from polyrhythm.core.server.replication import Replication
from polyrhythm.core.worker.pushes import Outstanding
from polyrhythm.wire import messages as m

ADDRESS = m.Address("memory", 0, "", "")
SPEC = m.ModelSpec(
    (m.TensorSpec("weight", (160,), "float32", 0, (1,)),),
    m.OptimizerSpec("SGD", ({"lr": 0.1},)),
)
COMPUTED = Computed(0, (0.1,), m.ContributionReport(weight=1.0))


def placed(servers: int, replicas: int) -> RoutingTable:
    routing = RoutingTable.begin(servers, m.Division(servers, 64), replicas)
    for server in range(servers):
        routing.join(server, ADDRESS)
    routing.place(SPEC)
    for server in range(servers):
        routing.on_placed(m.Placed(routing=1, server=server))
        routing.on_seeded(m.Seeded(routing=1, server=server))
    assert routing.all_seeded
    return routing


def follow(routing: RoutingTable) -> None:
    """Let every server confirm the new routes."""
    for server in routing.roster.servers:
        done = routing.on_placed(m.Placed(routing=routing.epoch, server=server))
    if routing.change is not None and done:
        routing.on_followed()


@settings(deadline=None)
@given(
    servers=st.integers(2, 5),
    replicas=st.integers(1, 2),
    happenings=st.lists(
        st.tuples(st.sampled_from(["die", "come", "learn", "hear", "follow"]), st.integers(0, 9))
    ),
)
@example(
    servers=4, replicas=1, happenings=[("die", 1), ("learn", 1), ("die", 0), ("hear", 0)]
)  # in this example the learner gets more slices to fetch before its `CaughtUp` arrives
def test_every_slice_has_a_living_primary_or_is_reported_as_lost(
    servers: int, replicas: int, happenings: list[tuple[str, int]]
) -> None:
    routing = placed(servers, min(replicas, servers - 1))
    copies = [{route.primary, *route.replicas} for route in routing.routes]
    on_its_way: list[tuple[m.CaughtUp, list[int]]] = []
    for what, number in happenings:
        server = number % servers
        if (
            what == "die"
            and server in routing.roster.addresses
            and len(routing.roster.addresses) > 1
        ):
            lost = [slice_ for slice_, held in enumerate(copies) if held == {server}]
            loss = routing.lost_with(server)
            assert (loss.slices if loss is not None else 0) == len(lost)
            if loss is not None:
                return
            routing.lose_server(server, 1)
            copies = [held - {server} for held in copies]
        elif what == "come" and server not in routing.roster.addresses:
            routing.join(server, ADDRESS)
            routing.add_server(server, 1)
        elif what == "learn":
            pairs = sorted({(r.primary, peer) for r in routing.routes for peer in r.learners})
            if pairs:
                primary, peer = pairs[number % len(pairs)]
                learned = [
                    slice_
                    for slice_, route in enumerate(routing.routes)
                    if route.primary == primary and peer in route.learners
                ]
                said = m.CaughtUp(routing=routing.epoch, server=primary, peer=peer)
                on_its_way.append((said, learned))
        elif what == "hear" and on_its_way:
            said, learned = on_its_way.pop(0)
            if routing.on_caught_up(said, 1):
                for slice_ in learned:
                    copies[slice_] |= {said.peer}
        elif what == "follow":
            follow(routing)
            if routing.advance(1):
                copies = [{route.primary, *route.replicas} for route in routing.routes]
        routing.check()
        for slice_, route in enumerate(routing.routes):
            assert route.primary in routing.roster.addresses
            assert {route.primary, *route.replicas} <= copies[slice_], "a holder without a copy"


@settings(deadline=None)
@given(
    peers=st.integers(1, 3),
    learner=st.booleans(),
    told=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3), st.booleans()), max_size=40),
)
def test_a_step_is_settled_when_every_replica_has_confirmed_it(
    peers: int, learner: bool, told: list[tuple[int, int, bool]]
) -> None:
    replication = Replication()
    replicas = tuple(range(1, peers + 1))
    learners = (9,) if learner else ()
    replication.reroute([(0, m.Route(0, replicas, learners, 1))], 1)
    have = dict.fromkeys((*replicas, *learners), 0)
    settled = {step for step in range(1, 5) if replication.issue((7, 1, step))}
    adopted = False
    for sequence, number, adopts in told:
        peer = (*replicas, *learners)[number % len(have)]
        adopted = adopted or (adopts and peer in learners)
        have[peer] = max(have[peer], sequence)
        row = m.Row(7, 1, have[peer])
        done = replication.confirm(peer, (row,), adopted=adopts and peer in learners)
        settled |= {step for _, _, step in done}
        assert settled == {step for step in range(1, 5) if min(map(have.get, replicas)) >= step}
        if replication.caught_up(9):
            assert adopted and have[9] >= 4
        replication.check()


@settings(deadline=None)
@given(moves=st.lists(st.tuples(st.sampled_from(["route", "acknowledge"]), st.integers(0, 80))))
def test_lost_contributions_are_sent_again_to_the_current_primary(
    moves: list[tuple[str, int]],
) -> None:
    outstanding = Outstanding()
    routes = tuple(m.Route(slice_ % 3, (), (), 1) for slice_ in range(6))
    for sequence in (1, 2):
        outstanding.send(sequence, 1, COMPUTED, routes)
    owed = {(sequence, slice_) for sequence in (1, 2) for slice_ in range(6)}
    epoch = 1
    for what, number in moves:
        if what == "route":
            epoch += 1
            slice_, primary = number % 6, number % 4
            before = routes
            since = routes[slice_].since if routes[slice_].primary == primary else epoch
            moved = m.Route(primary, (), (), since)
            routes = (*routes[:slice_], moved, *routes[slice_ + 1 :])
            again = {
                (sent.sequence, part)
                for sent, parts in outstanding.reroute(routes)
                for slices in parts.values()
                for part in slices
            }
            changed = routes[slice_] != before[slice_]
            assert again == {key for key in owed if changed and key[1] == slice_}
        else:
            server, sequence, routing = number % 4, 1 + number % 2, 1 + number % (epoch + 1)
            outstanding.acknowledge(server, sequence, routing)
            owed -= {
                (mine, slice_)
                for mine, slice_ in owed
                if mine <= sequence
                and routes[slice_].primary == server
                and routes[slice_].since <= routing
            }
        assert len(outstanding) == len({sequence for sequence, _ in owed})
