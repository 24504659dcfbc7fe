"""FSP's interval: what is measured, what is chosen, when it is measured anew, and what is said."""

from itertools import pairwise

import pytest
from training import MS, Training, line, peak

from polyrhythm.core.sync.interval import (
    AutoInterval,
    BinaryInterval,
    FixedInterval,
    Interval,
    Measured,
    Terms,
    parse_interval,
)
from polyrhythm.errors import UsageError


def lengths_ms(rounds: list[Terms]) -> list[float]:
    return [terms.interval_ns / MS for terms in rounds]


# -- auto ------------------------------------------------------------------------------------------


def test_measuring_undoes_nothing_and_reads_at_the_ends_of_its_three_parts() -> None:
    training = Training(line(-2, 1))
    rounds, reason = training.until(AutoInterval(), "interval-chosen")
    assert lengths_ms(rounds) == [200, 200, 200, 400, 200, 200, 200]
    assert [terms.probe for terms in rounds] == [False, True, False, True, True, False, True]
    assert reason.fields["before_ms"] == 200


def test_parts_can_be_made_longer_where_readings_are_noisy() -> None:
    training = Training(line(-2, 1))
    interval = AutoInterval(repeat=2)
    rounds, _ = training.until(interval, "interval-chosen")
    assert lengths_ms(rounds) == [200, *[200] * 4, *[400] * 2, *[200] * 4, 200]
    assert [at for at, terms in enumerate(rounds) if terms.probe] == [1, 5, 7, 11]
    assert interval.next().interval_ns / 1e9 == pytest.approx(peak(-2, 1, 0.02), rel=1e-6)


@pytest.mark.parametrize("trend", [0.0, -0.2, 0.3])
@pytest.mark.parametrize(("a", "b"), [(-2.0, 1.0), (-0.5, 3.0), (-6.0, 4.0)])
def test_the_best_interval_is_found_whatever_the_trend_of_training(
    a: float, b: float, trend: float
) -> None:
    training = Training(line(a, b, trend))
    interval = AutoInterval()
    training.until(interval, "interval-chosen")
    # The line is seen at the moment of the middle part: 0.2 s, then 2 eta and half of 2 eta.
    seen_b = b + trend * (0.2 + 0.4 + 0.2)
    assert interval.next().interval_ns / 1e9 == pytest.approx(peak(a, seen_b, 0.02), rel=1e-6)


def test_a_stage_moves_the_interval_by_a_factor_of_four_at_most() -> None:
    far_up, far_down = Training(line(1, 1)), Training(line(-9, 20), phi_ns=10_000)
    for training, found_ms in ((far_up, 800), (far_down, 50)):
        interval = AutoInterval()
        training.until(interval, "interval-chosen")
        assert interval.next().interval_ns == found_ms * MS


def test_stage_by_stage_it_comes_to_the_full_pass() -> None:
    training = Training(lambda eta, worked_s: (1 + eta) / (1 + worked_s), pass_ns=5_000 * MS)
    interval = AutoInterval()
    for found_ms in (800, 3200, 5000, 5000):
        training.until(interval, "interval-chosen")
        assert interval.next().interval_ns == found_ms * MS


@pytest.mark.parametrize(
    ("phi_ns", "micro_ns", "low_ms"), [(5 * MS, 60 * MS, 120), (90 * MS, 1 * MS, 90)]
)
def test_it_is_never_shorter_than_the_barrier_or_two_micro_batches(
    phi_ns: int, micro_ns: int, low_ms: int
) -> None:
    training = Training(line(-900, 1), phi_ns=phi_ns, micro_ns=micro_ns)
    interval = AutoInterval()
    training.until(interval, "interval-chosen")
    assert interval.next().interval_ns == low_ms * MS


def test_both_lengths_that_are_tried_fit_into_a_pass() -> None:
    training = Training(line(-2, 1), pass_ns=150 * MS)
    rounds, _ = training.until(AutoInterval(), "interval-chosen")
    assert lengths_ms(rounds) == [200, 75, 75, 150, 75, 75, 75]


def test_a_pass_shorter_than_the_barrier_leaves_nothing_to_choose() -> None:
    training = Training(line(-2, 1), phi_ns=50 * MS, pass_ns=10 * MS)
    interval = AutoInterval()
    training.until(interval, "interval-chosen")
    assert interval.next().interval_ns == 50 * MS


def test_a_stage_that_keeps_its_promise_goes_on() -> None:
    training = Training(line(-2, 1))
    interval = AutoInterval()
    training.until(interval, "interval-chosen")
    said = [training.round(interval)[1] for _ in range(200)]
    assert said == [None] * 200


def test_a_stage_is_over_after_three_checks_in_a_row_under_80_percent() -> None:
    training = Training(line(-2, 1))
    interval = AutoInterval()
    training.until(interval, "interval-chosen")
    training.rate = line(-2 * 0.75, 1 * 0.75)
    rounds, reason = training.until(interval, "interval-stage-over")
    assert len(rounds) == 1 + 3 * 4
    assert reason.fields["gain"] == pytest.approx(0.75 * reason.fields["promised"], rel=1e-4)
    rounds, _ = training.until(interval, "interval-chosen")
    assert len(rounds) == 6


def test_one_good_check_between_two_bad_ones_saves_the_stage() -> None:
    training = Training(line(-2, 1))
    interval = AutoInterval()
    training.until(interval, "interval-chosen")
    good, bad = line(-2, 1), line(-1, 0.5)
    for check in range(30):
        training.rate = good if check % 3 == 2 else bad
        assert [training.round(interval)[1] for _ in range(4)] == [None] * 4


def test_dearer_barriers_break_the_promise_too() -> None:
    training = Training(line(-2, 1))
    interval = AutoInterval()
    training.until(interval, "interval-chosen")
    before = interval.next().interval_ns
    training.phi_ns *= 4
    training.until(interval, "interval-stage-over")
    training.until(interval, "interval-chosen")
    assert interval.next().interval_ns > before


def test_a_barrier_that_outgrows_the_interval_raises_it_at_once() -> None:
    training = Training(line(-2, 1))
    interval = AutoInterval()
    training.until(interval, "interval-chosen")
    training.phi_ns = 900 * MS
    _, reason = training.until(interval, "interval-raised")
    assert interval.next().interval_ns / MS == reason.fields["interval_ms"]


@pytest.mark.parametrize("missing", [None, float("nan"), float("inf")])
@pytest.mark.parametrize("make", [AutoInterval, BinaryInterval])
def test_without_an_objective_the_barrier_costs_a_tenth(
    make: type[AutoInterval] | type[BinaryInterval], missing: float | None
) -> None:
    training = Training(line(-2, 1), phi_ns=50 * MS, objective=missing)
    interval = make()
    training.until(interval, "interval-blind")
    assert interval.next().interval_ns == 500 * MS
    assert [training.round(interval)[1] for _ in range(40)] == [None] * 40
    training.phi_ns = 2 * MS
    training.until(interval, "interval-blind", most=5)
    for _ in range(5):
        training.round(interval)
    assert 200 * MS <= interval.next().interval_ns <= 250 * MS


@pytest.mark.parametrize("make", [AutoInterval, BinaryInterval])
def test_an_objective_that_comes_later_is_used(
    make: type[AutoInterval] | type[BinaryInterval],
) -> None:
    training = Training(line(-2, 1), objective=None)
    interval = make()
    training.until(interval, "interval-blind")
    training.objective = 50.0
    training.until(interval, "interval-measuring", most=4)
    training.until(interval, "interval-chosen", most=30)


# -- binary ----------------------------------------------------------------------------------------


def test_binary_halves_from_a_full_pass_and_goes_back_at_the_reversal() -> None:
    training = Training(line(-2, 5), phi_ns=100 * MS, pass_ns=2_000 * MS)
    interval = BinaryInterval()
    rounds, reason = training.until(interval, "interval-chosen")
    gains = {ms: training.rate(ms / 1e3, 0) * ms / (ms + 100) for ms in (2000, 1000, 500, 250)}
    assert max(gains, key=lambda ms: gains[ms]) == 500
    assert lengths_ms(rounds) == [200, 2000, 1000, 1000, 500, 500, 250, 250, 125]
    assert interval.next() == Terms(500 * MS, probe=False)
    assert reason.fields["gain"] == pytest.approx(gains[500])


def test_binary_stops_at_the_barriers_cost() -> None:
    training = Training(line(-900, 1), pass_ns=2_000 * MS, phi_ns=300 * MS)
    interval = BinaryInterval()
    training.until(interval, "interval-chosen")
    assert interval.next().interval_ns == 500 * MS
    training.phi_ns = 600 * MS
    training.until(interval, "interval-raised")


def test_a_pass_shorter_than_the_barrier_is_no_bound_for_binary_either() -> None:
    training = Training(line(-2, 1), phi_ns=50 * MS, pass_ns=10 * MS)
    interval = BinaryInterval()
    training.until(interval, "interval-measuring")
    assert interval.next().interval_ns == 50 * MS


def test_binary_mistakes_the_trend_of_training_for_the_interval_and_auto_does_not() -> None:
    def rate(eta: float, worked_s: float) -> float:
        return max(0.0, 5 - 0.8 * worked_s) * (1 - 0.4 * eta)

    found = {}
    for make in (AutoInterval, BinaryInterval):
        training = Training(rate, phi_ns=20 * MS, pass_ns=2_000 * MS)
        interval = make()
        training.until(interval, "interval-chosen")
        found[make] = interval.next().interval_ns / 1e9
    best = peak(-0.4, 1, 0.02)
    assert abs(found[AutoInterval] - best) < 0.2 * best
    assert found[BinaryInterval] > 2 * best


# -- fixed -----------------------------------------------------------------------------------------


def test_a_fixed_interval_stays_as_asked() -> None:
    interval = FixedInterval(250 * MS)
    assert interval.next() == Terms(250 * MS, probe=False)
    assert interval.closed(Measured(250 * MS, 20 * MS)) is None
    assert interval.next() == Terms(250 * MS, probe=False)


def test_a_fixed_interval_below_the_barriers_cost_is_raised_and_comes_back() -> None:
    training = Training(line(-2, 1), phi_ns=40 * MS)
    interval = FixedInterval(10 * MS)
    _, reason = training.until(interval, "interval-raised")
    assert str(reason) == "the interval is raised to 40.0 ms: a barrier alone takes 40.0 ms"
    assert interval.next().interval_ns == 40 * MS
    training.phi_ns = 35 * MS
    assert [training.round(interval)[1] for _ in range(20)] == [None] * 20
    training.phi_ns = 1 * MS
    training.until(interval, "interval-restored")
    assert interval.next().interval_ns == 10 * MS


# -- text ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "kind"), [("auto", AutoInterval), ("binary", BinaryInterval), ("250ms", FixedInterval)]
)
def test_what_people_write(text: str, kind: type[Interval]) -> None:
    assert isinstance(parse_interval(text), kind)


def test_a_length_is_taken_as_it_is() -> None:
    assert parse_interval(" 1.5s ").next().interval_ns == 1500 * MS


@pytest.mark.parametrize("text", ["", "0ms", "-5ms", "250", "fast", "auto:3", "nans"])
def test_anything_else_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(UsageError) as refusal:
        parse_interval(text)
    assert "auto, binary or 250ms" in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_every_change_has_a_reason() -> None:
    training = Training(lambda eta, worked_s: (3 - eta) / (1 + worked_s))
    interval = AutoInterval()
    told = [training.round(interval) for _ in range(300)]
    stages = sum(reason is not None and reason.code == "interval-chosen" for _, reason in told)
    assert stages > 2
    for (terms, reason), (following, _) in pairwise(told):
        ratio = following.interval_ns / terms.interval_ns
        assert reason is not None or ratio in (0.5, 1.0, 2.0)


@pytest.mark.parametrize(("phi_ms", "low_ms"), [(2, 78), (3, 117), (10, 250), (300, 300)])
def test_what_people_get_leaves_barriers_a_fortieth_where_250_ms_can_give_it(
    phi_ms: int, low_ms: float
) -> None:
    training = Training(line(-900, 1), phi_ns=phi_ms * MS)
    interval = parse_interval("auto")
    training.until(interval, "interval-chosen")
    assert interval.next().interval_ns / MS == pytest.approx(low_ms, rel=1e-3)


def test_one_hiccup_moves_nothing() -> None:
    training = Training(line(-2, 1))
    interval = AutoInterval()
    training.until(interval, "interval-chosen")
    before = interval.next().interval_ns
    training.phi_ns, usual_ns = 900 * MS, training.phi_ns
    assert training.round(interval)[1] is None
    training.phi_ns, training.micro_ns = usual_ns, 700 * MS
    assert training.round(interval)[1] is None
    assert interval.next().interval_ns == before


def test_binary_halves_what_can_be_worked_not_what_was_allowed() -> None:
    """Nobody knows how long a pass takes before somebody has asked for the barrier."""
    interval = BinaryInterval()
    assert interval.closed(Measured(200 * MS, 2 * MS)) is not None
    assert interval.next().interval_ns == 60_000 * MS
    interval.closed(Measured(2_000 * MS, 2 * MS, 1.0, 4 * MS, pass_ns=2_000 * MS))
    assert interval.next().interval_ns == 1_000 * MS
