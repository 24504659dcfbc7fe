"""No other interval gains more than the one that `best_interval` finds."""

from statistics import median_low

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from polyrhythm.core.sync.interval.fixed import AutoInterval, BinaryInterval, Measured
from polyrhythm.core.sync.interval.gain import Line, best_interval
from polyrhythm.observe.reasons import in_words

SLOPES = st.floats(-1e3, 1e3).filter(lambda a: a == 0 or abs(a) > 1e-6)
GAINS = st.floats(-1e3, 1e3).filter(lambda b: b == 0 or abs(b) > 1e-6)
BARRIERS = st.floats(1e-4, 10)


@given(st.floats(-1e3, -1e-6), st.floats(1e-6, 1e3), BARRIERS)
def test_no_other_interval_beats_the_peak(a: float, b: float, phi: float) -> None:
    eta = best_interval(a, b, phi)
    assert eta is not None and eta > 0
    line = Line(a, b)
    top = line.gain(eta, phi)
    for step in range(-30, 31):
        other = eta * 1.1**step
        assert line.gain(other, phi) <= top + 1e-9 * abs(top)


@given(SLOPES, GAINS, BARRIERS)
def test_without_a_peak_the_best_interval_is_zero_or_none(a: float, b: float, phi: float) -> None:
    assume(not a < 0 < b)
    assert best_interval(a, b, phi) == (None if a >= 0 else 0.0)


def test_the_shortest_interval_is_best_if_barriers_cost_nothing() -> None:
    assert best_interval(-1.0, 1.0, 0.0) == 0.0


@given(SLOPES, GAINS, BARRIERS, st.floats(1e-3, 10), st.floats(1, 100))
def test_within_bounds_no_interval_is_better(
    a: float, b: float, phi: float, low: float, factor: float
) -> None:
    line, high = Line(a, b), low * factor
    eta = line.best_within(low, high, phi)
    assert low <= eta <= high
    top = line.gain(eta, phi)
    for step in range(41):
        other = low * factor ** (step / 40)
        assert line.gain(other, phi) <= top + 1e-9 * (abs(top) + abs(line.gain(other, phi)))


@given(st.floats(0.01, 10), st.floats(-50, 50), st.floats(-50, 50), st.floats(0.01, 10))
def test_a_line_goes_through_its_points(x: float, y: float, y2: float, more: float) -> None:
    line = Line.through((x, y), (x + more, y2))
    assert line.a * x + line.b == pytest.approx(y, abs=1e-6)
    assert line.a * (x + more) + line.b == pytest.approx(y2, abs=1e-6)


READINGS = st.floats(-1e6, 1e6)


def measured_rounds(objective: st.SearchStrategy[float | None]) -> st.SearchStrategy[Measured]:
    return st.builds(
        Measured,
        interval_ns=st.integers(0, 10**10),
        phi_ns=st.integers(0, 10**9),
        objective=objective,
        micro_ns=st.integers(0, 10**8),
        pass_ns=st.none() | st.integers(1, 10**11),
        batches=st.just(0.0) | st.floats(1e-6, 1e6),
    )


ROUNDS = measured_rounds(st.none() | READINGS | st.just(float("nan")))


@pytest.mark.parametrize("make", [AutoInterval, BinaryInterval])
def test_the_interval_stays_within_bounds_for_any_measurements(
    make: type[AutoInterval] | type[BinaryInterval],
) -> None:
    @given(st.lists(ROUNDS, max_size=60))
    def run(rounds: list[Measured]) -> None:
        interval = make()
        for measured in rounds:
            reason = interval.on_closed(measured)
            assert reason is None or in_words(reason)
            assert 1 <= interval.next().interval_ns <= 2 * 10**11

    run()


@given(st.lists(measured_rounds(READINGS), min_size=35, max_size=60))
def test_the_chosen_interval_is_between_the_barrier_and_a_pass(rounds: list[Measured]) -> None:
    interval, phis, micros = AutoInterval(), [], []
    for measured in rounds:
        phis = [*phis[-4:], measured.phi_ns]
        if measured.micro_ns:  # 0 means unknown
            micros = [*micros[-4:], measured.micro_ns]
        reason = interval.on_closed(measured)
        if reason is not None and reason.code == "interval-chosen":
            low_ns = max(1, median_low(phis), 2 * median_low(micros or [0]))
            high_ns = max(low_ns, measured.pass_ns or 60 * 10**9)
            assert low_ns <= interval.next().interval_ns <= high_ns
