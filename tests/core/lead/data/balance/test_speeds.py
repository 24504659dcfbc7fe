"""The seconds per point of workers, measured from fold to fold."""

import math
import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from polyrhythm.core.lead.data.balance.decision import Key, Pace, decide
from polyrhythm.core.lead.data.balance.speeds import ENOUGH, Speeds

ONE, OTHER = (0, 1), (1, 1)


def seconds_of(speeds: Speeds, key: Key) -> float:
    speed = speeds.of(key)
    assert speed is not None
    return speed.seconds


def measured(*points: int) -> Speeds:
    """The speeds after rounds of 0.1 s in which a worker visited these numbers of points."""
    speeds = Speeds()
    for at, count in enumerate((1, 1, *points)):
        speeds.on_visited(ONE, count)
        speeds.on_folded([(ONE, False)], at * 10**8)
    return speeds


def test_a_speed_that_wanders_for_a_short_time_changes_little() -> None:
    usual, slower = [100] * 100, [80] * 20
    steady = seconds_of(measured(*usual), ONE)
    assert seconds_of(measured(*usual, *slower), ONE) < 1.1 * steady


def test_a_large_change_of_speed_counts_after_two_seconds() -> None:
    usual = [100] * 100
    steady = seconds_of(measured(*usual), ONE)
    for points in (25, 400):
        now = seconds_of(measured(*usual, *[points] * 21), ONE)
        assert now == pytest.approx(steady * 100 / points)
    assert seconds_of(measured(*usual, *[25] * 5), ONE) < 1.1 * steady, "half a second may pass"


def test_rounds_that_follow_each_other_are_no_independent_measurements() -> None:
    """After one second of equal rounds the speed is still uncertain. After half a minute its error
    is smaller."""
    errors = []
    for rounds in (10, 300):
        speed = measured(*[100] * rounds).of(ONE)
        assert speed is not None
        errors.append(speed.error / speed.seconds)
    assert errors[0] > 0.08 and 0.03 < errors[1] < 0.06


def test_a_speed_that_was_seen_to_wander_far_is_less_certain() -> None:
    wandering = [count for _ in range(12) for count in [100] * 32 + [60] * 32]
    calm, wild = measured(*[80] * len(wandering)).of(ONE), measured(*wandering).of(ONE)
    assert calm is not None and wild is not None
    assert wild.error > 1.2 * calm.error and wild.walk_s > 1.2 * calm.walk_s


def test_the_slow_first_rounds_of_a_job_are_soon_forgotten() -> None:
    """The first rounds have a tenth of the points. Later these rounds change neither the speed nor
    its error."""
    steady = measured(*[100] * 80).of(ONE)
    found = measured(*[10] * 6, *[100] * 74).of(ONE)
    assert steady is not None and found is not None
    assert found.seconds == pytest.approx(steady.seconds, rel=0.001)
    assert found.walk_s == pytest.approx(steady.walk_s)
    assert found.error < 1.5 * steady.error


_ROUNDS = st.tuples(st.floats(0.001, 0.2), st.integers(1, 1000))
_STALLS = st.dictionaries(st.integers(0, 99), st.floats(1.0, 10_000.0), max_size=3)


@given(st.lists(_ROUNDS, min_size=ENOUGH, max_size=100), _STALLS)
@example([(0.02, 100)] * 80, {11: 600.0})
@example([(0.05, 100)] * 80, {3: 60.0})
def test_a_speed_lies_between_those_of_the_rounds_however_long_one_stalls(
    rounds: list[tuple[float, int]], stalls: dict[int, float]
) -> None:
    """`stalls`: for each round that stalls, by how many seconds the stall makes it longer."""
    speeds, now_ns, seen = Speeds(), 10**9, []
    speeds.on_folded([(ONE, False)], 0)
    speeds.on_visited(ONE, 1)
    speeds.on_folded([(ONE, False)], now_ns)
    for at, (took_s, points) in enumerate(rounds):
        took_ns = round(1e9 * (took_s + stalls.get(at, 0.0)))
        now_ns += took_ns
        seen.append(took_ns / 1e9 / points)
        speeds.on_visited(ONE, points)
        speeds.on_folded([(ONE, False)], now_ns)
        if len(seen) >= ENOUGH:
            speed = speeds.of(ONE)
            assert speed is not None
            assert 0.999 * min(seen) <= speed.seconds <= 1.001 * max(seen)
            assert 0 < speed.error < math.inf and 0 < speed.walk_s < math.inf


def decisions(seed: int, rates: list[float], noise: float, seconds: float) -> list[bool]:
    """For each decision, whether points would move. The workers visit these numbers of points per
    second, in rounds of 0.1 s. In each round the logarithm of a worker's speed is off by
    `noise`."""
    rng, speeds, points = random.Random(seed), Speeds(), 5_000
    keys = [(worker, 1) for worker in range(len(rates))]
    visited = dict.fromkeys(keys, 0)
    moves = []
    for round_ in range(round(10 * seconds)):
        for key, rate in zip(keys, rates, strict=True):
            count = round(0.1 * rate * rng.lognormvariate(0.0, noise))
            visited[key] += count
            speeds.on_visited(key, count)
        speeds.on_folded([(key, False) for key in keys], round_ * 10**8)
        if round_ % ENOUGH:
            continue
        known = {key: speed for key in keys if (speed := speeds.of(key)) is not None}
        if len(known) == len(keys):
            paces = [
                Pace(key, points, at.seconds, at.error, visited[key] / points, None, at.walk_s)
                for key, at in known.items()
            ]
            moves.append(bool(decide(paces, None, 200.0, speeds.round_s).moves))
    return moves


def test_nothing_moves_between_equal_workers_with_noisy_rounds() -> None:
    """At first only a few rounds count. The error of a speed must take their small number into
    account."""
    moved = [seed for seed in range(100) if any(decisions(seed, [5_000.0] * 4, 0.3, 60.0))]
    assert not moved


def test_a_slow_worker_with_noisy_rounds_is_found_after_a_few_of_them() -> None:
    rates = [5_000.0, 5_000.0, 5_000.0, 1_250.0]
    found = [decisions(seed, rates, 0.3, 6.0).index(True) for seed in range(100)]
    assert sum(found) / len(found) < 0.5 and max(found) <= 4


def test_a_speed_is_known_after_a_warm_up_and_enough_rounds() -> None:
    speeds = Speeds()
    speeds.on_folded([(ONE, False)], 0)
    for at in range(1, ENOUGH + 2):
        assert speeds.of(ONE) is None
        speeds.on_visited(ONE, 1 if at == 1 else 10)
        speeds.on_folded([(ONE, False)], at * 10**9)
    assert seconds_of(speeds, ONE) == pytest.approx(0.1)
    assert speeds.round_s == pytest.approx(1.0)


def test_rounds_without_points_are_left_out_and_missed_rounds_are_not() -> None:
    speeds = Speeds()
    speeds.on_folded([(ONE, False), (OTHER, False)], 0)
    for at in range(1, 13):
        rests = at % 2 == 0
        if not rests:
            speeds.on_visited(ONE, 10)
        if at % 2 == 0:
            speeds.on_visited(OTHER, 10)
        speeds.on_folded([(ONE, rests), (OTHER, False)], at * 10**9)
    assert seconds_of(speeds, ONE) == pytest.approx(0.1)
    assert seconds_of(speeds, OTHER) == pytest.approx(0.2)


def test_a_member_that_left_is_forgotten() -> None:
    speeds = Speeds()
    for at in range(8):
        speeds.on_visited(ONE, 10)
        speeds.on_folded([(ONE, False)], at * 10**9)
    assert speeds.of(ONE) is not None
    speeds.on_folded([], 10**10)
    assert speeds.of(ONE) is None
