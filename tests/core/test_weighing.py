"""An answer is waited for where it takes little of a step."""

from polyrhythm.core.weighing import LITTLE, Weighing

STEP_NS = 10_000_000


class Way:
    """A worker with steps of 10 ms."""

    def __init__(self) -> None:
        self.weighing = Weighing()
        self.now_ns = 0

    def go(self, answer_ns: int, steps: int) -> list[bool]:
        """Whether it waited for the answer, step by step."""
        waited = []
        for _ in range(steps):
            self.now_ns += STEP_NS
            waited.append(self.weighing.waits(STEP_NS, self.now_ns))
            self.now_ns += answer_ns if waited[-1] else 0
            self.weighing.answered(self.now_ns)
        return waited


def test_what_takes_little_is_waited_for() -> None:
    assert all(Way().go(int(LITTLE * STEP_NS), 200))


def test_what_takes_long_is_waited_for_until_that_is_known() -> None:
    waited = Way().go(2 * STEP_NS, 100)
    assert waited[:5] == [True] * 5
    assert not any(waited[5:])


def test_looking_again_costs_a_hundredth_of_the_time() -> None:
    steps = 10_000
    looks = sum(Way().go(2 * STEP_NS, steps)[5:])
    assert 0 < looks * 2 * STEP_NS <= steps * STEP_NS / 100


def test_a_way_that_has_become_short_is_noticed() -> None:
    way = Way()
    way.go(2 * STEP_NS, 50)
    assert all(way.go(STEP_NS // 20, 2_000)[-500:])


def test_a_way_that_has_become_long_is_noticed_at_once() -> None:
    way = Way()
    way.go(STEP_NS // 20, 50)
    assert sum(way.go(3 * STEP_NS, 100)) == 3


def test_one_long_answer_changes_nothing() -> None:
    way = Way()
    way.go(STEP_NS // 20, 50)
    way.go(9 * STEP_NS, 1)
    assert all(way.go(STEP_NS // 20, 50))


def test_who_did_not_wait_has_measured_nothing() -> None:
    way = Way()
    way.go(2 * STEP_NS, 20)
    assert not any(way.go(0, 20)), "0 would be little"
