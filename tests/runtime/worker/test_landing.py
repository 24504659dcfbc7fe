"""Where the slices land that a worker receives, while slices get other primaries."""

import pytest
import torch

from polyrhythm.core import effects as fx
from polyrhythm.core.machine import Event
from polyrhythm.core.placement.slices import lay_out
from polyrhythm.io.link import Link
from polyrhythm.io.tcp import dial_tcp, listen_tcp, tcp_link
from polyrhythm.runtime.worker.landing import Landing
from polyrhythm.tensors.flat import FlatModel
from polyrhythm.wire import messages as m
from polyrhythm.wire.digests import Digest
from polyrhythm.wire.frames import MEMBER

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
            with listen_tcp("127.0.0.1", 0) as listener:
                host, port = listener.getsockname()
                here = dial_tcp(host, port, f"s{server}")
                there = tcp_link(listener.accept()[0], "w0")
            for link in (here, there):
                link.agree(Digest.XXH3, MEMBER)
            here.land_with(self.landing.place_of)
            self.here.append(here)
            self.there.append(there)

    def _divert(self, server: int) -> None:
        link = self.here[server].pollable
        assert link is not None
        link.divert()

    def expect(self, version: int) -> None:
        self.landing.expect(fx.Expect(version))

    def send(self, server: int, slice_: int, version: int, value: float) -> None:
        data = torch.full((LENGTH,), value).numpy().data.cast("B")
        message = m.Parameters(server=server, slice=slice_, round=version)
        self.there[server].send(message, (data,))

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
