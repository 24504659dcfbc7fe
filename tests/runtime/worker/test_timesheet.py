"""Every nanosecond of a worker is counted once: as computing, waiting or transferring."""

import time
from collections.abc import Callable

import pytest

from polyrhythm.runtime.worker.timesheet import Timesheet


class Clock:
    def __init__(self) -> None:
        self.now_ns = 1_000

    def __call__(self) -> int:
        return self.now_ns

    def go_on(self, nanoseconds: int) -> int:
        """Advance the clock, and return the time that it showed before."""
        began_ns, self.now_ns = self.now_ns, self.now_ns + nanoseconds
        return began_ns


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "monotonic_ns", clock)
    return clock


def booked(sheet: Timesheet) -> tuple[int, int, int]:
    """Return the computing time since the worker resumed, and the waiting and transferring time of
    its last exchange."""
    return sheet.computed_ns(), sheet.waited_ns, sheet.transferred_ns


def test_an_exchange_is_waiting_and_transferring(clock: Clock) -> None:
    sheet = Timesheet()
    began_ns = clock.go_on(100)
    sheet.resume()
    sheet.on_exchanged(began_ns, idle_ns=70)
    clock.go_on(5)
    assert booked(sheet) == (5, 70, 30)


def test_idle_time_that_two_threads_counted_is_at_most_the_whole_exchange(clock: Clock) -> None:
    sheet = Timesheet()
    began_ns = clock.go_on(100)
    sheet.resume()
    sheet.on_exchanged(began_ns, idle_ns=130)
    clock.go_on(5)
    assert booked(sheet) == (5, 100, 0)


def test_training_through_waits_for_nothing(clock: Clock) -> None:
    sheet = Timesheet()
    began_ns = clock.go_on(20)
    sheet.trained_through(began_ns)
    clock.go_on(5)
    assert booked(sheet) == (5, 0, 20)


def wait(sheet: Timesheet, began_ns: int) -> int:
    return sheet.waited_for_version(began_ns)


def rebase(sheet: Timesheet, began_ns: int) -> int:
    return sheet.on_rebased(began_ns, rejoined=False)


@pytest.mark.parametrize(("what", "of"), [(wait, (100, 30, 20)), (rebase, (100, 0, 50))])
def test_what_interrupts_computing_is_not_computing(
    clock: Clock, what: Callable[[Timesheet, int], int], of: tuple[int, int, int]
) -> None:
    sheet = Timesheet()
    sheet.trained_through(clock.go_on(20))
    clock.go_on(60)
    assert what(sheet, clock.go_on(30)) == 30
    clock.go_on(40)
    assert booked(sheet) == of


def test_a_worker_that_joined_again_begins_anew(clock: Clock) -> None:
    """The worker's earlier computing and waiting belongs to an incarnation that is over, so it is
    not counted."""
    sheet = Timesheet()
    sheet.trained_through(clock.go_on(20))
    clock.go_on(60)
    sheet.on_rebased(clock.go_on(30), rejoined=True)
    clock.go_on(40)
    assert booked(sheet) == (40, 0, 30)


def test_time_that_is_passed_over_is_not_computing(clock: Clock) -> None:
    sheet = Timesheet()
    clock.go_on(50)
    sheet.exclude_time(20)
    assert sheet.computed_ns() == 30
