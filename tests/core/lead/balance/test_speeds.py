"""The seconds per point of workers, measured from fold to fold."""

import pytest

from polyrhythm.core.lead.balance.pairs import Key
from polyrhythm.core.lead.balance.speeds import ENOUGH, Speeds

ONE, OTHER = (0, 1), (1, 1)


def seconds_of(speeds: Speeds, key: Key) -> float:
    speed = speeds.of(key)
    assert speed is not None
    return speed.seconds


def measured(*points: int) -> Speeds:
    """The speeds after rounds of 0.1 s in which a worker visited so many points."""
    speeds = Speeds()
    for at, count in enumerate((1, 1, *points)):
        speeds.visited(ONE, count)
        speeds.folded([(ONE, False)], at * 10**8)
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
    """A second of equal rounds does not make a speed certain; half a minute makes it more so."""
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
    """The first rounds have a tenth of the points. Later neither the speed nor its error shows them."""
    steady = measured(*[100] * 80).of(ONE)
    found = measured(*[10] * 6, *[100] * 74).of(ONE)
    assert steady is not None and found is not None
    assert found.seconds == pytest.approx(steady.seconds, rel=0.001)
    assert found.walk_s == pytest.approx(steady.walk_s)
    assert found.error < 1.5 * steady.error


def test_a_speed_is_known_after_a_warm_up_and_enough_rounds() -> None:
    speeds = Speeds()
    speeds.folded([(ONE, False)], 0)
    for at in range(1, ENOUGH + 2):
        assert speeds.of(ONE) is None
        speeds.visited(ONE, 1 if at == 1 else 10)
        speeds.folded([(ONE, False)], at * 10**9)
    assert seconds_of(speeds, ONE) == pytest.approx(0.1)
    assert speeds.round_s == pytest.approx(1.0)


def test_rounds_without_points_are_left_out_and_missed_rounds_are_not() -> None:
    speeds = Speeds()
    speeds.folded([(ONE, False), (OTHER, False)], 0)
    for at in range(1, 13):
        rests = at % 2 == 0
        if not rests:
            speeds.visited(ONE, 10)
        if at % 2 == 0:
            speeds.visited(OTHER, 10)
        speeds.folded([(ONE, rests), (OTHER, False)], at * 10**9)
    assert seconds_of(speeds, ONE) == pytest.approx(0.1)
    assert seconds_of(speeds, OTHER) == pytest.approx(0.2)


def test_a_member_that_left_is_forgotten() -> None:
    speeds = Speeds()
    for at in range(8):
        speeds.visited(ONE, 10)
        speeds.folded([(ONE, False)], at * 10**9)
    assert speeds.of(ONE) is not None
    speeds.folded([], 10**10)
    assert speeds.of(ONE) is None
