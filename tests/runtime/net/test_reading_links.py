"""In which order a worker takes what arrives over several links."""

import threading

from polyrhythm.core.seat import FIRST_SEAT
from polyrhythm.io.link import Link
from polyrhythm.io.tcp import dial_tcp, listen_tcp, tcp_link
from polyrhythm.runtime.driver import Driver
from polyrhythm.runtime.net.handshake import acceptor, greet
from polyrhythm.runtime.net.worker_links import WorkerLinks
from polyrhythm.runtime.options import NodeOptions
from polyrhythm.wire import messages as m
from polyrhythm.wire.proof import Secret

NOWHERE = m.Address("127.0.0.1", 0, "", "")
SECRET = Secret("told to both")
SLICE_NBYTES = 16 * 2**20
"""More than the buffers of a socket hold."""
JOB = m.JobSpec(job="j", slice_nbytes=SLICE_NBYTES)


class Servers:
    """Dials servers within this process over TCP. They accept every hello."""

    shared = False

    def __init__(self) -> None:
        self.links: dict[str, Link] = {}
        self.threads: list[threading.Thread] = []

    def dial(self, address: m.Address, peer: str) -> Link:
        with listen_tcp("127.0.0.1", 0) as listener:
            here = dial_tcp(*listener.getsockname(), peer)
            there, _ = listener.accept()
        link = self.links[peer] = tcp_link(there, "w0")
        self.threads.append(threading.Thread(target=self._answer, args=(link, peer)))
        self.threads[-1].start()
        return here

    def _answer(self, link: Link, name: str) -> None:
        handshake = acceptor(link, name, JOB.job, SECRET)
        while handshake.hello is None:
            challenge = handshake.take(link.receive()[0])
            if challenge is not None:
                link.send(challenge)
        greet(link, handshake.hello, name, NOWHERE, "auto", JOB)


def test_a_worker_reads_other_links_while_a_slice_arrives() -> None:
    """The slice arrives completely only while it is read, so the message of the other server is there
    first."""
    taken: list[str] = []
    servers, driver = Servers(), Driver({}, lambda name, effect: None)
    links = WorkerLinks(
        servers,
        NodeOptions(secret=SECRET),
        driver,
        post=lambda event: None,
        take=lambda link, message, payload: taken.append(link.peer),
        place_of=lambda message, nbytes: None,
        seat=lambda: FIRST_SEAT,
    )
    hello = m.WorkerHello(name="w0", job="j", identity="")
    try:
        for peer in ("s1", "s2"):
            links.reach(NOWHERE, peer, hello, 1)
        for thread in servers.threads:
            thread.join()
        slice_ = m.Parameters(server=1, round=1, slice=0)
        servers.links["s1"].send(slice_, (bytes(SLICE_NBYTES),))
        servers.links["s2"].send(m.Alive(server=2))
        while not (links.unread("s1") and links.unread("s2")):
            pass
        while len(taken) < 2:
            links.poll(1.0)
        assert taken == ["s2", "s1"]
    finally:
        driver.close()
        links.stop_reporting()
        links.close()
        for link in servers.links.values():
            link.close()
            link.dispose()
