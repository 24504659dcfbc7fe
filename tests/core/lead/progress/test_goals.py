"""When a job has reached its goal."""

from typing import Any

from polyrhythm.core.lead.progress.progress import Goals, GoalsState
from polyrhythm.core.machine import Reason
from polyrhythm.wire.messages import JobSpec, Target

SECOND_NS = 10**9


def goals(**fields: Any) -> Goals:
    job = JobSpec(job="x", **fields)
    return Goals(GoalsState.begin(job), job)


def goal(what: str, **fields: float) -> Reason:
    return Reason("goal", {"goal": what, **fields})


def test_without_a_goal_a_job_never_ends() -> None:
    job = goals()
    job.on_opened(0)
    job.on_folded(10**9, 10**9)
    job.targets.on_measured(0.0)
    job.targets.take(0, {"accuracy": 1.0}, evaluated=True)
    assert job.reached(10**18) is None


def test_a_job_ends_after_its_rounds_or_passes() -> None:
    job = goals(rounds=10, epochs=3)
    job.on_folded(9, 2)
    assert job.reached(0) is None
    job.on_folded(9, 3)
    assert job.reached(0) == goal("passes", passes=3)
    job.on_folded(10, 3)
    assert job.reached(0) == goal("rounds", rounds=10)


def test_a_job_ends_when_its_points_have_counted() -> None:
    job = goals(points=1000)
    job.on_folded(5, 0, points=999)
    assert job.reached(0) is None
    job.on_folded(6, 0, points=1024)
    assert job.reached(0) == goal("points", points=1024)


def test_the_nearest_goal_is_the_progress() -> None:
    job = goals(rounds=100, epochs=4, points=2000, max_seconds=10.0)
    job.on_opened(0)
    assert job.share(0, 500) == 0.0
    job.on_folded(30, 0, points=400, now_ns=SECOND_NS)
    assert job.share(400, 500) == 0.3, "by rounds"
    job.on_folded(30, 0, points=400, now_ns=5 * SECOND_NS)
    assert job.share(400, 500) == 0.5, "by seconds"
    assert job.share(1500, 500) == 0.75, "by points and by passes"
    assert job.share(1500, 400) == 0.9375, "by passes"
    assert job.share(9000, 0) == 1.0


def test_the_way_to_a_target_is_not_known() -> None:
    job = goals(target_change=0.1, targets=(Target("accuracy", 0.9, at_least=True),))
    job.on_opened(0)
    job.on_folded(30, 2, points=400, now_ns=SECOND_NS)
    assert job.share(400, 200) == 0.0


def test_seconds_count_from_the_opening() -> None:
    job = goals(max_seconds=1.5)
    assert job.reached(10**18) is None
    job.on_opened(4 * SECOND_NS)
    assert job.reached(5_499_999_999) is None
    assert job.reached(5_500_000_000) == goal("seconds", seconds=1.5)


def test_a_small_change_in_a_full_pass_is_a_goal() -> None:
    job = goals(target_change=0.01)
    for change in (None, 0.5, 0.01, float("nan")):
        job.on_pass(change)
        assert job.reached(0) is None
    job.on_pass(0.0095)
    assert job.reached(0) == goal("change", change=0.0095, bound=0.01)


def test_only_a_check_compares_objectives() -> None:
    """Folds and journal lines update the objective several times in a pass. `--target-change` must
    not compare such objectives with each other."""
    job = goals(target_change=0.01)
    for passes in range(5):
        job.targets.on_measured(1.0)
        job.on_folded(10 * passes, passes)
        assert job.reached(0) is None


def test_a_goal_in_passes_holds_only_while_no_pass_is_taken_back() -> None:
    job = goals(rounds=10, epochs=3)
    job.on_folded(9, 3)
    reached = job.reached(0)
    assert job.holds(reached) and job.holds(None)
    job.on_folded(10, 2)
    assert not job.holds(reached)
    assert job.holds(job.reached(0)), "the job has made its rounds, whatever its passes"
