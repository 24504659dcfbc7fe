"""A link is quiet if nothing has come over it since the last look; otherwise its peer is heard."""

import os
import select
from collections.abc import Iterator
from contextlib import closing

import pytest

from polyrhythm.core.events import LinksQuiet, PeersHeard
from polyrhythm.core.seat import FIRST_SEAT
from polyrhythm.io.link import Link
from polyrhythm.io.memory import memory_pair
from polyrhythm.io.stream import StreamLink
from polyrhythm.io.tcp import dial_tcp, listen_tcp, tcp_link
from polyrhythm.runtime.net.peers import LinkWatch, Peers
from polyrhythm.wire import messages as m
from polyrhythm.wire.frames import PREAMBLE

QUIET = LinksQuiet((("w1", 3),))
NONE_ANY_MORE = LinksQuiet(())
HELLO = m.WorkerHello(name="w", job="j", identity="")


@pytest.fixture
def ends() -> Iterator[tuple[StreamLink, StreamLink]]:
    """Both ends of a TCP link: that of a server, and that of the worker `w1`."""
    with closing(listen_tcp("127.0.0.1", 0)) as listener:
        worker = dial_tcp("127.0.0.1", listener.getsockname()[1], "s0")
        sock, _ = listener.accept()
    server = tcp_link(sock, "w1")
    server.incarnation = 3
    yield server, worker
    for link in (server, worker):
        link.close()
        link.dispose()


def reader_of(*links: Link) -> LinkWatch:
    peers = Peers()
    for link in links:
        peers.add(link)
    return LinkWatch(peers, lambda: FIRST_SEAT)


def test_a_link_is_quiet_until_something_comes_over_it(
    ends: tuple[StreamLink, StreamLink],
) -> None:
    server, worker = ends
    reader = reader_of(server)
    assert reader.quiet() is None, "nobody has looked before"
    assert [reader.quiet(), reader.quiet()] == [QUIET, QUIET]
    worker.send(HELLO)
    server.receive()
    assert [reader.quiet(), reader.quiet()] == [NONE_ANY_MORE, QUIET]


def test_a_link_whose_bytes_wait_because_the_server_is_busy_is_not_quiet(
    ends: tuple[StreamLink, StreamLink],
) -> None:
    server, worker = ends
    reader = reader_of(server)
    assert [reader.quiet(), reader.quiet()] == [None, QUIET]
    worker.send(HELLO)
    assert select.select([server], [], [], 10)[0]
    assert [reader.quiet(), reader.quiet()] == [NONE_ANY_MORE, None]


def test_a_peer_is_heard_although_no_message_is_complete_yet(
    ends: tuple[StreamLink, StreamLink],
) -> None:
    server, worker = ends
    reader = reader_of(server)
    reader.heard()  # nobody has looked before
    assert reader.heard() is None
    os.write(worker.fileno(), PREAMBLE[:1])
    assert select.select([server], [], [], 10)[0]
    assert list(server.receive_ready()) == [], "no message is complete"
    assert [reader.heard(), reader.heard()] == [PeersHeard((("w1", 3),)), None]


def test_links_within_a_process_and_links_of_other_peers_are_never_quiet(
    ends: tuple[StreamLink, StreamLink],
) -> None:
    server, _ = ends
    server.peer = "link-7"
    inside, _ = memory_pair("s0", "w2")
    reader = reader_of(server, inside)
    assert [reader.quiet(), reader.quiet(), reader.quiet()] == [None, None, None]
