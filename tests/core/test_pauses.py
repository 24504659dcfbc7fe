"""How long a process was stopped. A process reads the clock at regular times. If it reads the clock
late, it was stopped since its last reading, except for the time in which it computed."""

import pytest

from polyrhythm.core.liveness import Pauses, stopped_ns

SECOND = 10**9
EVERY = SECOND // 2


@pytest.mark.parametrize(
    ("gap_s", "ran_s", "stopped_s"),
    [
        (0.5, 0.5, 0),  # on time
        (0.9, 0.0, 0),  # the thread was scheduled late
        (20.0, 20.0, 0),  # it computed in a call that holds the GIL
        (20.0, 19.5, 0),
        (20.0, 0.0, 20.0),
        (20.0, 0.5, 19.5),  # it computed for 0.5 s, then it was stopped
        (20.0, 40.0, 0),  # several threads computed
    ],
)
def test_a_late_look_without_computation_means_a_stop(
    gap_s: float, ran_s: float, stopped_s: float
) -> None:
    found = stopped_ns(round(gap_s * SECOND), EVERY, round(ran_s * SECOND))
    assert found == round(stopped_s * SECOND)


def test_pauses_add_up_and_are_known_by_their_end() -> None:
    pauses = Pauses(EVERY, 0, 0)
    pauses.look(10 * SECOND, 0)
    pauses.look(10 * SECOND + EVERY, 0)
    pauses.look(15 * SECOND + EVERY, SECOND)
    assert pauses.total_ns == 14 * SECOND
    assert pauses.since(10 * SECOND) == 4 * SECOND
    assert pauses.since(15 * SECOND + EVERY) == 0
