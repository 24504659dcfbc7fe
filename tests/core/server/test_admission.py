"""A server that does not lead takes the links of servers that the lead has named, and of no others."""

from typing import Any

import pytest

from polyrhythm.core import effects as fx
from polyrhythm.core import events as ev
from polyrhythm.core.server.admission import MOST_WAITING, WAIT_NS
from polyrhythm.core.server.machine import ServerMachine
from polyrhythm.wire import messages as m

ADDRESS = m.Address("", 0, "", "")
SPEC = m.ModelSpec(
    (m.TensorSpec("weight", (4, 4), "float32", 0, (4, 1)),), m.OptimizerSpec("SGD", ({"lr": 0.1},))
)


def machine() -> ServerMachine:
    return ServerMachine(1, m.JobSpec(job="j", servers=4, replicas=1))


def place(routing: int, *servers: tuple[int, int]) -> m.Place:
    specs = tuple(m.ServerSpec(number, ADDRESS, incarnation) for number, incarnation in servers)
    return m.Place(
        term=1, routing=routing, spec=SPEC, routes=(m.Route(1, (2,)),), servers=specs, fresh=True
    )


def refused(effects: Any, link: str) -> bool:
    dropped = [e for e in effects if isinstance(e, fx.Drop) and e.peer == link]
    told = [
        e
        for e in effects
        if isinstance(e, fx.Send) and e.to == link and isinstance(e.message, m.Refusal)
    ]
    return len(dropped) == len(told) == 1


def bound(effects: Any) -> list[fx.Bind]:
    return [effect for effect in effects if isinstance(effect, fx.Bind)]


def test_a_server_that_was_named_is_bound_at_once() -> None:
    server = machine()
    server.handle(place(1, (0, 1), (1, 1), (2, 5)), 0)
    effects = server.handle(ev.ServerCalled("link-1", 2, 5), 1)
    assert bound(effects) == [fx.Bind("link-1", "s2", 5)]


def test_a_server_that_is_not_named_yet_waits_for_the_leads_word() -> None:
    """The order to dial may reach the other server before `Place` comes here."""
    server = machine()
    assert server.handle(ev.ServerCalled("link-1", 2, 5), 0) == []
    assert server.wake_at() == WAIT_NS
    effects = server.handle(place(1, (0, 1), (1, 1), (2, 5)), 1)
    assert bound(effects) == [fx.Bind("link-1", "s2", 5)]
    assert not refused(server.handle(ev.Tick(), WAIT_NS), "link-1")


def test_it_is_refused_after_five_seconds() -> None:
    server = machine()
    server.handle(place(1, (0, 1), (1, 1), (2, 5)), 0)
    assert server.handle(ev.ServerCalled("link-1", 3, 1), 0) == []
    assert not refused(server.handle(ev.Tick(), WAIT_NS - 1), "link-1")
    assert refused(server.handle(ev.Tick(), WAIT_NS), "link-1")


def test_another_incarnation_than_the_named_one_is_not_bound() -> None:
    server = machine()
    server.handle(place(1, (0, 1), (1, 1), (2, 5)), 0)
    assert refused(server.handle(ev.ServerCalled("link-1", 2, 4), 0), "link-1")
    assert bound(server.handle(ev.ServerCalled("link-2", 2, 6), 0)) == []
    assert refused(server.handle(ev.Tick(), WAIT_NS), "link-2")


def test_a_server_of_no_incarnation_is_not_bound() -> None:
    server = machine()
    assert bound(server.handle(ev.ServerCalled("link-1", 3, 0), 0)) == []
    server.handle(place(1, (0, 1), (1, 1), (2, 5)), 1)
    assert refused(server.handle(ev.Tick(), WAIT_NS), "link-1")


def test_links_that_wait_have_a_limit_and_go_with_their_peer() -> None:
    server = machine()
    for number in range(MOST_WAITING):
        assert server.handle(ev.ServerCalled(f"link-{number}", 3, 1), 0) == []
    assert refused(server.handle(ev.ServerCalled("one-more", 3, 1), 0), "one-more")
    server.handle(ev.LinkClosed("link-0", "it went"), 0)
    assert server.handle(ev.ServerCalled("another", 3, 1), 0) == []


@pytest.mark.parametrize("number", [0, 1])
def test_a_server_that_this_one_dials_itself_is_refused_at_once(number: int) -> None:
    """Otherwise a member that calls as the lead's server gets what is meant for that server."""
    server = machine()
    server.handle(place(1, (0, 1), (1, 1), (2, 5)), 0)
    for incarnation in range(3):
        link = f"link-{incarnation}"
        assert refused(server.handle(ev.ServerCalled(link, number, incarnation), 0), link)


@pytest.mark.parametrize("number", [-1, 1])
def test_a_caller_without_the_number_of_another_server_is_told_so(number: int) -> None:
    """A server does not dial itself."""
    server = machine()
    server.handle(place(1, (0, 1), (1, 1), (2, 5)), 0)
    effects = server.handle(ev.ServerCalled("link", number, 1), 0)
    assert refused(effects, "link")
    assert "number of another server" in str(effects) and "dials" not in str(effects)
