"""The seat moves while a process runs: from then on its messages for the lead go to the process that
has the seat, and only that process may send orders."""

from collections.abc import Iterator

import pytest

from polyrhythm.core.names import LEAD
from polyrhythm.core.placement.slices import lay_out
from polyrhythm.core.seat import FIRST_SEAT, Seat
from polyrhythm.errors import FrameError
from polyrhythm.io.memory import MemoryLink, memory_pair
from polyrhythm.runtime.driver import Driver
from polyrhythm.runtime.net.boundary import for_the_lead
from polyrhythm.runtime.net.worker_links import WorkerLinks
from polyrhythm.runtime.options import NodeOptions
from polyrhythm.runtime.server.node import ServerNode
from polyrhythm.wire import messages as m
from tests.core.stage import ADDRESS, spec

JOB = m.JobSpec(job="j", servers=3)


@pytest.fixture
def node() -> Iterator[ServerNode]:
    """Server 1, which holds no slices."""
    made = ServerNode(1, JOB, ADDRESS, lead=False, options=NodeOptions(), shared=False)
    yield made
    made.close()


def linked(node: ServerNode, peer: str) -> MemoryLink:
    """The other end of a link of the node to `peer`."""
    here, there = memory_pair("s1", peer)
    node._peers.add(here)
    return there


def place(routing: int, term: int, seat: int) -> m.Place:
    slices = len(lay_out(spec(), JOB.servers, JOB.slice_nbytes).slices)
    routes = (m.Route(0),) * slices
    return m.Place(
        term=term, seat=seat, routing=routing, spec=spec(), routes=routes, fresh=routing == 1
    )


@pytest.mark.timeout(20)  # a report that goes elsewhere is waited for without end
def test_reports_of_a_running_server_follow_the_seat(node: ServerNode) -> None:
    first, second = linked(node, "s0"), linked(node, "s2")
    node._driver.post("s1", place(1, term=1, seat=0))
    assert first.receive()[0] == m.Placed(term=1, routing=1, server=1)
    node._driver.post("s1", place(2, term=2, seat=2))
    assert second.receive()[0] == m.Placed(term=2, routing=2, server=1)
    node._driver.post("s1", place(3, term=1, seat=0))
    node._driver.post("s1", place(4, term=2, seat=2))
    assert second.receive()[0] == m.Placed(term=2, routing=4, server=1), "3 was refused"


def test_only_the_process_that_has_the_seat_may_send_orders() -> None:
    order = m.Fold(term=2, round=1)
    for seat in (FIRST_SEAT, Seat(2, 2)):
        for peer in ("s0", "s2"):
            link, _ = memory_pair("s1", peer)
            if peer == seat.name:
                assert not for_the_lead(link, order, seat)
            else:
                with pytest.raises(FrameError, match="in the name of another"):
                    for_the_lead(link, order, seat)


def test_a_worker_reaches_the_lead_over_the_link_of_the_process_that_has_the_seat() -> None:
    seat, driver = FIRST_SEAT, Driver({}, lambda name, effect: None)
    links = WorkerLinks(
        None,  # type: ignore[arg-type]
        NodeOptions(),
        driver,
        post=lambda event: None,
        take=lambda link, message, payload: None,
        place_of=lambda message, nbytes: None,
        seat=lambda: seat,
    )
    ends = {peer: memory_pair("w0", peer)[0] for peer in ("s0", "s2")}
    for link in ends.values():
        links._peers.add(link)
    assert links.to(LEAD) is links.to("s0") is ends["s0"]
    seat = Seat(2, 2)
    assert links.to(LEAD) is links.to("s2") is ends["s2"]
    driver.close()
    links.stop_reporting()
    links.close()
