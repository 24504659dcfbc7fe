"""A chunk moves to another worker with its points and their memory. Its points are never in two
rows, and they are in the sum again after the new worker's next contribution."""

from collections.abc import Iterator
from queue import Queue

import msgspec
import numpy as np
import pytest
from scipy import sparse

from polyrhythm.core.events import PointsDelivered
from polyrhythm.core.machine import Event
from polyrhythm.learn.pointwise.algorithm import Algorithm, Batch
from polyrhythm.learn.pointwise.chunks import COUNTS, Chunks, batch_of, state_of
from polyrhythm.learn.pointwise.kmeans import KMeansAlgorithm
from polyrhythm.learn.pointwise.layout import Arrays
from polyrhythm.learn.pointwise.source import ArraySource
from polyrhythm.runtime.net.dial import SocketDialer
from polyrhythm.runtime.options import NodeOptions
from polyrhythm.runtime.worker.deliveries import PointsCarrier
from polyrhythm.wire.frames import MEMBER, Limits
from polyrhythm.wire.messages import ChunkLease, ChunkProgress, ChunkSend, JobSpec, Leased
from tests.learn.test_pointwise_chunks import COUNT, FIRST, PARAMETER, SECOND, both, collect

JOB = JobSpec(job="j", sync="fsp", migrate="full", kind="statistics")
LATER: Arrays = {"factor": np.asarray(3.0)}


class Unreadable:
    """A source whose points this worker cannot read."""

    copies = False

    def __len__(self) -> int:
        return COUNT

    def groups(self) -> list[int]:
        return [0]

    def read(self, first: int, last: int) -> Batch:
        raise AssertionError("the points come from the other worker")


class Pair:
    """Two workers. The first worker holds both chunks, and sends the second chunk to the second
    worker."""

    def __init__(
        self, algorithm: Algorithm, target: Algorithm | None = None, statistics: int = 1
    ) -> None:
        """`target`: the algorithm object of the second worker, if the workers do not share one.
        `statistics`: how many numbers the statistics have."""
        self.events: Queue[Event] = Queue()
        self.carriers = [
            PointsCarrier(
                *(f"worker-{n}", JOB, "127.0.0.1", SocketDialer("auto"), NodeOptions()),
                post=self.events.put,
                wake=lambda: None,
            )
            for n in range(2)
        ]
        own = ArraySource(Batch(np.arange(COUNT, dtype=float).reshape(-1, 1)))
        self.source = Chunks(algorithm, own, statistics, 10, self.carriers[0])
        self.target = Chunks(target or algorithm, Unreadable(), statistics, 10, self.carriers[1])
        self.source.take(self.lease(1, FIRST, SECOND))
        self.target.take(self.lease(1))

    def lease(
        self,
        number: int,
        *chunks: ChunkLease,
        sends: tuple[ChunkSend, ...] = (),
        copies: tuple[int, ...] = (),
    ) -> Leased:
        return Leased(
            points=COUNT,
            seed=0,
            chunks=chunks,
            number=number,
            incarnation=1,
            sends=sends,
            copies=copies,
            arriving=(1,) if not chunks and not copies else (),
            delivery=1,
        )

    def deliver(self) -> None:
        """Lock the second chunk at its holder, and send it."""
        address = self.carriers[1].address
        send = ChunkSend(1, 1, 25, 50, 1, 2, "worker-1", address)
        self.source.take(self.lease(2, FIRST, sends=(send,)))
        while self.events.empty():
            self.carriers[0].while_waiting()
        event = self.events.get()
        assert isinstance(event, PointsDelivered) and event.fault is None

    def send_back(self) -> None:
        """Lock the second chunk at the second worker, and send it back to the first one, which has
        given it up."""
        back = ChunkSend(2, 1, 25, 50, 0, 1, "worker-0", self.carriers[0].address)
        sends = self.lease(3, sends=(back,))
        self.target.take(msgspec.structs.replace(sends, arriving=(), delivery=2))
        self.source.take(self.lease(3, FIRST))
        while self.events.empty():
            self.carriers[1].while_waiting()
        event = self.events.get()
        assert isinstance(event, PointsDelivered) and event.fault is None, event

    def close(self) -> None:
        for carrier in self.carriers:
            carrier.close()


def visit_all(chunks: Chunks, parameter: Arrays) -> None:
    """Make one pass."""
    before = chunks.passes
    while chunks.passes == before:
        chunks.visit(10, parameter)


@pytest.fixture
def pair(algorithm: Algorithm) -> Iterator[Pair]:
    made = Pair(algorithm)
    yield made
    made.close()


@both
def test_a_chunk_moves_with_what_its_points_remember(pair: Pair, algorithm: Algorithm) -> None:
    visit_all(pair.source, PARAMETER)
    whole = collect(pair.source)
    assert whole[0] == COUNT
    pair.deliver()
    visit_all(pair.source, PARAMETER)
    assert collect(pair.source)[0] == 0, "the chunk in flight stays in the row of its holder"
    pair.source.take(pair.lease(3, FIRST))
    given = collect(pair.source)
    assert given[0] == -25, "now the holder has subtracted it"
    moved = ChunkLease(1, 25, 50, 1, 0)
    pair.target.take(pair.lease(2, moved))
    assert collect(pair.target) == [-number for number in given], "the new holder adds it at once"
    visit_all(pair.target, LATER)
    expected = 2 * sum(range(25, 50))
    assert collect(pair.target) == [0, 0, 0, expected], "and contributes differences from then on"


@both
def test_a_chunk_whose_move_was_given_up_goes_on_with_what_it_remembers(
    pair: Pair, algorithm: Algorithm
) -> None:
    visit_all(pair.source, PARAMETER)
    collect(pair.source)
    pair.deliver()
    pair.source.take(pair.lease(3, FIRST, SECOND))
    assert not pair.source.remembered.pending
    visit_all(pair.source, LATER)
    assert collect(pair.source) == [0, 0, 0, 2 * sum(range(COUNT))]


@both
def test_a_worker_that_waits_keeps_its_points_in_its_row_and_visits_none(
    pair: Pair, algorithm: Algorithm
) -> None:
    visit_all(pair.source, PARAMETER)
    collect(pair.source)
    pair.source.take(pair.lease(2, copies=(0, 1)))
    assert not pair.source.remembered.pending and pair.source.everything == 0
    pair.source.take(pair.lease(3, FIRST, SECOND))
    visit_all(pair.source, LATER)
    assert collect(pair.source) == [0, 0, 0, 2 * sum(range(COUNT))], "nothing was forgotten"


@both
def test_a_worker_that_waits_keeps_what_it_has_received(pair: Pair, algorithm: Algorithm) -> None:
    visit_all(pair.source, PARAMETER)
    pair.deliver()
    pair.target.take(pair.lease(2, copies=(1,)))
    assert not pair.target.remembered.pending
    pair.target.take(pair.lease(3, ChunkLease(1, 25, 50, 1, 0)))
    assert collect(pair.target) == [25, 0, 25, sum(range(25, 50))]


@both
def test_a_chunk_moves_on_although_its_holder_never_took_a_lease_with_it(
    pair: Pair, algorithm: Algorithm
) -> None:
    """The chunk has arrived. The worker's next lease already orders it to send the chunk on, so no
    lease that contains the chunk took effect."""
    visit_all(pair.source, PARAMETER)
    pair.deliver()
    pair.send_back()
    assert collect(pair.target) == [25, 0, 25, sum(range(25, 50))], "it is in the row of its holder"
    collect(pair.source)
    pair.source.take(pair.lease(4, FIRST, SECOND))
    assert collect(pair.source) == [25, 0, 25, sum(range(25, 50))], "with what its points remember"


@both
def test_a_chunk_that_was_given_up_is_visited_from_the_position_in_the_lease(
    pair: Pair, algorithm: Algorithm
) -> None:
    """The worker has made a pass over the chunk and has given it up. The chunk comes back, but the
    worker is ordered to send it on before it takes a lease with it. The move is given up then."""
    visit_all(pair.source, PARAMETER)
    pair.deliver()
    pair.send_back()
    on = ChunkSend(3, 1, 25, 50, 1, 2, "worker-1", pair.carriers[1].address)
    pair.source.take(pair.lease(4, FIRST, sends=(on,)))
    pair.source.take(pair.lease(5, SECOND))
    visited, progress = pair.source.visit(1000, PARAMETER)
    assert visited == 25 and progress == (ChunkProgress(1, 1, 0),), "no pass is left out"


def test_a_chunk_that_is_too_large_to_be_sent_is_called_a_chunk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits = Limits(head_nbytes=MEMBER.head_nbytes, payload_nbytes=100)
    monkeypatch.setattr("polyrhythm.runtime.worker.deliveries.MEMBER", limits)
    kmeans = KMeansAlgorithm(2)
    pair = Pair(kmeans, statistics=kmeans.layout(centres(0.0, 49.0)).size)
    address = pair.carriers[1].address
    send = ChunkSend(1, 1, 25, 50, 1, 2, "worker-1", address)
    pair.source.take(pair.lease(2, FIRST, sends=(send,)))
    while pair.events.empty():
        pair.carriers[0].while_waiting()
    event = pair.events.get()
    assert isinstance(event, PointsDelivered) and event.fault is not None
    assert str(event.fault.fields["detail"]).startswith("the chunk has ")
    pair.close()


def centres(*values: float) -> Arrays:
    centers = np.array(values).reshape(-1, 1)
    return {"centers": centers, "variance": np.asarray(1.0), "offset": np.zeros(1)}


def test_points_of_kmeans_change_their_cluster_at_a_worker_whose_centres_have_moved_less() -> None:
    """The centres of the sending worker have moved far, so the bounds of its points are large. A
    visit in which many points change their cluster sets no bounds; the last visit sets them."""
    kmeans = KMeansAlgorithm(2)
    first = centres(0.0, 49.0)
    pair = Pair(kmeans, KMeansAlgorithm(2), kmeans.layout(first).size)
    for parameter in (first, first, centres(1e4, 2e4), first, first):
        visit_all(pair.source, parameter)
    pair.deliver()
    pair.target.take(pair.lease(2, ChunkLease(1, 25, 50, 5, 0)))
    collect(pair.target)
    visit_all(pair.target, first)
    assert not any(collect(pair.target)), "all its points are in the cluster of 49"
    visit_all(pair.target, centres(49.0, 0.0))
    moved = collect(pair.target)[COUNTS:]
    assert moved == list(kmeans.layout(first).flat(_moved_points()))
    pair.close()


def _moved_points() -> Arrays:
    """How the statistics change when the points 25 to 49 go from the second cluster to the first."""
    points = np.arange(25.0, 50.0)
    change = np.array([1.0, -1.0])
    return {
        "sum": (change * points.sum()).reshape(-1, 1),
        "count": change * len(points),
        "square": change * (points**2).sum(),
        "points": change * len(points),
    }


def test_points_of_every_kind_come_back_as_they_were() -> None:
    dense = Batch(np.eye(3), np.arange(3), np.ones(3))
    again = batch_of(state_of(dense))
    assert np.array_equal(again.x, dense.x) and np.array_equal(again.y, dense.y)  # type: ignore[arg-type]
    assert again.weight is not None
    thin = batch_of(state_of(Batch(sparse.csr_matrix(np.eye(4)[:2]))))
    assert thin.x.shape == (2, 4) and np.array_equal(thin.x.toarray(), np.eye(4)[:2])
    assert thin.y is None and thin.weight is None
