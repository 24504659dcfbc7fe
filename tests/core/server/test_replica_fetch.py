from polyrhythm.core.effects import FetchState
from polyrhythm.core.events import StateAdopted
from polyrhythm.core.server.replication import ReplicaFetch
from polyrhythm.wire.messages import Place, Route
from tests.core.stage import spec


def place(routing: int, *routes: Route, fresh: bool = False) -> Place:
    return Place(routing=routing, spec=spec(), routes=routes, fresh=fresh)


def test_fresh_slices_are_not_fetched() -> None:
    copying = ReplicaFetch(1)
    routes = Route(0, (1,)), Route(1, (0,))
    copying.begin(place(1, *routes, fresh=True))
    assert copying.fetch(place(2, *routes)) == []


def test_a_primary_is_asked_once_for_missing_slices() -> None:
    copying = ReplicaFetch(1)
    wanted = place(2, Route(0, (), (1,)), Route(0, (1,)))
    copying.begin(place(1, *wanted.routes))
    assert copying.fetch(wanted) == [FetchState(0, (0, 1), 2)]
    assert copying.fetch(wanted) == []
    assert copying.on_adopted(StateAdopted(0, 2, ()))
    assert copying.fetch(wanted) == []


def test_states_of_an_earlier_fetch_do_not_complete_a_later_one() -> None:
    copying = ReplicaFetch(1)
    copying.fetch(place(2, Route(0, (1,)), Route(0)))
    assert copying.fetch(place(3, Route(0, (1,)), Route(0, (1,)))) == [FetchState(0, (0, 1), 3)]
    assert not copying.on_adopted(StateAdopted(0, 2, ()))
    assert copying.on_adopted(StateAdopted(0, 3, ()))


def test_a_replica_is_fetched_again_when_its_primary_changes() -> None:
    copying = ReplicaFetch(1)
    before, after = place(2, Route(0, (1,))), place(3, Route(2, (1,)))
    copying.fetch(before)
    copying.on_adopted(StateAdopted(0, 2, ()))
    copying.follow(after)
    assert copying.fetch(after) == [FetchState(2, (0,), 3)]
