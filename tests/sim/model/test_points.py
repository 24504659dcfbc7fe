"""The cursor through leased chunks visits every point of a pass once, whatever the batch size."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from polyrhythm.core.worker.window import Window
from polyrhythm.sim.model.points import SimPoints
from polyrhythm.sim.model.statistics import ZERO, ChunkMemory, SimMemory
from polyrhythm.sim.worker.visits import SimVisits
from polyrhythm.wire.messages import Address, ChunkLease, ChunkSend, Leased
from tests.core.lead.data.plans import plan_of


@given(
    points=st.integers(1, 500),
    workers=st.integers(1, 5),
    epochs=st.integers(1, 3),
    batch=st.integers(1, 64),
)
def test_a_plan_is_visited_exactly(points: int, workers: int, epochs: int, batch: int) -> None:
    plan = plan_of(points, workers, 0, epochs)
    holders = [(worker, worker + 1) for worker in range(workers)]
    plan.share(holders)
    visited = committed = 0
    for holder in holders:
        cursor = SimPoints()
        cursor.take(plan.lease(holder))
        while True:
            expected = cursor.left(batch)
            count = cursor.visit(batch)
            assert count == expected <= batch
            if not count:
                break
            visited += count
            committed += plan.commit(holder, cursor.collect())
            plan.check()
    assert visited == committed == points * epochs
    assert plan.done


def test_a_batch_does_not_cross_into_the_next_pass() -> None:
    cursor = SimPoints()
    chunks = (ChunkLease(0, 0, 10, 0, 0),)
    cursor.take(Leased(points=10, seed=0, chunks=chunks, epochs=None))
    assert [cursor.visit(4) for _ in range(6)] == [4, 4, 2, 4, 4, 2]


def lease(*chunks: ChunkLease, incarnation: int = 1) -> Leased:
    return Leased(points=30, seed=0, chunks=chunks, epochs=1, incarnation=incarnation)


def test_a_new_lease_keeps_the_place_in_chunks_that_stay() -> None:
    cursor = SimPoints()
    chunks = (ChunkLease(0, 0, 10, 0, 0), ChunkLease(1, 10, 20, 0, 0))
    cursor.take(lease(*chunks))
    assert cursor.visit(14) == 14
    cursor.take(lease(*chunks))
    assert cursor.visit(20) == 6
    assert cursor.visit(20) == 0
    assert [at.cursor for at in cursor.collect()] == [0, 0]
    assert cursor.collect() == ()


def test_another_chunk_begins_where_its_lease_says() -> None:
    cursor = SimPoints()
    cursor.take(lease(ChunkLease(0, 0, 10, 0, 0)))
    assert cursor.visit(20) == 10
    cursor.take(lease(ChunkLease(2, 20, 30, 0, 7)))
    assert cursor.visit(20) == 3


def test_a_chunk_that_comes_back_begins_where_this_worker_had_been() -> None:
    cursor = SimPoints()
    chunk = ChunkLease(0, 0, 10, 0, 0)
    cursor.take(lease(chunk))
    assert cursor.visit(4) == 4
    cursor.take(lease())
    assert cursor.visit(4) == 0
    cursor.take(lease(chunk))
    assert cursor.visit(20) == 6


def test_who_was_evicted_has_been_nowhere() -> None:
    cursor = SimPoints()
    chunk = ChunkLease(0, 0, 10, 0, 0)
    cursor.take(lease(chunk))
    assert cursor.visit(4) == 4
    cursor.take(lease(chunk, incarnation=2))
    assert cursor.visit(20) == 10


def test_a_chunk_that_was_given_up_is_visited_from_the_position_in_the_lease() -> None:
    """Kind statistics. The worker has made a pass over the chunk and has given it up. The chunk comes
    back, but the worker is ordered to send it on before it takes a lease with it. The move is given
    up then."""
    window = Window()
    received = {0: ChunkMemory({}, ZERO)}
    visits = SimVisits(window, lambda number: received.pop(number, None))
    visits.memory = SimMemory()
    chunk = ChunkLease(0, 0, 10, 0, 0)
    visits.lease = lease(chunk)
    visits.take_lease(visits.lease)
    visits.visit(10)
    visits.collect()
    window.contribute()
    visits.take_lease(lease())
    on = ChunkSend(1, 0, 0, 10, 1, 2, "worker-1", Address("", 0, "", ""))
    visits.take_lease(structs.replace(lease(), sends=(on,)))
    assert not received
    visits.take_lease(lease(chunk))
    visits.visit(20)
    assert window.points == 10
