"""The steps of an evicted incarnation of a simulated worker are not contributed by the next one."""

from polyrhythm.core.worker.window import Window
from polyrhythm.sim.worker.visits import SimVisits
from polyrhythm.wire.messages import ChunkLease, Leased


def lease(incarnation: int) -> Leased:
    chunks = (ChunkLease(0, 0, 100, 0, 0),)
    return Leased(incarnation=incarnation, points=100, seed=0, chunks=chunks, number=1)


def test_a_worker_that_rejoins_has_nothing_to_contribute() -> None:
    window = Window()
    visits = SimVisits(window, lambda chunk: None)
    visits.lease = lease(1)
    visits.take_lease(visits.lease)
    visits.visit(30)
    window.end_steps(3)
    assert visits.pending
    visits.lease = lease(2)
    visits.take_lease(visits.lease)
    assert not visits.pending
    visits.visit(10)
    window.end_steps()
    (progress,) = visits.collect()
    report = window.contribute()
    assert (report.weight, report.steps, progress.cursor) == (10.0, 1, 10)
