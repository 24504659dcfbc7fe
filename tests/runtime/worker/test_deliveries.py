"""Points travel between two workers over real links: they arrive whole, and a fault is reported."""

import queue
import threading
from collections.abc import Iterator

import pytest

from polyrhythm.core.events import PointsDelivered
from polyrhythm.core.machine import Event
from polyrhythm.learn.migration.layout import Packed, pack
from polyrhythm.learn.migration.received import ReceivedPoints
from polyrhythm.runtime.net.dial import SocketDialer
from polyrhythm.runtime.options import NodeOptions
from polyrhythm.runtime.worker import deliveries
from polyrhythm.runtime.worker.deliveries import PointsCarrier
from polyrhythm.wire.messages import Address, ChunkSend, JobSpec, Leased
from polyrhythm.wire.proof import Secret

JOB = JobSpec(job="j", sync="fsp", migrate="full")
PRIVATE = JobSpec(job="j", sync="fsp", data_private=True)
SECRET = Secret("a secret of enough characters")
WAIT_S = 60.0


class End:
    """One worker: its carrier, the points that it has received, and its events."""

    def __init__(self, name: str, link: str, job: JobSpec = JOB, *, shares: bool = False) -> None:
        self.events: queue.Queue[Event] = queue.Queue()
        self.woken = threading.Event()
        self.received = ReceivedPoints()
        self.carrier = PointsCarrier(
            *(name, job, "127.0.0.1", SocketDialer(link)),
            NodeOptions(secret=SECRET, share_data=shares),
            post=self.events.put,
            wake=self.woken.set,
        )
        self.carrier.read, self.carrier.add = self.read, self.received.add

    def read(self, send: ChunkSend, offset: int, count: int) -> list[tuple[int, Packed]]:
        """Point n of a chunk is a text of 1,000 characters that begins with n."""
        first = send.first + offset
        return [(count, pack([f"{n:<1000}" for n in range(first, first + count)]))]

    def send(self, *sends: ChunkSend) -> None:
        """Send these chunks to their end, while the user's loop waits."""
        self.carrier.take(Leased(points=10_000, seed=0, chunks=(), sends=sends))
        while self.carrier._queue and self.events.empty():
            if not self.carrier.while_waiting():
                self.woken.wait(0.05)

    def event(self) -> PointsDelivered:
        found = self.events.get(timeout=WAIT_S)
        assert isinstance(found, PointsDelivered)
        return found


@pytest.fixture(params=["auto", "tcp"])
def ends(request: pytest.FixtureRequest) -> Iterator[tuple[End, End]]:
    both = End("worker-0", request.param), End("worker-1", request.param)
    yield both
    for end in both:
        end.carrier.close()


def to(target: End, number: int, chunk: int, first: int, last: int) -> ChunkSend:
    return ChunkSend(number, chunk, first, last, 1, 7, "worker-1", target.carrier.address)


def test_chunks_arrive_whole_in_several_parts(ends: tuple[End, End]) -> None:
    source, target = ends
    sends = [to(target, 1, 5, 0, 1000), to(target, 2, 6, 1000, 1003)]
    source.send(*sends)
    found = {event.chunk: event for event in (target.event(), target.event())}
    assert {chunk: event.number for chunk, event in found.items()} == {5: 1, 6: 2}
    assert found[5].nbytes == 1_000_000 and found[5].fault is None
    for send in sends:
        part, row = target.received.at(send.chunk, 2)
        assert bytes(part.columns[0][row]).split() == [str(send.first + 2).encode()]
    assert source.events.empty()


@pytest.mark.parametrize("shares", [False, True])
def test_points_of_private_data_leave_a_worker_only_if_it_shares_them(shares: bool) -> None:
    """The lead has ordered the worker to send these points."""
    source, target = (End(f"worker-{n}", "auto", PRIVATE, shares=shares) for n in (0, 1))
    read: list[ChunkSend] = []
    read_points = source.read
    source.carrier.read = lambda send, *part: read.append(send) or read_points(send, *part)
    source.send(to(target, 1, 5, 0, 100))
    if shares:
        assert target.event().fault is None and read
    else:
        fault = source.event().fault
        assert fault is not None and fault.code == "move-not-shared"
        assert not read and not source.carrier._peers, "no link, and no point is even read"
    for end in (source, target):
        end.carrier.close()


def test_a_chunk_is_sent_once_although_several_leases_name_it(ends: tuple[End, End]) -> None:
    source, target = ends
    send = to(target, 1, 5, 0, 10)
    source.send(send)
    target.event()
    source.send(send, to(target, 2, 6, 10, 20))
    assert target.event().number == 2


def test_a_target_without_memory_says_so(
    ends: tuple[End, End], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = ends
    monkeypatch.setattr(deliveries, "available_nbytes", lambda: 1000)
    source.send(to(target, 1, 5, 0, 100))
    fault = target.event().fault
    assert fault is not None and (fault.code, fault.fields) == (
        "move-no-memory",
        {"nbytes": 100_000},
    )
    assert 5 not in target.received


def test_points_that_cannot_be_read_are_reported(ends: tuple[End, End]) -> None:
    source, target = ends

    def unreadable(send: ChunkSend, offset: int, count: int) -> list[tuple[int, Packed]]:
        raise KeyError("no such file")

    source.carrier.read = unreadable
    source.send(to(target, 1, 5, 0, 100))
    fault = source.event().fault
    assert fault is not None and fault.code == "move-not-sendable"
    assert "no such file" in str(fault.fields["detail"])


def test_a_target_that_cannot_be_reached_is_reported(ends: tuple[End, End]) -> None:
    source, _ = ends
    nobody = Address("127.0.0.1", 1, "", "")
    source.send(ChunkSend(1, 5, 0, 100, 1, 7, "worker-1", nobody))
    fault = source.event().fault
    assert fault is not None and fault.code == "move-unreachable"


def test_a_link_that_has_ended_takes_no_further_delivery() -> None:
    """If a link that has ended took another delivery, no worker would report that the delivery
    failed, and its chunk would stay locked."""
    first, second = (
        ChunkSend(n, n, n, n + 1, 1, 7, "worker-1", Address("127.0.0.1", 1, "", "")) for n in (1, 2)
    )
    peer = deliveries._Peer()
    assert peer.takes(first)
    assert peer.end() == [first]
    assert not peer.takes(second)
    assert peer.end() == [first]


def test_the_end_of_the_link_is_reported_for_every_chunk_that_was_sent(
    ends: tuple[End, End],
) -> None:
    source, target = ends
    source.send(to(target, 1, 5, 0, 10), to(target, 2, 6, 10, 20))
    target.event()
    target.event()
    target.carrier.close()
    numbers = set()
    # the source reports both chunks, and the lead ignores the report about a chunk that has arrived
    while numbers != {1, 2}:
        event = source.event()
        assert event.fault is not None and event.fault.code == "move-unreachable"
        numbers.add(event.number)
