"""`RoutingTable.check` finds routes that break an invariant, even if an earlier check of the same
table has passed."""

import pytest

from polyrhythm.core.lead.servers.routing import RoutingTable
from polyrhythm.errors import InvariantBroken
from polyrhythm.wire.messages import Address, Division, Route


def checked() -> RoutingTable:
    routing = RoutingTable.begin(2, Division(2, 1024))
    routing.roster.addresses = {
        server: Address("127.0.0.1", 7000 + server, "", "") for server in range(2)
    }
    routing.routes = (Route(0, (1,)), Route(1, (0,)))
    routing.check()
    return routing


def test_a_route_to_a_lost_server_is_found() -> None:
    routing = checked()
    del routing.roster.addresses[1]
    for _ in range(2):
        with pytest.raises(InvariantBroken, match="slice 0 is routed to a server that was lost"):
            routing.check()


def test_a_server_that_holds_a_slice_twice_is_found() -> None:
    routing = checked()
    routing.routes = (Route(0, (1,)), Route(1, (0,), (1,)))
    with pytest.raises(InvariantBroken, match="slice 1 is on one server twice"):
        routing.check()


def test_a_lost_server_without_slices_breaks_nothing() -> None:
    routing = checked()
    routing.roster.addresses[2] = Address("127.0.0.1", 7002, "", "")
    routing.check()
    del routing.roster.addresses[2]
    routing.check()
