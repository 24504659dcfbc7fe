"""Workers that have visited all of their points help the others, however uncertain speeds are."""

import pytest

from polyrhythm.core.lead.data.balance.decision import Pace, decide


@pytest.mark.parametrize("error", [0.0, 0.4, 2.0])
def test_a_worker_that_waits_gets_points_of_a_slow_one(error: float) -> None:
    """`error`: the standard error of the time per point, divided by the time per point."""
    waits = Pace((0, 1), 1000, 0.01, 0.01 * error, 6.0, left=0)
    slow = Pace((1, 1), 1000, 0.08, 0.08 * error, 4.5, left=500)
    decided = decide([waits, slow], None, chunk=10.0, round_s=0.1)
    (move,) = decided.moves
    assert (move.sources, move.targets) == ((slow.key,), (waits.key,))
    assert 300 < move.points <= 500


def test_a_worker_that_has_points_left_gets_none_if_speeds_are_uncertain() -> None:
    busy = Pace((0, 1), 1000, 0.01, 0.02, 5.9, left=100)
    slow = Pace((1, 1), 1000, 0.08, 0.16, 5.5, left=500)
    assert not decide([busy, slow], None, chunk=10.0, round_s=0.1).moves


def test_the_last_two_rounds_of_a_slow_worker_stay_with_it() -> None:
    waits = Pace((0, 1), 1000, 0.01, 0.0, 6.0, left=0)
    slow = Pace((1, 1), 1000, 0.08, 0.0, 5.9, left=20)
    assert not decide([waits, slow], None, chunk=1.0, round_s=1.0).moves
