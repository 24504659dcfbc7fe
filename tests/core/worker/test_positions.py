"""Where a worker continues in a chunk of its lease (kind statistics)."""

from polyrhythm.core.worker.remembered import position
from polyrhythm.wire.messages import ChunkLease


def at(passes: int, cursor: int) -> ChunkLease:
    return ChunkLease(0, 0, 100, passes, cursor)


def test_a_worker_that_knows_the_points_continues_where_it_has_been() -> None:
    assert position(at(2, 30), (2, 60)) == (2, 60)
    assert position(at(2, 30), (3, 0)) == (3, 0)
    assert position(at(3, 0), (2, 60)) == (3, 0)


def test_a_worker_that_does_not_know_the_points_begins_where_the_lease_says() -> None:
    assert position(at(4, 0), None) == (4, 0)
