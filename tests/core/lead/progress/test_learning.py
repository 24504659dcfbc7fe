"""The state of learning that the lead reports, for series of mean losses per pass of healthy and of
broken jobs."""

import random

import msgspec
import pytest

from polyrhythm.core.lead.progress.learning import (
    FAULTS,
    Learning,
    LearningState,
    Passes,
    RunningMean,
)
from polyrhythm.core.record import Record, RecordedMean
from polyrhythm.wire.messages import ContributionReport

FALLING, SETTLED, STALLED = LearningState.FALLING, LearningState.SETTLED, LearningState.STALLED
RISING, NOT_FINITE = LearningState.RISING, LearningState.NOT_FINITE
NAN, INF = float("nan"), float("inf")


S = 10**9


def begun(first: float, folds: int = 100, *, small_gains: bool = False) -> Learning:
    """A job whose first round had the objective `first`, after a number of folds."""
    learning = Learning.begin(small_gains=small_gains)
    learning.count(0, first, 96.0)
    for _ in range(folds):
        learning.on_folded(0)
    return learning


def states(
    *losses: float, first: float | None = None, error: float = 0.01, folds: int = 100
) -> list[LearningState]:
    """The state of learning that the lead reports after each pass."""
    learning, found = begun(losses[0] if first is None else first, folds), []
    for number, loss in enumerate(losses, 1):
        learning.on_pass(number, RunningMean(loss, error, 1440.0))
        found.append(learning.finding.state)
    return found


HEALTHY = {
    "digits under bsp": (2.304, 2.154, 1.114, 0.38, 0.226, 0.167, 0.14, 0.133, 0.109, 0.092, 0.089),
    "digits under ssp:4, with a late bump": (
        *(2.29, 1.993, 0.817, 0.578, 0.338, 0.195, 0.178, 0.137, 0.119, 0.136, 0.093, 0.082),
        *(0.079, 0.068, 0.057, 0.052, 0.049, 0.077, 0.058, 0.033),
    ),
    "digits under fsp: few steps, slow at first": (
        *(2.315, 2.308, 2.28, 2.257, 2.219, 2.18, 2.147, 2.112, 2.069, 2.031, 1.969, 1.914),
    ),
    "digits under bspb: one step per pass": (
        2.313,
        2.312,
        2.306,
        2.294,
        2.277,
        2.256,
        2.233,
        2.207,
    ),
    "a loss below zero": (-100.0, -300.0, -450.0, -520.0, -560.0, -590.0, -605.0),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_run_raises_no_alarm(name: str) -> None:
    first, *losses = HEALTHY[name]
    assert not FAULTS & set(states(*losses, first=first))


def test_noise_does_not_count_as_a_rise() -> None:
    """The standard error of 0.05 is that of a small data set of about a hundred points."""
    rng = random.Random(3)
    alarms = 0
    for _ in range(200):
        losses = [0.5 + 1.8 * 0.7**number + rng.gauss(0, 0.05) for number in range(1, 15)]
        alarms += bool(FAULTS & set(states(*losses, first=2.3, error=0.05)))
    assert alarms <= 2


@pytest.mark.parametrize("batches", [2, 4, 40])
def test_noise_counts_as_a_rise_in_no_more_than_one_healthy_run_of_fifty(batches: int) -> None:
    """A pass of two contributions says little about the noise of its own mean, and the best of
    thirty passes is better by chance."""
    rng, alarms, jobs = random.Random(7), 0, 100
    for _ in range(jobs):
        passes, learning = Passes(), Learning.begin()
        for at in range(30 * batches):
            loss = 0.3 + 2 * 0.6 ** (at / batches) + rng.gauss(0, 0.1)
            learning.count(0, loss, 64.0)
            passes.count(ContributionReport(weight=64.0, objective=loss), 64)
            learning.on_folded(at * S)
            found = passes.on_folded((at + 1) // batches, 64 * batches)
            if found is not None:
                learning.on_pass(found.passes, found.loss)
        alarms += learning.finding.rises > 0
    assert alarms <= jobs // 50


def test_digits_under_asp_without_its_own_contributions_rises() -> None:
    losses = (2.073, 2.105, 1.973, 2.277, 1.658, 1.869, 1.755, 1.751)
    assert states(*losses, first=2.29, error=0.02)[-3:] == [RISING] * 3


def test_a_model_that_diverges_late_rises() -> None:
    losses = (0.996, 0.134, 0.103, 0.09, 0.074, 0.094, 0.257, 0.804, 0.653, 0.4, 0.549)
    found = states(*losses, first=2.284, error=0.02)
    assert found[5] is FALLING and found[7:] == [RISING] * 4


def test_a_model_that_diverges_at_once_rises() -> None:
    assert states(7.0, 30.0, 1e9, first=2.3) == [RISING] * 3
    assert states(7.0, 30.0, 1e9, first=2.3, error=1e6) == [RISING] * 3, (
        "its errors explode as well"
    )


def test_after_every_rise_it_takes_longer_until_it_falls_again() -> None:
    once = states(1.0, 2.0, 0.9, first=3.0)
    assert once == [FALLING, RISING, FALLING]
    twice = states(1.0, 2.0, 0.9, 2.0, 0.8, 0.7, first=3.0)
    assert twice[3:] == [RISING, RISING, FALLING]


def test_a_model_that_learned_and_changes_no_more_has_settled() -> None:
    found = states(1.0, 0.3, 0.1, *[0.05] * 7, first=2.3)
    assert found[-1] is SETTLED and SETTLED not in found[:8]


def test_a_settled_objective_may_fall_again() -> None:
    found = states(1.0, *[0.5] * 7, 0.4, 0.3, first=2.3)
    assert found[7] is SETTLED and found[-1] is FALLING


def test_a_model_that_learned_nothing_has_stalled() -> None:
    assert states(2.303, 2.301, 2.302, 2.303, first=2.3) == [FALLING, FALLING, STALLED, STALLED]


def test_a_loss_that_has_fallen_and_changes_no_more_is_not_called_stalled() -> None:
    assert states(2.2, 2.1, *[2.03] * 8, first=2.37)[-1] is SETTLED


def test_a_few_folds_do_not_show_that_a_model_learns_nothing() -> None:
    assert set(states(*[2.3] * 9, first=2.3, folds=99)) == {FALLING}


def test_a_stalled_objective_is_reported_after_seconds_or_at_the_end() -> None:
    learning = begun(2.3)
    for number in range(1, 5):
        learning.on_pass(number, RunningMean(2.3, 0.01, 1440.0))
    assert learning.news(10 * S - 1) is None
    at_the_end = begun(2.3)
    at_the_end.on_pass(1, RunningMean(2.3, 0.01, 1440.0))
    assert at_the_end.news(1 * S, last=True) is None, "one pass does not show it"
    finding = learning.news(10 * S)
    assert finding is not None and finding.state is STALLED
    for number in range(2, 5):
        at_the_end.on_pass(number, RunningMean(2.3, 0.01, 1440.0))
    finding = at_the_end.news(1 * S, last=True)
    assert finding is not None and finding.state is STALLED


def test_an_exploded_model_that_is_back_where_it_began_has_not_converged() -> None:
    found = states(15.0, 4.0, 2.31, 2.3, 2.3, 2.3, 2.3, first=2.3)
    assert found[:2] == [RISING, RISING] and found[-1] is STALLED


def test_losses_that_are_not_finite_are_found_at_once() -> None:
    learning = Learning.begin()
    learning.count(0, 1.0, 1.0)
    assert learning.news(0) is None
    learning.count(1, NAN, 1.0)
    finding = learning.news(0)
    assert finding is not None and finding.state is NOT_FINITE and finding.workers == (1,)
    assert learning.unfinished and learning.news(0) is None


@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_a_pass_of_finite_losses_ends_the_alarm(value: float) -> None:
    learning = Learning.begin()
    learning.count(1, value, 1.0)
    learning.on_pass(1, RunningMean(value, NAN, 2.0))
    assert learning.finding.state is NOT_FINITE
    learning.count(1, 1.0, 1.0)
    assert not learning.unfinished and learning.finding.state is NOT_FINITE
    learning.on_pass(2, RunningMean(1.0, 0.1, 2.0))
    assert learning.finding.state is FALLING


def test_a_worker_that_left_does_not_leave_the_objective_unfinished() -> None:
    learning = Learning.begin()
    learning.count(1, NAN, 1.0)
    learning.left(1)
    assert not learning.unfinished


def test_without_an_objective_there_is_nothing_to_find() -> None:
    learning = Learning.begin()
    learning.on_folded(0)
    learning.on_pass(1, None)
    assert learning.news(0) is None and learning.finding.state is FALLING


def test_a_finding_carries_numbers() -> None:
    learning = begun(3.0, folds=1)
    for number, loss in enumerate((1.0, 2.0), 1):
        learning.on_pass(number, RunningMean(loss, 0.0, 10.0))
    finding = learning.news(0)
    assert finding is not None
    assert finding.fields() == {
        "state": "rising",
        "passes": 2,
        "objective": 2.0,
        "first": 3.0,
        "best": 1.0,
        "best_pass": 1,
        "rises": 1,
        "workers": [],
    }


def test_small_gains_of_statistics_count_as_convergence() -> None:
    """The inertia of KMeans falls by a little, and the job ends. The lead must not report this as a
    fault."""
    losses = [15.4, 15.1, 14.9, *[14.8] * 8]
    assert states(*losses)[-1] is STALLED
    learning = begun(losses[0], small_gains=True)
    for number, loss in enumerate(losses, 1):
        learning.on_pass(number, RunningMean(loss, 0.01, 1440.0))
    assert learning.finding.state is SETTLED


def test_a_resumed_model_that_had_learned_before_has_converged() -> None:
    """The checkpoint is from the end of training. The first losses of the resumed job are already
    low, so a small gain is no fault."""
    learning = Learning.begin(resumed=True)
    for _ in range(100):
        learning.count(0, 0.6, 96.0)
        learning.on_folded(0)
    for number in range(6, 16):
        learning.on_pass(number, RunningMean(0.6, 0.01, 1440.0))
    assert learning.finding.state is SETTLED


def test_noise_after_a_resume_is_measured_against_the_gain_of_the_whole_job() -> None:
    """The job has converged from 2.3 to 0.0004: that a pass is a third higher is no rise. Without the
    objective before training, it would be one."""
    before = Learning.begin()
    before.count(0, 2.3, 96.0)
    before.on_folded(0)
    record = Record(number=1, round=100, first=before.first)
    for recorded, expected in ((record, 0), (msgspec.structs.replace(record, first=None), 1)):
        learning = Learning.begin(resumed=True)
        learning.resume(recorded)
        for number, loss in enumerate((4e-4, 5.5e-4, 4e-4, 5.5e-4), 6):
            learning.on_pass(number, RunningMean(loss, 1e-5, 1440.0))
        assert (learning.finding.rises > 0) == expected
    assert before.finding.first == 2.3


def test_a_resumed_model_that_diverges_is_reported() -> None:
    learning = Learning.begin(resumed=True)
    learning.resume(Record(number=1, round=100, first=RecordedMean(2.3, 96.0)))
    for number, loss in enumerate((4e-4, 0.9), 6):
        learning.on_pass(number, RunningMean(loss, 1e-5, 1440.0))
    assert learning.finding.state is RISING


def test_a_worker_stays_reported_until_its_own_objective_is_finite() -> None:
    """Worker 3 has not contributed since, while the others have made a full pass."""
    learning = Learning.begin()
    learning.count(3, NAN, 1.0)
    learning.count(1, 1.0, 1.0)
    learning.on_pass(1, RunningMean(1.0, 0.0, 1.0))
    assert (learning.finding.state, learning.finding.workers) == (NOT_FINITE, (3,))
    learning.count(3, 1.0, 1.0)
    learning.on_pass(2, RunningMean(1.0, 0.0, 1.0))
    assert learning.finding.state is not NOT_FINITE
