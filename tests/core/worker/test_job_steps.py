"""A scheduler follows the steps of the job, whatever steps its worker's loop makes."""

import pytest

from polyrhythm.core.worker.job_steps import JobSteps, ScheduleCalls


class Loop:
    """A training loop that calls one scheduler. `joined`: the steps of the job when it begins."""

    def __init__(self, joined: float = 0.0, position: int = 0, *, resumed: bool = False) -> None:
        self.job = JobSteps(joined, resumed=resumed)
        self.schedule = ScheduleCalls()
        self.position = position

    def step(self, told: float | None = None, whole: float = 1.0) -> None:
        self.job.on_step(whole)
        if told is not None:
            self.job.tell(told)

    def call(self, catches_up: int = 0) -> int:
        made = self.schedule.steps(self.position, self.job, catches_up)
        self.position += made
        return made


def test_a_loop_that_makes_one_step_per_round_steps_its_scheduler_once_per_round() -> None:
    loop = Loop()
    made = []
    for step in range(1, 6):
        loop.step(told=float(step))
        made.append(loop.call())
    assert made == [1] * 5


@pytest.mark.parametrize(
    ("share", "per_step", "positions"),
    [(0.5, 0.5, [0, 1, 1, 2, 2, 3]), (1.0, 2.0, [2, 4, 6, 8, 10, 12])],
)
def test_the_scheduler_makes_as_many_steps_as_the_job(
    share: float, per_step: float, positions: list[int]
) -> None:
    """The steps of one loop are halves of a batch, and the other worker is slow. The loop of the
    other makes one step while the job makes two."""
    loop, found = Loop(), []
    for step in range(1, 7):
        loop.step(told=step * per_step, whole=share)
        loop.call()
        found.append(loop.position)
    assert found == positions


def test_between_two_messages_of_the_lead_the_worker_counts_its_own_steps() -> None:
    """The job makes one step per two steps of this worker; the lead says so every four steps."""
    loop, found = Loop(), []
    for step in range(1, 17):
        loop.step(told=step / 2 if step % 4 == 0 else None)
        loop.call()
        found.append(loop.position)
    # the first four steps are taken as steps of the job
    assert found == [1, 2, 3, 3, 3, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8]


def test_a_pause_of_this_worker_does_not_send_its_scheduler_ahead() -> None:
    loop = Loop()
    for step in range(1, 5):
        loop.step(told=float(step))
        loop.call()
    loop.step(told=500.0)
    assert loop.call() == 496
    loop.step()
    assert loop.call() == 1, "the growth of the pause is not the growth of a step"


def test_a_worker_that_joins_late_catches_up_at_once() -> None:
    loop = Loop(joined=90.0)
    loop.step(told=91.0)
    assert loop.call() == 91
    loop.step(told=92.0)
    assert loop.call() == 1


def test_a_worker_that_joins_again_catches_up() -> None:
    loop = Loop()
    loop.step(told=1.0)
    loop.call()
    loop.job.on_rejoined(40.0)
    loop.step(told=41.0)
    loop.call()
    loop.step()
    loop.call()
    assert loop.position == 42


def test_a_scheduler_from_a_checkpoint_goes_on_where_it_was() -> None:
    loop = Loop(joined=64.0, position=64, resumed=True)
    loop.step(told=65.0)
    assert loop.call() == 1


def test_a_scheduler_from_a_checkpoint_that_had_made_steps_before_the_job_goes_on_too() -> None:
    """It had made 100 steps before the job, and 64 in it."""
    loop = Loop(joined=64.0, position=164, resumed=True)
    loop.step(told=65.0)
    assert loop.call() == 1


def test_a_late_worker_whose_scheduler_had_made_steps_before_the_job_catches_up() -> None:
    """The schedulers of the first workers began at step 100 too, so they are at step 164 now."""
    loop = Loop(joined=64.0, position=100)
    loop.step(told=65.0)
    loop.call()
    assert loop.position == 165


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_a_scheduler_that_had_made_steps_before_the_job_goes_on_from_there(share: float) -> None:
    """As one that the user's code has restored from a file of its own."""
    loop = Loop(position=100)
    for step in range(1, 9):
        loop.step(told=step * share, whole=share)
        loop.call()
    assert loop.position == 100 + 8 * share


def test_a_scheduler_that_the_loop_calls_before_its_steps_is_one_step_ahead() -> None:
    loop = Loop()
    for step in range(1, 4):
        assert loop.call() == 1
        loop.step(told=float(step))


def test_a_scheduler_that_is_called_first_after_some_steps_begins_at_its_beginning() -> None:
    loop = Loop()
    for step in range(1, 6):
        loop.step(told=float(step))
    for step in range(6, 9):
        assert loop.call() == 1
        loop.step(told=float(step))


def test_a_scheduler_that_is_called_once_per_pass_makes_one_step_per_call() -> None:
    """Three passes of 20 steps of the job, in which this loop makes 50 steps."""
    loop, made = Loop(), []
    for step in range(1, 151):
        loop.step(told=step * 0.4)
        if step % 50 == 0:
            made.append(loop.call())
    assert made == [1, 1, 1]


def test_a_worker_that_joins_late_may_catch_up_with_the_passes() -> None:
    """The loop steps its scheduler once per pass, and makes up for three passes in its first three
    steps."""
    loop = Loop(joined=90.0)
    made = []
    for step in range(1, 4):
        loop.step(told=90.0 + step)
        made.append(loop.call(catches_up=3))
        assert loop.schedule.waits(loop.job)
    for step in range(4, 30):
        loop.step(told=90.0 + step)
    assert not loop.schedule.waits(loop.job)
    assert [*made, loop.call(catches_up=3)] == [1, 1, 1, 1]


def test_a_step_without_a_call_is_not_made_up_for() -> None:
    """A loop does not call its scheduler after a step that a GradScaler has left out."""
    loop = Loop()
    for step in range(1, 11):
        loop.step(told=float(step))
        if step != 5:
            loop.call()
    assert loop.position == 9


def test_the_estimate_ends_if_the_lead_is_silent() -> None:
    """The lead has told its count twice, every four steps. Then it tells nothing for a long time."""
    loop = Loop()
    for step in range(1, 9):
        loop.step(told=float(step) if step % 4 == 0 else None)
        loop.call()
    for _ in range(20):
        loop.step()
        loop.call()
    assert loop.position == 8 + 4
