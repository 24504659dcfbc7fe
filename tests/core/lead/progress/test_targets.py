"""Targets: when a metric has reached its value, and what happens if no worker reports it."""

from typing import Any

import pytest

from polyrhythm.core.lead.progress.goals import PATIENCE, Targets
from polyrhythm.core.machine import Reason
from polyrhythm.core.metrics import MOST_NAMES, parse_target
from polyrhythm.observe.reasons import in_words
from polyrhythm.wire import messages as m
from tests.core.stage import Stage

SECOND_NS = 10**9


def targets(*texts: str, **fields: Any) -> Targets:
    return Targets.begin(m.JobSpec(job="x", targets=tuple(map(parse_target, texts)), **fields))


def reached(metric: str, value: float, wanted: float, *, at_least: bool) -> dict[str, object]:
    fields = {"metric": metric, "value": value, "wanted": wanted, "at_least": at_least}
    return {"goal": "target", **fields}


def test_a_metric_is_the_mean_of_the_last_reports() -> None:
    job = targets("accuracy=0.9")
    job.take(0, {"loss": 0.1}, evaluated=False)
    assert job.reached() is None
    job.take(0, {"accuracy": 0.7}, evaluated=False)
    job.take(1, {"accuracy": 0.95}, evaluated=False)
    assert job.reached() is None, "one lucky worker is not enough"
    job.take(0, {"accuracy": 0.87}, evaluated=False)
    assert job.reached() == reached("accuracy", (0.95 + 0.87) / 2, 0.9, at_least=True)
    for worker in range(3):
        job.take(worker, {"accuracy": 0.9}, evaluated=False)
    assert job.reached() == reached("accuracy", 0.9, 0.9, at_least=True), "the mean is exact"


def test_an_evaluation_stands_for_all_workers() -> None:
    job = targets("accuracy=0.9")
    job.take(0, {"accuracy": 0.2}, evaluated=True)
    job.take(1, {"accuracy": 0.95}, evaluated=True)
    assert job.reached() == reached("accuracy", 0.95, 0.9, at_least=True)


def test_reports_of_a_worker_that_left_do_not_count() -> None:
    job = targets("accuracy=0.9")
    job.take(0, {"accuracy": 0.1}, evaluated=False)
    job.take(1, {"accuracy": 0.95}, evaluated=False)
    job.left(0)
    job.left(7)
    assert job.reached() == reached("accuracy", 0.95, 0.9, at_least=True)
    job.left(1)
    assert job.reached() is None


def test_a_loss_must_fall_to_its_target() -> None:
    job = targets("val_loss=0.3", "f1=0.9")
    job.take(0, {"val_loss": 0.31, "f1": 0.89}, evaluated=True)
    assert job.reached() is None
    job.take(0, {"val_loss": 0.3}, evaluated=True)
    assert job.reached() == reached("val_loss", 0.3, 0.3, at_least=False)


def test_the_objective_can_be_a_target() -> None:
    job = targets("objective=0.5")
    for objective in (None, 0.6, float("nan")):
        job.on_measured(objective)
        assert job.reached() is None
    job.on_measured(0.5)
    assert job.reached() == reached("objective", 0.5, 0.5, at_least=False)
    job.on_measured(None)
    assert job.reached() is not None, "a line without an objective forgets nothing"


def test_an_evaluation_that_lacks_a_target_is_told_once_with_the_reported_names() -> None:
    job = targets("val_los=0.3")
    news = job.take(0, {"val_loss": 0.5, "f1": 0.1}, evaluated=True)
    assert news is not None
    assert in_words(news) == (
        "--target names val_los, which no worker has reported yet; workers have reported f1, val_loss"
    )
    assert job.take(0, {"val_loss": 0.5}, evaluated=True) is None


def test_reports_that_lack_a_target_are_told_at_the_third_time() -> None:
    job = targets("val_loss=0.3")
    assert job.take(0, {"train_loss": 0.5}, evaluated=False) is None
    assert job.take(1, {"train_loss": 0.5}, evaluated=False) is None
    assert job.take(0, {"train_loss": 0.5}, evaluated=False) is None
    assert job.take(0, {"train_loss": 0.5}, evaluated=False) is not None


def test_it_is_told_that_nothing_is_reported_at_all() -> None:
    job = targets("accuracy=0.9")
    assert job.find_silence(29 * SECOND_NS) is None
    news = job.find_silence(30 * SECOND_NS)
    assert news is not None and in_words(news).endswith("workers have reported nothing")
    assert job.find_silence(31 * SECOND_NS) is None
    assert job.hopeless(100) is None, "it may still be reported: no other metric says how often"


def unreported(job: Targets, times: int) -> None:
    for _ in range(times):
        job.take(0, {"val_loss": 0.5}, evaluated=True)


def test_a_job_whose_only_target_is_never_reported_fails() -> None:
    job = targets("val_los=0.3")
    unreported(job, PATIENCE - 1)
    assert job.hopeless(2) is None
    unreported(job, 1)
    assert job.hopeless(1) is None, "it may be reported once per pass"
    for passes in (2, None):
        reason = job.hopeless(passes)
        assert reason is not None and reason.code == "target-missing"
    assert "no worker reports val_los, and workers report val_loss" in in_words(
        job.hopeless(2) or Reason("none")
    )


@pytest.mark.parametrize("goal", [{"epochs": 9}, {"rounds": 9}, {"max_seconds": 9.0}])
def test_a_job_with_another_goal_goes_on(goal: dict[str, Any]) -> None:
    job = targets("val_los=0.3", **goal)
    unreported(job, PATIENCE)
    assert job.hopeless(2) is None


@pytest.mark.parametrize("other", ["val_loss=0.1", "objective=0.1"])
def test_a_target_that_is_reported_is_another_goal(other: str) -> None:
    job = targets("val_los=0.3", other)
    job.on_measured(1.0)
    unreported(job, PATIENCE)
    assert job.hopeless(2) is None


def test_a_metric_that_appears_late_is_a_goal() -> None:
    job = targets("f1=0.9")
    unreported(job, PATIENCE)
    job.take(0, {"f1": 0.5}, evaluated=False)
    assert job.hopeless(2) is None
    job.left(0)
    assert job.hopeless(2) is None, "a name stays known"


def test_a_job_without_a_loss_cannot_reach_a_target_of_the_objective() -> None:
    job = targets("objective=0.9")
    for _ in range(PATIENCE):
        job.on_measured(None)
    assert job.hopeless(2) is not None


# -- the lead ----------------------------------------------------------------------------------


def trained(sync: str) -> tuple[Stage, list[Any]]:
    """Run 30 rounds of a job whose only target is a metric that no worker reports. Returns the
    effects of the lead."""
    stage = Stage(workers=1, sync=sync, targets=(parse_target("val_los=0.1"),)).begin()
    found: list[Any] = []
    for round_ in range(1, 31):
        report = m.Report(**stage.who(0), metrics={"val_loss": 1.0}, evaluated=True)
        found += stage.tell(report)
        found += stage.contribute(0, round_, round_)
        if sync == "bsp":
            found += stage.folded(round_)
    return stage, found


@pytest.mark.parametrize("sync", ["bsp", "asp"])
def test_the_lead_ends_a_job_whose_target_is_never_reported(sync: str) -> None:
    _, effects = trained(sync)
    notes = [effect for effect in effects if type(effect).__name__ == "Note"]
    assert [note.fields["fields"]["target"] for note in notes if note.what == "unreported"] == [
        "val_los"
    ]
    ends = [note for note in notes if note.what == "ended"]
    assert [(note.fields["reason"], note.fields["failed"]) for note in ends] == [
        ("target-missing", True)
    ]


def test_a_worker_with_too_many_names_is_refused() -> None:
    stage = Stage(workers=2, rounds=10).begin()
    for first in range(0, MOST_NAMES, m.MOST_METRICS):
        names = range(first, first + m.MOST_METRICS)
        stage.tell(m.Report(**stage.who(0), metrics={f"m{n}": 0.0 for n in names}))
    effects = stage.tell(m.Report(**stage.who(1), metrics={"m0": 0.0, "another": 0.0}))
    refused = [
        each.message for each in effects if isinstance(getattr(each, "message", None), m.Refusal)
    ]
    assert [message.reason.code for message in refused] == ["too-many-metrics"]
