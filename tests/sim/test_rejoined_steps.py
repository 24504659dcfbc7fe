"""The steps of an evicted incarnation of a simulated worker are not contributed by the next one."""

from polyrhythm.sim.worker.visits import SimVisits
from polyrhythm.wire.messages import ChunkLease, Leased


def lease(incarnation: int) -> Leased:
    chunks = (ChunkLease(0, 0, 100, 0, 0),)
    return Leased(incarnation=incarnation, points=100, seed=0, chunks=chunks, number=1)


def test_a_worker_that_rejoins_has_nothing_to_contribute() -> None:
    visits = SimVisits()
    visits.lease = lease(1)
    visits.take_lease(visits.lease)
    visits.visit(30, 3)
    assert visits.pending
    visits.lease = lease(2)
    visits.take_lease(visits.lease)
    assert not visits.pending
    visits.visit(10, 1)
    points, steps, (progress,) = visits.collect()
    assert (points, steps, progress.cursor) == (10, 1, 10)
