"""No batch is smaller than the minimum, and every pass visits each point once, in any order of
events."""

from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyrhythm.core.batches import least_of, steps_of, too_few, wanted
from polyrhythm.errors import UsageError
from polyrhythm.learn.points import Points
from polyrhythm.sim.model.points import SimPoints
from tests.core.lead.data.plans import plan_of


@given(
    points=st.integers(1, 400),
    workers=st.integers(1, 5),
    least=st.integers(1, 20),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=100, deadline=None)
def test_no_batch_is_smaller_than_the_minimum(
    points: int, workers: int, least: int, seed: int
) -> None:
    """Workers take batches of any size in any order, return some, and leave. Other workers get the
    chunks of those that left."""
    random, epochs = Random(seed), 2
    plan = plan_of(points, workers, 3, epochs, least)
    members = [(worker, 1) for worker in range(workers)]
    plan.share(members)
    cursors = {member: Points(plan.lease(member), least) for member in members}
    visits: Counter[int] = Counter()
    while not plan.done:
        member = random.choice(members)
        if len(members) > 1 and random.random() < 0.03:
            members.remove(member)
            plan.release([member])
            plan.share(members)
            continue
        cursor = cursors[member]
        cursor.take(plan.lease(member))
        count = random.randint(1, 40)
        batch, progress = cursor.next(count)
        if len(batch) and random.random() < 0.2:
            cursor.put_back()
            continue
        assert not len(batch) or len(batch) >= min(least, points)
        assert len(batch) < max(count, least) + least
        assert plan.commit(member, progress) == len(batch)
        plan.check()
        visits.update(batch.tolist())
    assert visits == Counter(dict.fromkeys(range(points), epochs))


@given(
    points=st.integers(1, 300),
    workers=st.integers(1, 4),
    least=st.integers(1, 12),
    counts=st.lists(st.integers(12, 50), min_size=1, max_size=40),
)
@settings(deadline=None)
def test_no_batch_of_a_simulated_worker_is_smaller_than_the_minimum(
    points: int, workers: int, least: int, counts: list[int]
) -> None:
    """Only sizes are compared, because the simulator does not shuffle chunks."""
    plan = plan_of(points, workers, 0, 2, least)
    plan.share([(worker, 1) for worker in range(workers)])
    lease = plan.lease((0, 1))
    simulated = SimPoints(least)
    simulated.take(lease)
    left = 2 * sum(chunk.last - chunk.first for chunk in lease.chunks)
    for count in counts:
        expected = simulated.left(count)
        batch = simulated.visit(count)
        left -= batch
        assert batch == expected
        assert batch >= min(least, points) or not left + batch
        assert batch < count + least
    while batch := simulated.visit(20):
        assert batch >= min(least, points)
        left -= batch
    assert left == 0


def test_runtime_and_simulator_cut_a_chunk_into_the_same_batches() -> None:
    plan = plan_of(16 * 33, 1, 0, 1, 2)
    plan.share([(0, 1)])
    lease = plan.lease((0, 1))
    real, simulated = Points(lease, 2), SimPoints(2)
    simulated.take(lease)
    sizes = []
    while count := simulated.visit(32):
        sizes.append(count)
        assert len(real.next(32)[0]) == count
    assert sizes == [33] * 16, "a remainder of one point joins the batch before it"


@given(size=st.integers(1, 64), missing=st.integers(1, 300), least=st.integers(1, 16))
def test_the_missing_points_are_cut_without_a_small_remainder(
    size: int, missing: int, least: int
) -> None:
    least = min(least, size)
    left, batches = missing, 0
    while left > 0:
        batch = wanted(size, left, least)
        assert least <= batch < size + least
        left -= batch
        batches += 1
    assert left == 0 or (left > -least and missing < least)
    assert batches == steps_of(missing, size, least)


def test_a_minimum_above_the_batch_is_refused() -> None:
    assert least_of(2, 1) == 1, "the user asked for batches of one point"
    assert least_of(8, 32) == 8
    with pytest.raises(UsageError, match="--min-batch is 8: it must not be larger than batch_size"):
        least_of(8, 4)


def test_a_data_set_smaller_than_the_minimum_is_reported() -> None:
    assert too_few(7, 8)
    assert not too_few(1, 2), "a data set of one point is allowed"
