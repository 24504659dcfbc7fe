"""If a member floods a server with messages, other members wait at most for one turn of that
member's link, and no queue fills up."""

import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from polyrhythm.core.machine import Waiting
from polyrhythm.errors import LinkEnded
from polyrhythm.io.link import Link, Payload
from polyrhythm.io.local import local_link
from polyrhythm.io.stream import StreamLink
from polyrhythm.runtime.driver import Driver
from polyrhythm.runtime.net import link_readers as turns
from polyrhythm.runtime.net.link_readers import FRAMES_PER_TURN, LinkReaders
from polyrhythm.wire import frames
from polyrhythm.wire import messages as m
from polyrhythm.wire.digests import Digest
from polyrhythm.wire.frames import MEMBER, encode

ALIVE = b"".join(encode(m.Alive(worker=0), (), Digest.XXH3))
ENOUGH = 40 * 64


def member_link(sock: socket.socket, peer: str) -> StreamLink:
    """Return a link that has completed its handshake."""
    link = local_link(sock, peer)
    link.agree(Digest.XXH3, MEMBER)
    return link


@dataclass
class Counting:
    """A machine that records its events."""

    handled: list[str] = field(default_factory=list)

    def handle(self, event: str, now_ns: int) -> tuple[()]:
        self.handled.append(event)
        return ()

    def wake_at(self) -> None:
        return None

    def why(self) -> Waiting:
        raise NotImplementedError

    def check(self) -> None: ...


class Server:
    """A server that reads two links: that of a member whose flood never ends, and that of an honest
    member."""

    def __init__(self, *, threads: bool) -> None:
        self.flooding, self._theirs = socket.socketpair()
        self.honest, honest = socket.socketpair()
        self.links = [member_link(self._theirs, "flood"), member_link(honest, "honest")]
        self.machine = Counting()
        self.driver = Driver({"machine": self.machine}, lambda machine, effect: None)
        self.taken = 0
        self.over = threading.Event()
        self._ended = threading.Semaphore(0)
        self.reading = LinkReaders(
            self._take, self.driver.run, self.driver.catch_up, self._end_link, lambda link: threads
        )

    def _take(self, link: Link, message: m.Message, payload: Payload | None, wait: bool) -> None:
        if link.peer == "flood":
            if self.taken == 0:
                self.honest.sendall(ALIVE)
            self.taken += 1
            self.driver.put("machine", "flood")
            if self.taken == ENOUGH:
                self.over.set()
            elif self.taken < ENOUGH:  # the flood goes on: there is always another message to read
                self.flooding.sendall(ALIVE)
        else:
            self.driver.put("machine", "honest")

    def _end_link(self, link: Link, error: Exception) -> None:
        assert isinstance(error, LinkEnded), error
        self._ended.release()

    def run(self) -> None:
        self.flooding.sendall(ALIVE * 32)
        self.reading.start()
        for link in reversed(self.links):
            self.reading.begin(link)
        assert self.over.wait(60)
        for sock in (self.flooding, self.honest):
            sock.close()
        for _ in self.links:
            assert self._ended.acquire(timeout=30)
        self.reading.stop()
        self.driver.close()
        self.reading.close()
        for link in self.links:
            link.close()
            link.dispose()


@pytest.fixture
def small_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let links read only a few frames per call, so that a small flood takes many calls."""
    monkeypatch.setattr(frames, "_STAGING_NBYTES", 4 * len(ALIVE))


def check_turns(*, threads: bool) -> None:
    server = Server(threads=threads)
    server.run()
    before = server.machine.handled.index("honest")
    assert before <= 3 * FRAMES_PER_TURN, f"{before} messages of the flood were handled before"


@pytest.mark.usefixtures("small_reads")
def test_a_flood_under_the_poller_delays_others_by_one_turn() -> None:
    check_turns(threads=False)


@pytest.mark.usefixtures("small_reads")
def test_a_flood_delays_others_when_turns_are_unlimited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "FRAMES_PER_TURN", 10**9)
    with pytest.raises(AssertionError, match="were handled before"):
        check_turns(threads=False)


@pytest.fixture
def busy() -> Iterator[tuple[Driver, threading.Event]]:
    """A driver whose machine is busy with its first event until the test releases it."""
    began, go_on = threading.Event(), threading.Event()

    class Slow(Counting):
        def handle(self, event: str, now_ns: int) -> tuple[()]:
            began.set()
            assert go_on.wait(60)
            return super().handle(event, now_ns)

    driver = Driver({"machine": Slow()}, lambda machine, effect: None)
    thread = threading.Thread(target=lambda: driver.post("machine", "first"))
    thread.start()
    assert began.wait(60)
    yield driver, go_on
    go_on.set()
    thread.join()
    driver.close()


Busy = tuple[Driver, threading.Event]


@pytest.mark.parametrize("threads", [False, True], ids=["poller", "thread"])
def test_a_flood_waits_until_the_machines_have_handled_it(busy: Busy, threads: bool) -> None:
    """While a machine is busy, at most the messages of one turn of a link are queued for it."""
    assert most_queued(*busy, threads=threads) <= FRAMES_PER_TURN


@pytest.mark.parametrize("threads", [False, True], ids=["poller", "thread"])
def test_a_flood_does_not_wait_when_turns_are_unlimited(
    busy: Busy, threads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "FRAMES_PER_TURN", 10**9)
    assert most_queued(*busy, threads=threads) == ENOUGH


def most_queued(driver: Driver, go_on: threading.Event, *, threads: bool) -> int:
    """Return the number of messages of a flood that are queued before its link has to wait."""
    ours, theirs = socket.socketpair()
    link = member_link(theirs, "flood")
    taken = 0

    def take(link: Link, message: m.Message, payload: Payload | None, wait: bool) -> None:
        nonlocal taken
        taken += 1
        driver.put("machine", "flood")
        if taken == ENOUGH:
            waits.set()

    def catch_up() -> None:
        waits.set()
        driver.catch_up()

    waits, ended = threading.Event(), threading.Event()
    reading = LinkReaders(
        take, driver.run, catch_up, lambda link, error: ended.set(), lambda link: threads
    )
    sender = threading.Thread(target=lambda: ours.sendall(ALIVE * ENOUGH))
    sender.start()
    reading.start()
    reading.begin(link)
    assert waits.wait(60)
    most = len(driver._queue)
    go_on.set()
    sender.join(60)
    ours.close()
    assert ended.wait(60)
    reading.stop()
    reading.close()
    link.close()
    link.dispose()
    assert taken == ENOUGH
    return most
