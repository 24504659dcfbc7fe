"""PSP's plan: when it is kept, when it is replaced, and which step times are refused."""

import random

import pytest

from polyrhythm.core.sync.barrier.prediction import (
    Prediction,
    overall_usage,
    plan_steps,
    resource_usage,
)


def told(times_ms: list[float], **options: int) -> Prediction:
    prediction = Prediction(**options)
    tell(prediction, times_ms)
    return prediction


def tell(prediction: Prediction, times_ms: list[float]) -> None:
    for worker, time_ms in enumerate(times_ms):
        prediction.on_measured(worker, round(time_ms * 1e6))


def test_step_times_without_a_common_multiple_get_a_plan() -> None:
    plan = plan_steps({0: 1.0, 1: 1.9, 2: 3.1})
    assert plan.steps == {0: 6, 1: 3, 2: 2}
    assert plan.horizon == pytest.approx(6.2)
    assert plan.utilisation == pytest.approx((6 + 5.7 + 6.2) / (3 * 6.2))


def test_one_worker_and_equal_workers_meet_after_every_step() -> None:
    assert plan_steps({7: 0.3}).steps == {7: 1}
    assert set(plan_steps(dict.fromkeys(range(50), 12.5)).steps.values()) == {1}


def test_without_workers_the_plan_is_empty() -> None:
    assert plan_steps({}).steps == {}
    assert Prediction().steps() == {}


def test_the_cap_bounds_the_steps_of_the_fastest() -> None:
    times = {0: 1.0, 1: 1.01}
    assert plan_steps(times, cap=8).steps[0] <= 8
    assert plan_steps(times, cap=8).cap == 8


def test_a_cap_below_the_ratio_of_speeds_is_raised() -> None:
    plan = plan_steps({0: 1.0, 1: 20.5}, cap=10)
    assert plan.cap == 21
    assert plan.steps == {0: 20, 1: 1}


@pytest.mark.parametrize("time", [0.0, -1.0, float("nan"), float("inf")])
def test_a_step_time_that_is_not_positive_and_finite_is_refused(time: float) -> None:
    with pytest.raises(ValueError, match="w3"):
        plan_steps({1: 1.0, 3: time})


def test_each_worker_makes_one_step_until_all_were_measured() -> None:
    prediction = told([1, 2])
    prediction.expect(2)
    assert prediction.steps() == {0: 1, 1: 1, 2: 1}
    prediction.on_measured(2, 3_000_000)
    assert prediction.steps() == {0: 6, 1: 3, 2: 2}


def test_a_worker_that_left_is_not_in_the_plan() -> None:
    prediction = told([1, 1, 3])
    assert prediction.steps() == {0: 3, 1: 3, 2: 1}
    prediction.forget(2)
    prediction.forget(2)
    assert prediction.steps() == {0: 1, 1: 1}


def test_a_step_of_zero_nanoseconds_is_accepted() -> None:
    assert told([0, 0]).steps() == {0: 1, 1: 1}


def test_all_meet_often_again_after_the_one_slow_worker_has_recovered() -> None:
    prediction = told([1.0] * 200 + [60.0])
    assert prediction.steps()[0] == 60
    for _ in range(5):
        tell(prediction, [1.0] * 201)
        steps = prediction.steps()
    assert set(steps.values()) == {1}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("times_ms", [[1, 2, 3], [1, 1, 3], [1, 1.3, 1.7, 2.9], [1, 2.2, 5.1, 8]])
def test_noise_of_5_percent_seldom_changes_the_plan(times_ms: list[float], seed: int) -> None:
    noise = random.Random(seed)
    prediction = Prediction()
    changes, last = 0, None
    for _ in range(200):
        tell(prediction, [time_ms * noise.gauss(1, 0.05) for time_ms in times_ms])
        steps = prediction.steps()
        changes += steps != last
        last = steps
    assert changes <= 5


def test_a_plan_is_kept_within_10_percent_of_the_best_and_replaced_below() -> None:
    prediction = told([1, 1, 3])
    kept = prediction.steps()
    for _ in range(5):
        tell(prediction, [1, 1, 3.3])
    assert prediction.steps() == kept
    for _ in range(5):
        tell(prediction, [1, 1, 4])
    assert prediction.steps() == {0: 4, 1: 4, 2: 1}


def test_without_times_the_usage_is_1() -> None:
    assert resource_usage([]) == overall_usage([], []) == 1.0


def test_a_plan_for_ten_thousand_workers_is_computed() -> None:
    chance = random.Random(1)
    plan = plan_steps({worker: chance.uniform(1, 10) for worker in range(10_000)})
    assert plan.utilisation > 0.9
