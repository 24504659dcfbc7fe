"""A worker whose contributions arrive late stops earlier in the next round, so that all arrive
together. It never stops before half of the interval."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrhythm.core.sync.barrier.fsp import Lateness

MS = 10**6


def arrival_spreads(
    delays_ms: list[float], rounds: int, noise: float = 0.0, seed: int = 0
) -> list[float]:
    """Per round, the milliseconds from the first arrival to the last, for workers with these
    delays."""
    lateness, jitter, opened_ns, interval_ns = Lateness(), random.Random(seed), 0, 200 * MS
    found = []
    for _ in range(rounds):
        arrivals = []
        for worker, delay_ms in enumerate(delays_ms):
            own_ns = lateness.own_interval(worker, interval_ns)
            delay_ns = round(delay_ms * MS * jitter.uniform(1 - noise, 1 + noise))
            arrivals.append(opened_ns + own_ns + delay_ns)
            lateness.on_arrived(worker, opened_ns, arrivals[-1])
        found.append((max(arrivals) - min(arrivals)) / MS)
        opened_ns = max(arrivals) + 5 * MS
    return found


def test_arrival_times_converge() -> None:
    found = arrival_spreads([1, 5, 20, 60], rounds=3)
    assert found[0] == pytest.approx(59)
    assert found[1] == pytest.approx(0, abs=1e-3)


@pytest.mark.parametrize("seed", range(5))
def test_arrival_times_converge_though_delays_vary(seed: int) -> None:
    found = arrival_spreads([1, 5, 20, 60], rounds=200, noise=0.05, seed=seed)
    later = found[100:]
    assert sum(later) / len(later) < 0.1 * found[0]


def test_the_interval_of_a_worker_that_slows_down_becomes_shorter() -> None:
    lateness = Lateness()
    for delay_ms in [2] * 10 + [30] * 20:
        own_ns = lateness.own_interval(1, 100 * MS)
        lateness.on_arrived(1, 0, own_ns + delay_ms * MS)
    assert lateness.own_interval(1, 100 * MS) == pytest.approx(70 * MS, rel=0.01)


def test_a_worker_that_is_slow_on_the_probe_sample_has_a_shorter_interval_in_that_round() -> None:
    lateness = Lateness()
    for worker, probe_ms in ((1, 10), (2, 40)):
        own_ns = lateness.own_interval(worker, 200 * MS, probe=True)
        lateness.on_arrived(worker, 0, own_ns + (probe_ms + 2) * MS, probe_ms * MS)
    assert lateness.own_interval(1, 200 * MS, probe=True) == 198 * MS
    assert lateness.own_interval(2, 200 * MS, probe=True) == 168 * MS
    assert lateness.own_interval(2, 200 * MS) == 198 * MS


def test_a_slow_first_step_does_not_count() -> None:
    lateness = Lateness()
    lateness.own_interval(1, 100 * MS)
    lateness.on_arrived(1, 0, 1600 * MS)
    assert lateness.own_interval(1, 100 * MS) == 50 * MS
    lateness.on_arrived(1, 0, 55 * MS)
    assert lateness.own_interval(1, 100 * MS) == 95 * MS


def test_an_interval_is_never_shortened_below_half() -> None:
    lateness = Lateness()
    lateness.own_interval(1, 100 * MS)
    lateness.on_arrived(1, 0, 1000 * MS)
    assert lateness.own_interval(1, 100 * MS) == 50 * MS


def test_a_new_interval_is_shortened_by_the_same_time() -> None:
    lateness = Lateness()
    lateness.own_interval(1, 100 * MS)
    lateness.on_arrived(1, 0, 110 * MS)
    assert lateness.own_interval(1, 400 * MS) == 390 * MS


def test_an_early_barrier_does_not_count_as_negative_lateness() -> None:
    lateness = Lateness()
    lateness.own_interval(1, 100 * MS)
    lateness.on_arrived(1, 0, 110 * MS)
    lateness.own_interval(1, 100 * MS)
    lateness.on_arrived(1, 0, 30 * MS)
    assert lateness.own_interval(1, 100 * MS) == 90 * MS


def test_workers_without_measurements_have_the_whole_interval() -> None:
    lateness = Lateness()
    assert lateness.own_interval(1, 77) == 77
    lateness.on_arrived(1, 0, 90)
    assert lateness.own_interval(1, 77) == 64
    lateness.forget(1)
    lateness.forget(1)
    assert lateness.own_interval(1, 77) == 77


@given(st.lists(st.tuples(st.integers(1, 10**10), st.integers(0, 10**11)), max_size=30))
def test_a_workers_interval_is_always_between_half_and_all_of_the_interval(
    rounds: list[tuple[int, int]],
) -> None:
    lateness = Lateness()
    for interval_ns, arrived_ns in rounds:
        own_ns = lateness.own_interval(3, interval_ns)
        assert interval_ns / 2 <= own_ns <= interval_ns
        lateness.on_arrived(3, 0, arrived_ns)
