"""Which rounds count towards a goal, and when a job cannot reach its goal any more."""

from typing import Any

import pytest

from polyrhythm.core.lead.progress.progress import (
    IDLE_ROUNDS,
    CountedSteps,
    RoundEquivalents,
)
from polyrhythm.core.lead.state import begin_state, connect, decode_state, encode_state
from polyrhythm.core.machine import Effect, Reason
from polyrhythm.core.record import Record, RecordedChunk, RecordedWorker
from polyrhythm.core.seat import FIRST_SEAT
from polyrhythm.observe.reasons import in_words
from polyrhythm.wire.messages import ContributionReport, JobSpec, Progress, Trailer


class Job:
    def __init__(self, **job: object) -> None:
        spec = JobSpec(job="j", **job)
        self.spec, self.state = spec, begin_state(spec)
        parts = connect(spec, self.state, FIRST_SEAT)
        self.effects: list[Effect] = parts.outbox.out
        self.progress = parts.progress
        self.round = -1
        self.reason = Reason("none")

    def fold(self, code: str = "all-arrived", contributions: int = 1) -> Reason | None:
        for _ in range(contributions):
            self.progress.count(Trailer(worker=0, report=ContributionReport(weight=1.0)), 1, 1)
        self.round, self.reason = self.round + 1, Reason(code, {"missing": [1]})
        return self.progress.on_folded(self.round, self.reason, 1)

    def stuck(self) -> Reason | None:
        return self.progress.stuck(self.round, self.reason)


def test_the_goal_is_reached_after_as_many_folds_as_rounds() -> None:
    job = Job(rounds=2)
    assert [job.fold("opened"), job.fold()] == [None, None]
    assert in_words(job.fold()) == "the job reached its goal: 2 rounds"


def test_without_rounds_one_contribution_per_member_counts_as_a_round() -> None:
    equivalents, done = RoundEquivalents(), []
    for _ in range(4):
        equivalents.advance(2)
        done.append(equivalents.done)
    assert done == [0, 1, 1, 2]


def test_a_job_cannot_reach_its_passes_if_no_worker_uses_batches() -> None:
    job = Job(epochs=1)
    job.fold("opened", 0)
    assert job.stuck() is None, "no worker has contributed yet"
    job.fold()
    assert job.stuck() == Reason("no-batches")
    assert not Job(epochs=1, rounds=5).progress.no_batches
    assert Job(target_change=0.1).progress.no_batches, "the change is checked once per pass"
    assert not Job(max_seconds=1.0).progress.no_batches


def test_a_change_of_the_objective_within_a_pass_is_not_a_goal() -> None:
    """Every round updates the objective in the journal, but no pass ends, so `target_change` does
    not end the job."""
    job = Job(target_change=0.5, rounds=100)
    job.fold("opened", 0)
    for round_ in range(1, 100):
        job.progress.count(
            Trailer(worker=0, report=ContributionReport(weight=1.0, objective=1.0)), 1, round_
        )
        assert job.fold("timer", 0) is None


@pytest.mark.parametrize(("code", "ends"), [("all-arrived", True), ("timer", False)])
def test_rounds_in_which_every_member_abstains_end_the_job(code: str, ends: bool) -> None:
    job = Job(max_seconds=60.0)
    job.fold("opened", 0)
    seen = []
    for _ in range(IDLE_ROUNDS):
        job.fold(code, 0)
        seen.append(job.stuck())
    assert seen[:-1] == [None] * (IDLE_ROUNDS - 1)
    assert (seen[-1] is not None) is ends


def test_a_contribution_resets_the_count_of_idle_rounds() -> None:
    job = Job(max_seconds=60.0)
    job.fold("opened", 0)
    for contributions in (0, 0, 1, 0, 0):
        job.fold(contributions=contributions)
        assert job.stuck() is None


def test_points_count_also_without_a_data_set() -> None:
    job = Job(points=5)
    assert [job.fold("opened", 0), job.fold(contributions=2), job.fold(contributions=2)] == [
        None
    ] * 3
    assert job.progress.told() == Progress(points=4, data_set=0, share=0.8, steps=4.0)
    assert in_words(job.fold()) == "the job reached its goal: 5 points"


@pytest.mark.parametrize(
    "record",
    [
        # 10 points visited twice and 3 of them once more, and 5 points visited once
        {"chunks": (RecordedChunk(0, 10, 2, 3), RecordedChunk(10, 15, 1, 0)), "points": 15},
        # no data set
        {"workers": tuple(RecordedWorker(name=str(n), number=n, points=14) for n in range(2))},
    ],
)
def test_points_before_a_resume_count_on(record: dict[str, Any]) -> None:
    job = Job(points=30)
    job.progress.resume(Record(number=1, round=4, **record))
    assert job.progress.told().points == 28
    assert job.fold("opened") is None
    assert in_words(job.fold()) == "the job reached its goal: 30 points"


def test_a_step_of_the_job_is_a_batch_of_each_worker() -> None:
    """A contribution has two steps, or three parts of batches that are worth one and a half."""
    steps = CountedSteps(4)
    steps.count(ContributionReport(steps=2))
    steps.count(ContributionReport(steps=3, whole_steps=1.5))
    assert steps.now == 3.5 / 4
    steps.count(ContributionReport(steps=1, whole_steps=1e50))
    assert steps.now == 4.5 / 4, "no step is worth more than one over a whole batch"


def test_a_resumed_job_counts_steps_of_as_many_batches_as_before() -> None:
    """The schedule was written for the number of workers with which the job first began."""
    steps = CountedSteps(6)
    steps.resume(Record(number=1, round=60, steps=64.0, step_workers=3))
    assert steps.now == 64.0
    steps.count(ContributionReport(steps=3))
    assert steps.now == 65.0
    old = CountedSteps(2)
    old.resume(Record(number=1, round=60, part=0.5))
    assert old.now == 60.5, "a checkpoint of an earlier version"


def test_a_snapshot_is_made_and_read_whatever_workers_report() -> None:
    job, most = Job(rounds=2), 2**53
    report = ContributionReport(
        weight=float(most),
        compute_ns=most,
        wait_ns=most,
        transfer_ns=most,
        abandoned_ns=most,
        skipped=most,
        nbytes=most,
    )
    for _ in range(2**11):
        job.progress.count(Trailer(worker=0, report=report), 2**32, 1)
    state = decode_state(job.spec, encode_state(job.state))
    assert state.progress.accounting.workers[0].wait_ns == 2**63 - 1
    job.progress.count(Trailer(worker=0, report=report), most, 1)
    assert job.progress.told().points == most, "workers read no larger number"
