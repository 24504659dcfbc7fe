"""The seconds per point of workers, measured from fold to fold."""

import pytest

from polyrhythm.core.lead.balance.speeds import ENOUGH, Speeds

ONE, OTHER = (0, 1), (1, 1)


def test_a_speed_is_known_after_a_warm_up_and_enough_rounds() -> None:
    speeds = Speeds()
    speeds.folded([(ONE, False)], 0)
    for at in range(1, ENOUGH + 2):
        assert speeds.of(ONE) is None
        speeds.visited(ONE, 1 if at == 1 else 10)
        speeds.folded([(ONE, False)], at * 10**9)
    assert speeds.of(ONE) == (pytest.approx(0.1), pytest.approx(0.0))
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
    assert speeds.of(ONE) == (pytest.approx(0.1), pytest.approx(0.0))
    assert speeds.of(OTHER) == (pytest.approx(0.2), pytest.approx(0.0))


def test_a_member_that_left_is_forgotten() -> None:
    speeds = Speeds()
    for at in range(8):
        speeds.visited(ONE, 10)
        speeds.folded([(ONE, False)], at * 10**9)
    assert speeds.of(ONE) is not None
    speeds.folded([], 10**10)
    assert speeds.of(ONE) is None
