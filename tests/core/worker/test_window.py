"""What a worker has done since its last contribution, and the four ways in which that ends."""

from typing import Any

import pytest

from polyrhythm.core.worker.window import Window
from polyrhythm.errors import NotFinite
from polyrhythm.wire.messages import ChunkProgress

NAN = NotFinite("a gradient holds NaN")


def filled(**options: Any) -> Window:
    """Return a window with every kind of content."""
    window = Window(**options)
    window.begin(3, 100)
    window.note(4, [ChunkProgress(0, 0, 4)])
    window.add_loss(2.0, 4)
    window.keep_first_loss()
    window.end_steps(whole=0.5)
    window.end_batches()
    window.gather()
    window.lap(70)
    window.add_abandoned(5)
    window.note(6, [ChunkProgress(0, 0, 10)])
    window.leave_out(6.0, NAN)
    window.end_steps(whole=0.5)
    window.end_batches()
    window.note(1, [ChunkProgress(1, 0, 1)])
    window.drop_batch()
    return window


def content(window: Window) -> dict[str, Any]:
    """Everything that the next contribution would be made of."""
    return {
        "points": (window.points, window.weighed, window.new_points, window.is_given),
        "steps": (window.steps, window.batches, window.first_loss, window.void),
        "micro": (window.gathered, window.lap(0)),
        "report": window.contribute(varies=True),
    }


def fresh(lease: int) -> dict[str, Any]:
    window = Window()
    window.begin(lease)
    return content(window)


def test_a_contribution_reports_all_that_was_done() -> None:
    report = filled().contribute(varies=True)
    assert (report.weight, report.steps, report.whole_steps) == (4.0, 2, 1.0)
    assert (report.objective, report.lease, report.skipped) == (2.0, 3, 1)
    assert report.progress == (ChunkProgress(0, 0, 10), ChunkProgress(1, 0, 1))
    assert (report.visited, report.abandoned_ns) == (-1, 5)


def test_the_first_loss_has_the_points_that_were_not_dropped() -> None:
    window = Window()
    window.note(3)
    window.drop_batch()
    window.note(5)
    window.add_loss(2.0, 5)
    window.keep_first_loss()
    assert window.first_loss == (2.0, 5)


def test_a_dropped_batch_is_not_among_the_points_of_the_step() -> None:
    window = Window()
    window.note(4)
    window.note(3)
    window.drop_batch()
    assert (window.batch_points, window.weighed, window.points) == (4, 4, 7)


def test_a_contribution_names_the_lease_of_its_first_batch() -> None:
    window = Window()
    window.begin(1)
    window.note(2)
    window.begin(2)
    window.note(3)
    window.end_steps()
    assert window.contribute().lease == 1


@pytest.mark.parametrize("end", ["contribute", "abstain", "drop"])
def test_nothing_is_left_of_a_window_that_has_ended(end: str) -> None:
    window = filled()
    window.give(8.0)
    getattr(window, end)()
    window.begin(9)
    assert content(window) == fresh(9)


def test_points_of_an_abstention_count_as_visited() -> None:
    assert filled().abstain() == (3, (ChunkProgress(0, 0, 10), ChunkProgress(1, 0, 1)))


def test_a_step_that_is_taken_back_leaves_no_trace() -> None:
    """Only the time that it has taken is reported."""
    returned: list[int] = []
    window, twin = Window(), Window()
    for each in (window, twin):
        each.put_back = returned.append
        each.begin(3, 100)
        each.note(4, [ChunkProgress(0, 0, 4)])
        each.add_loss(2.0, 4)
        each.end_steps(whole=0.5)
        each.end_batches()
        each.lap(70)
    window.note(8, [ChunkProgress(0, 0, 10), ChunkProgress(1, 0, 2)])
    window.note(1, [ChunkProgress(1, 0, 3)])
    window.add_loss(1e6, 9)
    window.leave_out(9.0, NAN)
    window.end_steps(whole=0.5)
    assert window.can_take_back
    window.take_back(100)
    assert returned == [2] and not window.can_take_back
    twin.add_abandoned(30)
    assert content(window) == content(twin)


def test_another_step_with_the_same_points_has_their_weight() -> None:
    window = Window()
    window.note(4)
    window.end_steps()
    window.end_batches()
    assert window.contribute().weight == 4.0
    assert window.contribute().weight == 1.0, "no step was made"
    window.end_steps()
    assert window.contribute().weight == 4.0
    window.drop()
    window.end_steps()
    assert window.contribute().weight == 1.0, "the points are not this worker's any more"


def test_with_several_models_points_count_when_the_next_batch_has_begun() -> None:
    window = Window(several=True)
    window.begin(1)
    window.note(4, [ChunkProgress(0, 0, 4)])
    window.end_steps()
    window.end_batches()
    first = window.contribute()
    assert (first.weight, first.visited, first.progress) == (4.0, 0, ())
    window.end_steps()
    window.begin(2)
    window.note(6, [ChunkProgress(0, 0, 10)])
    window.end_steps()
    window.end_batches()
    second = window.contribute()
    assert (second.visited, second.progress, second.lease) == (4, (ChunkProgress(0, 0, 4),), 1)
    assert window.has_points
    window.close_batches()
    assert window.abstain() == (2, (ChunkProgress(0, 0, 10),))
    assert not window.has_points


def test_points_that_the_users_code_gives_count_once() -> None:
    """Only the points of the model that steps first count as visited."""
    window = Window(several=True)
    window.give(5.0)
    window.end_steps()
    report = window.contribute(first=True)
    assert (report.weight, report.visited) == (5.0, 5)
    window.give(5.0)
    window.end_steps()
    assert window.contribute(first=False).visited == 0


def test_a_worker_abstains_if_all_of_its_steps_are_left_out() -> None:
    window = Window()
    window.note(4)
    window.leave_out(4.0, NAN)
    window.end_steps()
    assert window.void is NAN
    window.end_batches()
    window.note(4)
    window.end_steps()
    assert window.void is None
    assert window.weight == 4.0
