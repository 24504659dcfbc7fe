"""Where the slices land that a worker receives, while slices get other primaries."""

import socket
import threading

import pytest
import torch

from polyrhythm.core import effects as fx
from polyrhythm.core.machine import Event
from polyrhythm.core.placement.slices import lay_out
from polyrhythm.io.link import Link, Payload
from polyrhythm.io.tcp import dial_tcp, listen_tcp, tcp_link
from polyrhythm.runtime.worker.landing import Landing
from polyrhythm.tensors.flat import FlatModel
from polyrhythm.wire import messages as m
from polyrhythm.wire.digests import Digest
from polyrhythm.wire.frames import MEMBER, encode

LENGTH = 2**21
"""More bytes in a slice than the buffers of a socket hold."""
SPEC = m.ModelSpec(
    (m.TensorSpec("w", (2 * LENGTH,), "float32", 0, (1,)),),
    m.OptimizerSpec("SGD", ({"lr": 0.1},)),
)
BEFORE, AFTER = (m.Route(0), m.Route(1)), (m.Route(1), m.Route(1))


class Worker:
    """A model with two slices, and links to two servers in this process."""

    def __init__(self) -> None:
        self.values = torch.zeros(2 * LENGTH)
        layout = lay_out(SPEC, 2, 4 * LENGTH)
        self.events: list[Event] = []
        self.here: list[Link] = []
        self.there: list[Link] = []
        self.landing = Landing(self.events.append, self._divert)
        model = FlatModel(layout, [self.values], "same")
        self.landing.attach(model, layout, None, in_place=False)
        for server in (0, 1):
            here, sock = self._connect(server)
            self.here.append(here)
            self.there.append(_link_of(sock))

    def _connect(self, server: int) -> tuple[Link, socket.socket]:
        with listen_tcp("127.0.0.1", 0) as listener:
            host, port = listener.getsockname()
            here = dial_tcp(host, port, f"s{server}")
            sock = listener.accept()[0]
        here.agree(Digest.XXH3, MEMBER)
        here.land_with(self.landing.place_of)
        return here, sock

    def connect_again(self, server: int) -> socket.socket:
        """The link to a server breaks, and gets a successor. Returns the server's end of it."""
        for link in (self.here[server], self.there[server]):
            link.close()
            link.dispose()
        self.here[server], sock = self._connect(server)
        self.there[server] = _link_of(sock)
        return sock

    def _divert(self, late: m.Parameters) -> None:
        link = self.here[late.server].pollable
        assert link is not None
        link.divert(late)

    def expect(self, version: int) -> None:
        self.landing.expect(fx.Expect(version))

    def send(self, server: int, slice_: int, version: int, value: float) -> None:
        message = m.Parameters(server=server, slice=slice_, round=version)
        self.there[server].send(message, (_values(value),))

    def read(self, server: int) -> int:
        """Read what has arrived from a server. Returns how many slices are complete."""
        link = self.here[server].pollable
        assert link is not None
        taken = 0
        for message, payload in link.receive_ready():
            assert isinstance(message, m.Parameters)
            self.landing.take(link, message, payload)
            taken += 1
        return taken

    def read_all(self, server: int) -> None:
        while not self.read(server):
            pass

    def slice_of(self, number: int) -> set[float]:
        return set(self.values[number * LENGTH : (number + 1) * LENGTH].tolist())

    def close(self) -> None:
        for link in (*self.here, *self.there):
            link.close()
            link.dispose()


def _link_of(sock: socket.socket) -> Link:
    link = tcp_link(sock, "w0")
    link.agree(Digest.XXH3, MEMBER)
    return link


def _values(value: float) -> memoryview:
    return torch.full((LENGTH,), value).numpy().data.cast("B")


@pytest.mark.parametrize("whole", [False, True], ids=["slice", "all-slices"])
@pytest.mark.parametrize("version", [5, 6], ids=["ticket", "version"])
def test_a_late_slice_is_not_written_over_a_later_version(version: int, whole: bool) -> None:
    """s0 sends slice 0, and a part of it has arrived when the slice moves to s1, which sends a later
    version. `version`: without rounds the worker has a new ticket then; with rounds it may expect any
    version from 5 on."""
    worker = Worker()
    try:
        worker.landing.follow(BEFORE)
        worker.expect(5)
        worker.send(0, 0, 5, 5.0)
        while worker.slice_of(0) == {0.0}:
            assert not worker.read(0), "the slice must not be complete yet"
        worker.landing.follow(AFTER)
        worker.expect(version)
        if whole:
            both = torch.full((2 * LENGTH,), 6.0).numpy().data.cast("B")
            everything = m.Parameters(server=1, slice=m.EVERY_SLICE, round=6)
            worker.there[1].send(everything, (both,))
            worker.read_all(1)
        else:
            worker.send(1, 0, 6, 6.0)
            worker.read_all(1)
        assert worker.slice_of(0) == {6.0}
        worker.expect(7)
        worker.read_all(0)
        assert worker.slice_of(0) == {6.0}
    finally:
        worker.close()


def test_a_slice_that_arrives_in_pieces_is_received_in_its_place() -> None:
    worker = Worker()
    try:
        worker.landing.follow(BEFORE)
        worker.expect(5)
        worker.send(0, 0, 5, 5.0)
        worker.send(1, 1, 5, 4.0)
        worker.read_all(0)
        worker.read_all(1)
        assert (worker.slice_of(0), worker.slice_of(1)) == ({5.0}, {4.0})
        assert len(worker.events) == 2
    finally:
        worker.close()


def test_a_kept_slice_is_written_after_the_late_one_that_arrives() -> None:
    """The worker's machine may run on another thread while the link waits for the rest of a slice. The
    link goes on to receive into the place that it got, so nothing else may be written there yet."""
    worker = Worker()
    sock = worker.connect_again(0)
    try:
        worker.landing.follow(BEFORE)
        worker.expect(5)
        frame = b"".join(encode(m.Parameters(server=0, slice=0, round=5), (_values(5.0),)))
        link, came = worker.here[0], list[tuple[m.Message, Payload | None]]()
        reader = threading.Thread(target=lambda: came.append(link.receive()))
        reader.start()
        sock.sendall(frame[: len(frame) // 2])
        while float(worker.values[LENGTH // 2 - LENGTH // 64]) != 5.0:
            assert reader.is_alive()
        worker.landing.follow(AFTER)
        worker.landing.expect(fx.Expect(None, keep=6))
        worker.send(1, 0, 6, 6.0)
        worker.read_all(1)
        worker.expect(6)
        sock.sendall(frame[len(frame) // 2 :])
        reader.join()
        message, payload = came[0]
        assert isinstance(message, m.Parameters)
        worker.landing.take(link, message, payload)
        worker.landing.land_kept()
        assert worker.slice_of(0) == {6.0}
    finally:
        worker.close()


@pytest.mark.parametrize("lost", [True, False], ids=["lost", "moved"])
def test_a_sum_counts_though_its_slice_has_moved_but_not_if_its_server_is_lost(lost: bool) -> None:
    """s0 sends a sum before the fold. Slice 0 gets another primary before the sum is read."""
    worker = Worker()
    try:
        worker.landing.follow(BEFORE, (1, 1))
        worker.expect(5)
        early = m.Parameters(server=0, slice=0, round=5, routing=1, early=True)
        worker.there[0].send(early, (_values(5.0),))
        worker.landing.follow(AFTER, (2 if lost else 1, 1))
        worker.read_all(0)
        assert worker.slice_of(0) == ({0.0} if lost else {5.0})
        assert len(worker.events) == (0 if lost else 1)
    finally:
        worker.close()


def test_a_slice_that_never_came_completely_does_not_disturb_its_server() -> None:
    """The link to s0 breaks in the middle of slice 0. Over its successor slice 1 arrives, while slice 0
    comes from s1."""
    worker = Worker()
    try:
        worker.landing.follow((m.Route(0), m.Route(0)))
        worker.expect(5)
        worker.send(0, 0, 5, 5.0)
        while worker.slice_of(0) == {0.0}:
            assert not worker.read(0), "the slice must not be complete yet"
        worker.connect_again(0)
        worker.landing.follow((m.Route(1), m.Route(0)))
        worker.send(0, 1, 5, 4.0)
        while worker.slice_of(1) == {0.0}:
            assert not worker.read(0), "the slice must not be complete yet"
        worker.send(1, 0, 6, 6.0)
        worker.read_all(1)
        worker.read_all(0)
        assert (worker.slice_of(0), worker.slice_of(1)) == ({6.0}, {4.0})
    finally:
        worker.close()
