"""An answer is waited for where it takes little of a step."""

from itertools import cycle

import pytest

from polyrhythm.core.weighing import LITTLE, Weighing

STEP_NS = 10_000_000
SHORT_NS = STEP_NS // 50


class Way:
    """A worker with steps of 10 ms."""

    def __init__(self) -> None:
        self.weighing = Weighing()
        self.now_ns = self.waited_ns = 0

    def go(self, answer_ns: int, steps: int) -> list[bool]:
        """Whether it waited for the answer, step by step."""
        return [self.step(answer_ns) for _ in range(steps)]

    def step(self, answer_ns: int) -> bool:
        self.now_ns += STEP_NS
        waits = self.weighing.waits(STEP_NS, self.now_ns)
        self.waited_ns += answer_ns if waits else 0
        self.now_ns += answer_ns if waits else 0
        self.weighing.answered(self.now_ns)
        return waits


def test_what_takes_little_is_waited_for() -> None:
    assert all(Way().go(int(LITTLE * STEP_NS), 200))


def test_what_takes_long_is_waited_for_until_that_is_known() -> None:
    waited = Way().go(2 * STEP_NS, 100)
    assert waited[:6] == [True] * 6
    assert not any(waited[6:])


def test_the_very_first_answer_decides_over_nothing() -> None:
    way = Way()
    way.go(40 * STEP_NS, 1)
    assert all(way.go(SHORT_NS, 100))


def test_looking_again_costs_a_fiftieth_of_the_time() -> None:
    way, steps = Way(), 10_000
    looks = sum(way.go(2 * STEP_NS, steps)[6:])
    assert 0 < looks * 2 * STEP_NS <= steps * STEP_NS / 50


@pytest.mark.parametrize("long_ns", [STEP_NS // 2, 2 * STEP_NS, 10 * STEP_NS])
def test_a_way_that_has_become_short_is_noticed_by_one_look(long_ns: int) -> None:
    way = Way()
    way.go(long_ns, 50)
    waited = way.go(SHORT_NS, 600)
    assert all(waited[waited.index(True) :])


def test_a_way_that_has_become_long_is_noticed_at_once() -> None:
    way = Way()
    way.go(SHORT_NS, 50)
    assert way.go(3 * STEP_NS, 20) == [True, True] + [False] * 18


def test_one_long_answer_changes_nothing() -> None:
    way = Way()
    way.go(SHORT_NS, 50)
    way.go(9 * STEP_NS, 1)
    assert all(way.go(SHORT_NS, 50))


def test_some_long_answers_among_short_ones_are_not_waited_for_all_the_time() -> None:
    way = Way()
    answers = cycle([SHORT_NS, SHORT_NS, SHORT_NS, 2 * STEP_NS, 2 * STEP_NS])
    for _ in range(5_000):
        way.step(next(answers))
    assert way.waited_ns < way.now_ns / 8, "as it would be if all were waited for: almost half"


def test_who_did_not_wait_has_measured_nothing() -> None:
    way = Way()
    way.go(2 * STEP_NS, 20)
    assert not any(way.go(0, 20)), "0 would be little"
