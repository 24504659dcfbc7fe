"""PSP's plan of steps, compared with a brute-force search over every horizon (the time until the
next barrier) and every worker."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrhythm.core.sync.barrier.prediction import plan_steps, resource_usage

CAPS = st.integers(1, 40)
NEAR_BEST = Fraction(95, 100)


def spoken(times: list[Fraction], cap: int) -> tuple[list[int], Fraction]:
    """The steps per worker within the shortest horizon whose utilisation is within 5% of the best
    one, and the best utilisation."""
    cap = max(cap, -(-max(times) // min(times)))
    limit = cap * min(times)
    horizons = {time * count for time in times for count in range(1, int(limit // time) + 1)}
    usages = {}
    for horizon in horizons:
        if horizon >= max(times):
            lengths = [horizon // time * time for time in times]
            usages[horizon] = sum(lengths) / (len(times) * max(lengths))
    best = max(usages.values())
    chosen = min(horizon for horizon, usage in usages.items() if usage >= NEAR_BEST * best)
    return [int(chosen // time) for time in times], best


@given(st.lists(st.integers(100, 999), min_size=1, max_size=6), CAPS)
def test_step_times_of_three_digits_get_the_exact_plan(times: list[int], cap: int) -> None:
    plan = plan_steps(dict(enumerate(times)), cap)
    steps, best = spoken([Fraction(time) for time in times], cap)
    near = [Fraction(count * time) for count, time in zip(steps, times, strict=True)]
    if sum(near) != NEAR_BEST * best * len(near) * max(near):
        assert list(plan.steps.values()) == steps
    assert plan.best == pytest.approx(float(best))


@given(st.lists(st.floats(1e-3, 1e9), min_size=1, max_size=6), CAPS)
def test_any_step_times_get_a_plan_near_the_best(times: list[float], cap: int) -> None:
    plan = plan_steps(dict(enumerate(times)), cap)
    lengths = [plan.steps[worker] * time for worker, time in enumerate(times)]
    assert min(plan.steps.values()) >= 1
    assert plan.horizon == max(lengths)
    assert plan.utilisation == resource_usage(lengths)
    assert plan.utilisation >= 0.95 * plan.best - 0.01
    fastest = times.index(min(times))
    assert plan.steps[fastest] <= plan.cap


@given(
    st.lists(st.floats(1, 50), min_size=1, max_size=5),
    st.floats(1e-3, 1e6),
)
def test_a_plan_depends_only_on_the_ratios_of_step_times(times: list[float], unit: float) -> None:
    plan = plan_steps(dict(enumerate(times)))
    other = plan_steps({worker: time * unit for worker, time in enumerate(times)})
    assert other.utilisation == pytest.approx(plan.utilisation, abs=0.07)
