"""FSP §4.3: "the target always trains newly migrated data with high priority and then continues over
locally native data", and such data "are removed from the priority queue and regarded as native when
their lost passes have already been compensated". So a worker visits a chunk that has moved to it
first, until the chunk has had as many passes as the worker's own chunks."""

import pytest

from polyrhythm.learn.points import Points
from polyrhythm.sim.model.points import SimPoints
from polyrhythm.wire.messages import ChunkLease, Leased

MOVED = 3


def lease(number: int, *moved: ChunkLease) -> Leased:
    """Three chunks of 10 points after 4 passes. The first chunk is half visited in the fifth
    pass."""
    native = [ChunkLease(n, 10 * n, 10 * n + 10, 4, 5 if n == 0 else 0) for n in range(3)]
    return Leased(points=40, seed=0, chunks=(*native, *moved), number=number)


@pytest.mark.parametrize("passes", [1, 3])
def test_a_moved_chunk_comes_first_until_its_missing_passes_are_made_up(passes: int) -> None:
    points = Points(lease(1))
    points.take(lease(2, ChunkLease(MOVED, 30, 40, passes, 0)))
    for done in range(passes + 1, 5):
        _, progress = points.next(10)
        assert [(step.chunk, step.passes) for step in progress] == [(MOVED, done)]
    visited = set()
    # the moved chunk has made up its passes, and is visited like any other chunk
    for _ in range(4):
        visited |= {step.chunk for step in points.next(10)[1]}
    assert visited == {0, 1, 2, MOVED}


@pytest.mark.parametrize("passes", [1, 3])
def test_a_simulated_worker_visits_a_moved_chunk_in_the_same_order(passes: int) -> None:
    points = SimPoints()
    points.take(lease(1))
    points.take(lease(2, ChunkLease(MOVED, 30, 40, passes, 0)))
    for done in range(passes + 1, 5):
        assert points.visit(10) == 10
        assert [(step.chunk, step.passes) for step in points.collect()] == [(MOVED, done)]
    visited = set()
    for _ in range(4):
        points.visit(10)
        visited |= {step.chunk for step in points.collect()}
    assert visited == {0, 1, 2, MOVED}
