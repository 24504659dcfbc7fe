"""A server that does not run the lead accepts only links of servers and workers that the lead has
named."""

from typing import Any

import pytest

from polyrhythm.core import effects as fx
from polyrhythm.core import events as ev
from polyrhythm.core.server.admission import MOST_WAITING, WAIT_NS
from polyrhythm.core.server.machine import ServerMachine
from polyrhythm.wire import messages as m
from tests.core.stage import Stage

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
    """The other server may dial before the lead's `Place` has reached this server."""
    server = machine()
    assert server.handle(ev.ServerCalled("link-1", 2, 5), 0) == []
    assert server.wake_at() == WAIT_NS
    effects = server.handle(place(1, (0, 1), (1, 1), (2, 5)), 1)
    assert bound(effects) == [fx.Bind("link-1", "s2", 5)]
    assert not refused(server.handle(ev.Tick(), WAIT_NS), "link-1")


def test_a_server_that_is_not_named_is_refused_after_five_seconds() -> None:
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


def test_a_server_without_an_incarnation_is_not_bound() -> None:
    server = machine()
    assert bound(server.handle(ev.ServerCalled("link-1", 3, 0), 0)) == []
    server.handle(place(1, (0, 1), (1, 1), (2, 5)), 1)
    assert refused(server.handle(ev.Tick(), WAIT_NS), "link-1")


def test_waiting_links_have_a_limit_and_are_forgotten_when_they_close() -> None:
    server = machine()
    for number in range(MOST_WAITING):
        assert server.handle(ev.ServerCalled(f"link-{number}", 3, 1), 0) == []
    assert refused(server.handle(ev.ServerCalled("one-more", 3, 1), 0), "one-more")
    server.handle(ev.LinkClosed("link-0", "it went"), 0)
    assert server.handle(ev.ServerCalled("another", 3, 1), 0) == []


@pytest.mark.parametrize("number", [0, 1])
def test_a_server_that_this_one_dials_itself_is_refused_at_once(number: int) -> None:
    """If the server accepted such a link, a member that claims to be the lead's server would get
    the messages for that server."""
    server = machine()
    server.handle(place(1, (0, 1), (1, 1), (2, 5)), 0)
    for incarnation in range(3):
        link = f"link-{incarnation}"
        assert refused(server.handle(ev.ServerCalled(link, number, incarnation), 0), link)


@pytest.mark.parametrize("number", [-1, 1])
def test_a_caller_without_the_number_of_another_server_is_told_so(number: int) -> None:
    """Neither -1 nor the server's own number (1) is the number of another server."""
    server = machine()
    server.handle(place(1, (0, 1), (1, 1), (2, 5)), 0)
    effects = server.handle(ev.ServerCalled("link", number, 1), 0)
    assert refused(effects, "link")
    assert "not-a-server" in str(effects) and "dials-itself" not in str(effects)


# -- workers -----------------------------------------------------------------------------------


def introduced(worker: int, incarnation: int) -> m.Introduced:
    return m.Introduced(term=1, worker=worker, incarnation=incarnation)


def test_a_worker_that_the_lead_has_admitted_is_bound_at_once() -> None:
    server = machine()
    server.handle(introduced(0, 3), 0)
    effects = server.handle(ev.WorkerCalled("link-1", 0, 3), 1)
    assert bound(effects) == [fx.Bind("link-1", "w0", 3)]


def test_a_worker_that_is_not_introduced_yet_waits_for_the_leads_word() -> None:
    """The lead admits a worker and introduces it to the servers at the same moment, so the worker
    may dial before a server has heard of it."""
    server = machine()
    assert server.handle(ev.WorkerCalled("link-1", 0, 3), 0) == []
    assert server.wake_at() == WAIT_NS
    assert bound(server.handle(introduced(1, 4), 1)) == []
    assert bound(server.handle(introduced(0, 3), 2)) == [fx.Bind("link-1", "w0", 3)]
    assert not refused(server.handle(ev.Tick(), WAIT_NS), "link-1")


def test_a_later_incarnation_than_the_lead_has_given_is_refused_after_five_seconds() -> None:
    """If the server accepted such a link, a member could take over the link of another worker by
    claiming a later incarnation."""
    server = machine()
    server.handle(introduced(0, 3), 0)
    assert server.handle(ev.WorkerCalled("link-1", 0, 4), 0) == []
    assert not refused(server.handle(ev.Tick(), WAIT_NS - 1), "link-1")
    assert refused(server.handle(ev.Tick(), WAIT_NS), "link-1")


def test_an_incarnation_that_the_lead_has_replaced_is_refused_at_once() -> None:
    server = machine()
    server.handle(introduced(0, 3), 0)
    server.handle(introduced(0, 5), 1)
    assert refused(server.handle(ev.WorkerCalled("link-1", 0, 3), 2), "link-1")
    assert bound(server.handle(ev.WorkerCalled("link-2", 0, 5), 2)) == [fx.Bind("link-2", "w0", 5)]


def test_a_worker_that_waits_is_refused_when_the_lead_has_admitted_a_later_incarnation() -> None:
    server = machine()
    assert server.handle(ev.WorkerCalled("link-1", 0, 3), 0) == []
    assert refused(server.handle(introduced(0, 5), 1), "link-1")


@pytest.mark.parametrize(("worker", "incarnation"), [(-1, 1), (0, 0), (0, -1)])
def test_a_worker_that_was_never_admitted_is_refused_at_once(worker: int, incarnation: int) -> None:
    server = machine()
    effects = server.handle(ev.WorkerCalled("link-1", worker, incarnation), 0)
    assert refused(effects, "link-1")


def test_workers_that_wait_have_a_limit_of_their_own() -> None:
    """A server may link even if the largest allowed number of workers is waiting."""
    server = machine()
    for number in range(MOST_WAITING):
        assert server.handle(ev.WorkerCalled(f"link-{number}", number, 9), 0) == []
    assert refused(server.handle(ev.WorkerCalled("one-more", 9, 9), 0), "one-more")
    assert server.handle(ev.ServerCalled("server", 3, 1), 0) == []
    server.handle(ev.LinkClosed("link-0", "it went"), 0)
    assert server.handle(ev.WorkerCalled("another", 9, 9), 0) == []


def test_as_many_workers_as_the_job_has_may_wait_at_once() -> None:
    server = ServerMachine(1, m.JobSpec(job="j", servers=2, workers=2 * MOST_WAITING))
    for number in range(2 * MOST_WAITING):
        assert server.handle(ev.WorkerCalled(f"link-{number}", number, 9), 0) == []


def test_new_routes_do_not_forget_workers() -> None:
    server = machine()
    server.handle(introduced(0, 3), 0)
    server.handle(place(1, (0, 1), (1, 1), (2, 5)), 1)
    assert bound(server.handle(ev.WorkerCalled("link-1", 0, 3), 2)) == [fx.Bind("link-1", "w0", 3)]


def test_the_lead_introduces_a_worker_to_every_server_before_it_admits_it() -> None:
    stage = Stage(workers=2, servers=3, replicas=1)
    effects = [e for e in stage.hello("anna") if isinstance(e, fx.Send)]
    told = [(e.to, e.message.worker, e.message.incarnation) for e in introductions(effects)]
    incarnation = stage.incarnations[0]
    assert told == [(f"s{number}", 0, incarnation) for number in range(3)]
    assert isinstance(effects[-1].message, m.Admitted)


def test_the_lead_introduces_a_rejoined_worker_with_its_new_incarnation() -> None:
    stage = Stage(workers=2, servers=2).begin()
    before = stage.incarnations[0]
    stage.tell(ev.LinkClosed("w0", "it broke", before))
    (first, second) = introductions(stage.hello("worker-0"))
    assert {first.to, second.to} == {"s0", "s1"}
    assert first.message.incarnation == second.message.incarnation > before


def test_a_server_that_comes_later_is_told_of_every_member() -> None:
    stage = Stage(workers=2, servers=3, replicas=1).begin()
    stage.tell(ev.LinkClosed("s2", "it died"))
    effects = stage.server(2)
    told = [(e.to, e.message.worker, e.message.incarnation) for e in introductions(effects)]
    assert told == [("s2", worker, stage.incarnations[worker]) for worker in (0, 1)]


def introductions(effects: Any) -> list[fx.Send]:
    sends = [effect for effect in effects if isinstance(effect, fx.Send)]
    return [effect for effect in sends if isinstance(effect.message, m.Introduced)]


def test_an_operator_is_refused_at_once_because_the_lead_does_not_run_here() -> None:
    assert refused(machine().handle(ev.OperatorCalled("operator-1"), 0), "operator-1")
