"""Which of two links of a peer is used, and which machines are told when a link ends."""

import threading
from collections.abc import Sequence
from queue import SimpleQueue
from typing import Any

import pytest

from polyrhythm.core import effects as fx
from polyrhythm.core import events as ev
from polyrhythm.core.liveness import link_timeout_s
from polyrhythm.core.names import LEAD
from polyrhythm.core.seat import FIRST_SEAT
from polyrhythm.errors import LinkEnded
from polyrhythm.io.link import Link
from polyrhythm.io.memory import MemoryLink, memory_pair
from polyrhythm.runtime.driver import Driver
from polyrhythm.runtime.net.handshake import greet
from polyrhythm.runtime.net.peers import Peers
from polyrhythm.runtime.net.server_links import LinkHandlers, ServerLinks
from polyrhythm.runtime.net.worker_links import WorkerLinks
from polyrhythm.runtime.options import NodeOptions
from polyrhythm.wire import messages as m
from polyrhythm.wire.messages.reasons import refused

ADDRESS = m.Address("memory", 0, "", "")
IGNORE = (lambda link, message, payload, wait: None, lambda link: False)
"""`take` and `needs_thread` of a server whose links carry no messages."""


def link_of(peer: str, incarnation: int) -> MemoryLink:
    link, _ = memory_pair("s0", peer)
    link.incarnation = incarnation
    return link


@pytest.mark.parametrize(("second", "stays"), [(2, True), (3, True), (4, False)])
def test_only_a_later_incarnation_takes_the_place_of_a_link(second: int, stays: bool) -> None:
    peers = Peers()
    before, after = link_of("w1", 3), link_of("w1", second)
    assert peers.add(before) is None
    assert peers.add(after) is (after if stays else before), "add returns the link to close"
    assert peers.get("w1") is (before if stays else after)


class Ears:
    """A machine that records its events and has no effects."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def handle(self, event: Any, now_ns: int) -> Sequence[Any]:
        self.heard.append(event)
        return ()

    def wake_at(self) -> int | None:
        return None

    def check(self) -> None: ...


@pytest.mark.parametrize("leads", [True, False])
def test_the_end_of_a_link_is_reported_to_the_server_that_runs_the_lead_too(leads: bool) -> None:
    """Both machines of the process get the event: the lead removes the member, and the server ends
    the member's leases."""
    machines = {"s0": Ears(), **({LEAD: Ears()} if leads else {})}
    driver, peers = Driver(machines, lambda name, effect: None), Peers()
    address = m.Address("memory", 0, "", "")
    me = m.ServerHello(server=0, name="s0", job="j", address=address, identity="")
    links = ServerLinks(
        me,
        peers,
        driver,
        job=m.JobSpec(job="j"),
        seat=lambda: FIRST_SEAT,
        options=NodeOptions(),
        journal=None,
        handlers=LinkHandlers(*IGNORE),
    )
    link = link_of("w1", 3)
    peers.add(link)
    try:
        links.end_link(link, LinkEnded("it is gone"))
    finally:
        driver.close()
        links.reading.close()
    told = ev.LinkClosed("w1", "it is gone", 3)
    assert {name: machine.heard for name, machine in machines.items()} == {
        name: [told] for name in machines
    }


def test_the_end_of_a_link_frees_the_memory_kept_for_its_peer() -> None:
    gone: list[str] = []
    driver, peers = Driver({"s1": Ears()}, lambda name, effect: None), Peers()
    address = m.Address("memory", 1, "", "")
    links = ServerLinks(
        m.ServerHello(server=1, name="s1", job="j", address=address, identity=""),
        peers,
        driver,
        job=m.JobSpec(job="j"),
        seat=lambda: FIRST_SEAT,
        options=NodeOptions(),
        journal=None,
        handlers=LinkHandlers(*IGNORE, gone=gone.append),
    )
    ended, dropped = link_of("s2", 1), link_of("s3", 1)
    peers.add(ended)
    peers.add(dropped)
    try:
        links.end_link(ended, LinkEnded("it is gone"))
        links.end_link(ended, LinkEnded("it is gone"))
        links.drop(fx.Drop("s3", refused("it is not in the job any more")))
    finally:
        driver.close()
        links.reading.close()
    assert gone == ["s2", "s3"]


class Lasting(MemoryLink):
    """Records for how long it was told to last."""

    outlasts: float | None = None

    def outlast(self, seconds: float) -> None:
        self.outlasts = seconds


@pytest.mark.parametrize("leads", [True, False])
def test_an_accepted_link_outlasts_a_failure_of_the_network_as_long_as_the_job_says(
    leads: bool,
) -> None:
    machines = {"s1": Ears(), **({LEAD: Ears()} if leads else {})}
    driver = Driver(machines, lambda name, effect: None)
    job = m.JobSpec(job="j", lead_timeout_s=600.0)
    links = ServerLinks(
        m.ServerHello(server=1, name="s1", job="j", address=ADDRESS, identity=""),
        Peers(),
        driver,
        job=job,
        seat=lambda: FIRST_SEAT,
        options=NodeOptions(),
        journal=None,
        handlers=LinkHandlers(*IGNORE),
    )
    link = Lasting("link-1", SimpleQueue(), SimpleQueue())
    link.close()  # a server that leads reads the link until its end
    try:
        links.accept_link(link, m.WorkerHello(name="w", job="j", identity=""))
    finally:
        driver.close()
        links.reading.close()
    assert (
        link.outlasts == link_timeout_s(600.0) > link_timeout_s(m.JobSpec(job="j").lead_timeout_s)
    )


class Answering:
    """Dials servers within this process, which accept every hello."""

    shared = False

    def __init__(self) -> None:
        self.servers: list[MemoryLink] = []

    def dial(self, address: m.Address, peer: str) -> Link:
        here, there = memory_pair("w0", peer)
        self.servers.append(there)
        threading.Thread(target=self._answer, args=(there, peer)).start()
        return here

    def _answer(self, link: MemoryLink, name: str) -> None:
        hello, _ = link.receive()
        assert isinstance(hello, m.WorkerHello)
        greet(link, hello, name, ADDRESS, "auto", m.JobSpec(job="j"))


def test_a_link_that_is_not_wanted_any_more_takes_the_place_of_no_other() -> None:
    """The worker has joined again while its former incarnation waited for the answer."""
    dialer, driver = Answering(), Driver({}, lambda name, effect: None)
    links = WorkerLinks(
        dialer,
        NodeOptions(),
        driver,
        post=lambda event: None,
        take=lambda link, message, payload: None,
        place_of=lambda message, nbytes: None,
        seat=lambda: FIRST_SEAT,
    )
    hello = m.WorkerHello(name="w", job="j", identity="")
    try:
        links.reach(ADDRESS, "s1", hello, 2)
        used = links.to("s1")
        assert used is not None
        links.reach(ADDRESS, "s1", hello, 2, wanted=lambda: False)
        assert links.to("s1") is used
        with pytest.raises(LinkEnded):
            dialer.servers[1].receive()
    finally:
        driver.close()
        links.stop_reporting()
        links.close()
