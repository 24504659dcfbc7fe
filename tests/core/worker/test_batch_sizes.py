"""Micro-batches take a few milliseconds, the last one ends with the interval, and the fixed cost of
each (its start) is a small part of its time."""

import random

import pytest

from polyrhythm.core.worker.batch_sizes import MicroBatch

MS = 10**6


def train(micro: MicroBatch, start_ms: float, point_ms: float, intervals: int) -> list[float]:
    """Train for intervals of 200 ms. Returns by how many milliseconds the work exceeded each interval; a
    negative number means that the work ended early."""
    missed = []
    for _ in range(intervals):
        left_ns = 200.0 * MS
        while 2 * left_ns > micro.usual_ns:
            points = micro.size(round(left_ns))
            took_ns = (start_ms + points * point_ms) * MS
            micro.on_measured(points, round(took_ns))
            left_ns -= took_ns
        missed.append(-left_ns / MS)
    return missed


@pytest.mark.parametrize(
    ("start_ms", "point_ms"), [(0, 0.1), (0.5, 0.156), (4.0, 0.5), (1.0, 20.0), (0.0, 3.0)]
)
def test_the_last_micro_batch_ends_with_the_interval(start_ms: float, point_ms: float) -> None:
    micro = MicroBatch(64)
    missed = train(micro, start_ms, point_ms, intervals=10)
    assert max(map(abs, missed[2:])) <= max(0.5 * (start_ms + point_ms), 1.0)


def test_a_micro_batch_takes_a_few_milliseconds() -> None:
    micro = MicroBatch(64)
    train(micro, start_ms=0.2, point_ms=0.1, intervals=3)
    assert 6 * MS < micro.usual_ns < 10 * MS


def test_the_start_takes_at_most_a_quarter_of_a_micro_batch() -> None:
    """With a start of 4 ms, a size that was computed from the mean time per point would shrink to
    one point."""
    micro = MicroBatch(64)
    train(micro, start_ms=4.0, point_ms=0.5, intervals=3)
    assert micro.usual_ns == pytest.approx(16 * MS, rel=0.1)


def test_a_micro_batch_has_at_least_one_point_and_at_most_the_users_batch() -> None:
    micro = MicroBatch(16)
    assert micro.size(10**9) == 8
    micro.on_measured(8, 8)
    assert micro.size(10**9) == 8, "the first one says nothing"
    micro.on_measured(8, 8)
    assert max(micro.size(10**9) for _ in range(2)) == 16
    assert micro.size(-5) == 1
    micro.on_measured(0, 100)
    assert max(micro.size(10**9) for _ in range(2)) == 16


def test_a_slow_first_step_does_not_make_later_micro_batches_small() -> None:
    micro = MicroBatch(64)
    micro.on_measured(8, 1600 * MS)
    assert micro.usual_ns == 0
    micro.on_measured(8, 4 * MS)
    assert micro.usual_ns == pytest.approx(8 * MS)


def mean_size(micro: MicroBatch) -> float:
    """Sizes alternate between two values; return their mean."""
    return (micro.size(100 * MS) + micro.size(100 * MS)) / 2


def test_one_slow_step_is_ignored_and_a_slower_machine_is_followed() -> None:
    micro, rng = MicroBatch(256), random.Random(1)
    for _ in range(50):
        points = rng.randrange(10, 40)
        micro.on_measured(points, points * MS // 10)
    before_ns = micro.usual_ns
    size = mean_size(micro)
    micro.on_measured(size, 500 * MS)
    assert mean_size(micro) > 0.5 * size
    for _ in range(60):
        points = micro.size(100 * MS)
        micro.on_measured(points, points * 4 * MS // 10)
    assert mean_size(micro) == pytest.approx(size / 4, rel=0.25)
    assert micro.usual_ns == pytest.approx(before_ns, rel=0.3)


def test_with_local_steps_a_micro_batch_is_the_users_batch_or_an_equal_part_of_the_interval() -> (
    None
):
    micro = MicroBatch(64, whole=True, first=64)
    assert micro.size(1) == 64, "nothing is known yet"
    for points in (64, 64, 48, 64, 48):
        micro.on_measured(points, points * MS // 8)  # a batch takes 8 ms
    assert micro.usual_ns == pytest.approx(8 * MS, rel=0.01)
    assert micro.size(8 * MS) == 64
    assert micro.size(4 * MS) == 32, "the interval is shorter than a batch"
    assert 32 <= micro.size(12 * MS) <= 64, "two equal parts, a little more or less"


def test_the_shortest_micro_batch_depends_on_the_start_and_on_the_users_batch() -> None:
    cheap, dear, unknown = MicroBatch(64), MicroBatch(64), MicroBatch(64)
    train(cheap, start_ms=0.4, point_ms=0.1, intervals=3)
    train(dear, start_ms=9.0, point_ms=0.1, intervals=3)
    assert cheap.shortest_ns == pytest.approx(0.8 * MS, rel=0.25)
    assert dear.shortest_ns == pytest.approx((9 + 32 * 0.1) * MS, rel=0.25)
    assert unknown.shortest_ns == 0


def test_a_device_that_computes_any_batch_in_the_same_time_gets_half_of_the_users_batch() -> None:
    micro = MicroBatch(64, whole=True, first=64)
    for points in (64, 64, 48, 36, 64, 48):
        micro.on_measured(points, 7 * MS)
    assert micro.size(5 * MS) == 32, "the start takes longer than the interval"


def test_the_shortest_micro_batch_has_the_fewest_points_that_are_allowed() -> None:
    whole_blocks = MicroBatch(64, 48)
    for points in (64, 48, 64, 48, 64):
        whole_blocks.on_measured(points, points * MS)
    assert whole_blocks.shortest_ns == pytest.approx(48 * MS, rel=0.05)
