"""The points that a worker visits: it visits each point once per pass, in a new order in every
pass."""

import numpy as np
import pytest
from msgspec.structs import replace

from polyrhythm.learn.points import Points
from polyrhythm.wire.messages import ChunkLease, Leased
from tests.core.lead.data.plans import plan_of


def lease_of(points: int, workers: int = 1, worker: int = 0, *, seed: int = 3, epochs=None):
    plan = plan_of(points, workers, seed, epochs)
    plan.share([(number, 1) for number in range(workers)])
    return plan.lease((worker, 1))


def a_pass(points: Points, count: int, batch: int) -> list[int]:
    found: list[int] = []
    while len(found) < count:
        indices, progress = points.next(batch)
        assert 0 < len(indices) <= batch and progress
        found += indices.tolist()
    return found


@pytest.mark.parametrize("batch", [1, 7, 32, 100, 1_000])
@pytest.mark.parametrize("count", [1, 5, 100, 333])
def test_a_pass_visits_every_point_once(count: int, batch: int) -> None:
    points = Points(lease_of(count))
    for _ in range(3):
        assert sorted(a_pass(points, count, batch)) == list(range(count))


def test_a_batch_never_spans_two_passes() -> None:
    points = Points(lease_of(100))
    sizes = [len(points.next(32)[0]) for _ in range(8)]
    assert sizes == [32, 32, 32, 4] * 2


def test_a_batch_tells_how_many_points_of_each_chunk_it_has() -> None:
    points = Points(lease := lease_of(100))
    chunk_of = {
        int(point): each.chunk
        for each in lease.chunks
        for point in points.of(each.first, each.last)
    }
    for _ in range(12):
        indices, progress = points.next(23)
        assert points.parts is not None
        told = [chunk for chunk, count in points.parts for _ in range(count)]
        assert told == [chunk_of[index] for index in indices.tolist()]
        assert [chunk for chunk, _ in points.parts] == [step.chunk for step in progress]
    points.begin(1, ranks=lambda number: np.arange(100))
    points.next(23)
    assert points.parts is None, "the points of a chunk are not neighbours"


def test_a_loop_over_batches_that_begins_within_a_pass_may_have_another_order() -> None:
    points = Points(lease_of(100))
    first = points.next(30)[0].tolist()
    points.begin(1, ranks=lambda number: np.arange(100))
    rest = sorted({*range(100)} - {*first})
    assert sorted(a_pass(points, 70, 16)) == rest
    assert a_pass(points, 100, 16) == list(range(100))
    points.begin(1)
    assert sorted(a_pass(points, 100, 16)) == list(range(100))


def test_the_order_is_new_every_pass_and_the_same_for_the_same_seed() -> None:
    points, again = Points(lease_of(200)), Points(lease_of(200))
    first, second = a_pass(points, 200, 16), a_pass(points, 200, 16)
    assert first != second
    assert first != sorted(first)
    assert [a_pass(again, 200, 16), a_pass(again, 200, 16)] == [first, second]
    assert a_pass(Points(lease_of(200, seed=4)), 200, 16) != first


def test_the_points_of_a_chunk_have_another_order_in_every_pass() -> None:
    lease = lease_of(200)
    points = Points(replace(lease, chunks=(ChunkLease(0, 0, 200, 0, 0),)))
    first, second = a_pass(points, 200, 16), a_pass(points, 200, 16)
    assert sorted(first) == sorted(second)
    assert first != second


def test_workers_share_the_points_between_them() -> None:
    found: list[int] = []
    for worker in range(3):
        points = Points(lease_of(500, workers=3, worker=worker))
        mine = points.next(10_000)[0].tolist()
        assert 100 < len(mine) < 250
        found += mine
    assert sorted(found) == list(range(500))


def test_a_chunk_of_sorted_data_is_a_mixture() -> None:
    """Points are assigned to chunks by a permutation, so no chunk is a run of neighbouring
    points."""
    lease = lease_of(1_000, workers=2)
    mine = Points(lease).next(1_000)[0]
    assert abs(np.mean(mine) - 500) < 60


def test_no_points_are_left_after_the_last_epoch() -> None:
    points = Points(lease_of(50, epochs=2))
    assert len(a_pass(points, 100, 8)) == 100
    indices, progress = points.next(8)
    assert len(indices) == 0 and progress == ()


def test_an_empty_lease_has_no_points() -> None:
    points = Points(Leased(points=50, seed=0, chunks=()))
    assert len(points.next(8)[0]) == 0


def test_the_next_holder_of_a_chunk_continues_where_the_committed_progress_ends() -> None:
    """The next worker visits exactly those points of the chunk that the previous worker did not
    commit."""
    lease = lease_of(120)
    points = Points(lease)
    visited, at = [], {}
    for _ in range(5):
        indices, progress = points.next(10)
        visited += indices.tolist()
        at.update({step.chunk: step for step in progress})
    chunks = tuple(
        ChunkLease(
            c.chunk,
            c.first,
            c.last,
            at[c.chunk].passes if c.chunk in at else 0,
            at[c.chunk].cursor if c.chunk in at else 0,
        )
        for c in lease.chunks
    )
    heir = Points(Leased(points=120, seed=lease.seed, chunks=chunks))
    rest = a_pass(heir, 70, 10)
    assert sorted(visited + rest) == list(range(120))


def test_a_new_lease_keeps_the_position_in_chunks_that_the_worker_keeps() -> None:
    lease = lease_of(160)
    points = Points(lease)
    indices, begun_with = points.next(25)
    visited = indices.tolist()
    begun = {step.chunk for step in begun_with}
    kept = [chunk for chunk in lease.chunks if chunk.chunk in begun]
    others = [chunk for chunk in lease.chunks if chunk.chunk not in begun]
    fewer = replace(lease, chunks=(*kept, *others[: len(others) // 2]), number=2)
    assert not points.take(fewer), "the same incarnation"
    held = set(Points(fewer).next(160)[0].tolist())
    rest = points.next(160)[0].tolist()
    assert not set(rest) & set(visited), "no point twice in a pass"
    assert set(rest) == held - set(visited)


@pytest.mark.parametrize("batch", [1, 7, 32, 50])
def test_points_that_were_put_back_are_visited_again(batch: int) -> None:
    points, straight = Points(lease_of(100)), Points(lease_of(100))
    found: list[int] = []
    while len(found) < 200:
        left_out, _ = points.next(batch)
        points.put_back()
        indices, progress = points.next(batch)
        assert indices.tolist() == left_out.tolist()
        assert straight.next(batch)[1] == progress
        found += indices.tolist()
    assert sorted(found) == sorted([*range(100)] * 2)
    points.keep(1)
    points.put_back()
    points.put_back()
    assert points.next(batch)[0].tolist() == indices.tolist()


def test_points_that_were_put_back_are_visited_again_under_a_new_lease() -> None:
    lease = lease_of(100)
    points = Points(lease)
    left_out, _ = points.next(32)
    points.put_back()
    assert not points.take(replace(lease, number=2)), "the same incarnation"
    assert points.next(32)[0].tolist() == left_out.tolist()


def test_an_evicted_worker_visits_uncounted_points_again() -> None:
    """The lease of the worker's new incarnation says how much of each chunk was counted."""
    lease = lease_of(100)
    points = Points(lease)
    visited = points.next(32)[0].tolist()
    assert points.take(replace(lease, incarnation=lease.incarnation + 1))
    assert points.next(32)[0].tolist() == visited


def test_the_order_of_chunks_does_not_depend_on_when_batches_are_put_back() -> None:
    """The order of the chunks is computed once per pass, and again when batches are put back."""
    expected = a_pass(Points(lease_of(300)), 300, 7)
    points, found = Points(lease_of(300)), []
    while len(found) < 300:
        points.next(7)
        points.next(5)
        points.put_back(2)
        found += points.next(7)[0].tolist()
        points.keep(0)
    assert found == expected


@pytest.mark.parametrize("seed", [3, 2**32 - 1, 2**32 + 3])
def test_the_order_of_a_chunk_is_the_one_that_its_seed_has_always_given(seed: int) -> None:
    """A job may resume in the middle of a chunk from a checkpoint of an earlier release, so the
    order must not change between releases."""
    lease = replace(lease_of(50, seed=seed), chunks=(ChunkLease(4, 10, 40, 6, 0),))
    dealt = np.random.default_rng(seed).permutation(50)[10:40]
    expected = np.random.default_rng((seed, 6, 2, 4)).permutation(dealt)
    assert Points(lease).next(30)[0].tolist() == expected.tolist()
