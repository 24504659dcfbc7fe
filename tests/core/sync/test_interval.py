"""FSP's interval: trials, the chosen length, the end of a stage, and the reasons for changes."""

import random
from itertools import pairwise

import pytest

from polyrhythm.core.machine import Reason
from polyrhythm.core.sync.interval.fixed import (
    AutoInterval,
    BinaryInterval,
    FixedInterval,
    Interval,
    IntervalTerms,
    Measured,
    parse_interval,
)
from polyrhythm.core.sync.registry import choose_policy
from polyrhythm.errors import UsageError
from polyrhythm.observe.reasons import in_words
from polyrhythm.wire.messages import JobSpec
from tests.core.training import MS, Training, line, peak


def lengths_ms(rounds: list[IntervalTerms]) -> list[float]:
    return [terms.interval_ns / MS for terms in rounds]


# -- auto ------------------------------------------------------------------------------------------


WARM_UP_MS = [10, 10, 20, 40, 80, 160]
MEASURING = 4 * (4 + 2) + 4 + 1
"""The number of rounds of a trial: four times 4 short rounds and 2 long ones, then 4 short ones,
and one more that measures the objective at the end."""


def test_auto_starts_with_the_interval_in_which_each_worker_visits_one_batch() -> None:
    for batch_ms, warm_up_ms in ((200, WARM_UP_MS), (13, [10, 10, 13, 13, 13])):
        training = Training(line(-2, 1), batch_ns=batch_ms * MS, phi_ns=2 * MS)
        interval = AutoInterval()
        rounds, _ = training.until(interval, "interval-measuring")
        assert lengths_ms(rounds) == warm_up_ms
        assert interval.next().interval_ns == batch_ms * MS


def test_a_round_that_was_disturbed_does_not_lengthen_the_start() -> None:
    """Two rounds of the warm-up visit only a tenth of their usual points."""
    training = Training(line(-2, 1), batch_ns=13 * MS, phi_ns=2 * MS)
    interval = AutoInterval()
    for disturbed in (False, True, True, False, False):
        training.batch_ns = 130 * MS if disturbed else 13 * MS
        _, reason = training.round(interval)
    assert reason is not None and reason.code == "interval-measuring"
    assert interval.next().interval_ns == 13 * MS


def test_a_trial_measures_the_objective_where_the_length_changes() -> None:
    training = Training(line(-2, 1))
    rounds, reason = training.until(AutoInterval(), "interval-chosen")
    rounds = rounds[len(WARM_UP_MS) :]
    assert lengths_ms(rounds) == [*([200] * 4 + [400] * 2) * 4, *[200] * 4, 200]
    ends = [at for at, terms in enumerate(rounds) if terms.probe]
    assert ends == [0, 4, 6, 10, 12, 16, 18, 22, 24, 28]
    assert reason.fields["before_ms"] == 200


def test_measuring_the_objective_takes_at_most_a_tenth_of_the_time() -> None:
    interval = AutoInterval()
    while not isinstance(reason := interval.on_closed(one_round(interval, 300 * MS)), Reason) or (
        reason.code != "interval-measuring"
    ):
        pass
    parts = [interval.next().probe]
    for _ in range(200):
        interval.on_closed(one_round(interval, 300 * MS))
        parts.append(interval.next().probe)
    first, second = [at for at, probe in enumerate(parts) if probe][:2]
    assert first == 0
    assert second * (20 + 1) * MS >= 10 * 300 * MS


def test_no_report_of_a_worker_makes_a_trial_endless() -> None:
    interval = AutoInterval()
    codes: list[str] = []
    while "interval-chosen" not in codes:
        reason = interval.on_closed(one_round(interval, 2**62))
        codes += [reason.code] if reason else ["-"]
        assert len(codes) < 10_000


def trial_of(probe_ns: int, before: int = 0) -> tuple[int, int]:
    """Run a job in which measuring the objective on the whole sample takes `probe_ns`, and return
    two numbers for the trial after the first `before` ones: into how many parts the sample was
    divided, and how many rounds the trial had."""
    interval, rounds, age_s = AutoInterval(), 0, 0.0
    codes = {"interval-measuring", "interval-stage-over"}
    for _ in range(100_000):
        terms = interval.next()
        measured = one_round(interval, probe_ns // terms.parts, 1 / (1 + age_s) ** 2)
        reason = interval.on_closed(measured)
        rounds, age_s = rounds + 1, age_s + measured.elapsed_s
        if reason is not None and reason.code in codes:
            before, rounds = before - 1, 0
        elif reason is not None and reason.code == "interval-chosen" and before < 0:
            return terms.parts, rounds
    raise AssertionError("no trial has ended")


def test_the_first_trial_measures_on_a_part_of_the_sample_where_all_of_it_takes_long() -> None:
    assert trial_of(2 * MS) == (1, MEASURING)
    assert trial_of(60 * MS) == (8, MEASURING)
    parts, rounds = trial_of(300 * MS)
    assert parts == 8 and rounds > MEASURING


def test_later_trials_measure_on_the_whole_sample_when_the_job_is_older_than_they_take() -> None:
    """The objective falls more and more slowly, so stages end and further trials begin."""
    found = [trial_of(60 * MS, before)[0] for before in range(8)]
    assert found == sorted(found, reverse=True)
    assert found[0] == 8 and found[-1] == 1


def test_the_first_measurement_of_the_objective_is_on_an_eighth_of_the_sample() -> None:
    interval = AutoInterval()
    asked = []
    for _ in range(4):
        asked.append(interval.next())
        interval.on_closed(one_round(interval, 1 * MS))
    assert [(terms.probe, terms.parts) for terms in asked if terms.probe] == [(True, 8)]


def test_without_a_learning_rate_the_first_round_is_longer() -> None:
    assert AutoInterval.without_rate().next().interval_ns == 25 * MS
    assert AutoInterval().next().interval_ns == 10 * MS


def one_round(interval: AutoInterval, probe_ns: int, objective: float = 1.0) -> Measured:
    """A round in which one batch takes 20 ms, the barrier 1 ms, and measuring the objective
    `probe_ns`."""
    terms = interval.next()
    reading = (objective, probe_ns) if terms.probe else (None, 0)
    batches = terms.interval_ns / (20 * MS)
    return Measured(
        terms.interval_ns, 1 * MS, reading[0], 1 * MS, batches=batches, probe_ns=reading[1]
    )


@pytest.mark.parametrize("trend", [0.0, -0.2, 0.3])
@pytest.mark.parametrize(("a", "b"), [(-2.0, 1.0), (-0.5, 3.0), (-6.0, 4.0)])
def test_the_best_interval_is_found_whatever_the_trend_of_training(
    a: float, b: float, trend: float
) -> None:
    training = Training(line(a, b, trend))
    interval = AutoInterval()
    training.until(interval, "interval-chosen")
    # The estimate holds for the middle of the trial: after 4.5 of its 9 parts of 0.8 s.
    seen_b = b + trend * (sum(WARM_UP_MS) / 1000 + 4.5 * 0.8)
    best = max(0.05, peak(a, seen_b, 0.02))  # a stage divides the interval by at most 4
    assert interval.next().interval_ns / 1e9 == pytest.approx(best, rel=1e-6)


def test_a_stage_at_most_doubles_or_quarters_the_interval() -> None:
    far_up, far_down = Training(line(1, 1)), Training(line(-9, 20), phi_ns=10_000)
    for training, found_ms in ((far_up, 400), (far_down, 50)):
        interval = AutoInterval()
        training.until(interval, "interval-chosen")
        assert interval.next().interval_ns == found_ms * MS


def test_stage_by_stage_the_interval_grows_to_a_full_pass() -> None:
    training = Training(lambda eta, worked_s: (1 + eta) / (1 + worked_s), pass_ns=5_000 * MS)
    interval = AutoInterval()
    for found_ms in (400, 800, 1600, 3200, 5000, 5000):
        training.until(interval, "interval-chosen")
        assert interval.next().interval_ns == found_ms * MS


@pytest.mark.parametrize(
    ("phi_ns", "micro_ns", "low_ms"), [(5 * MS, 60 * MS, 120), (90 * MS, 1 * MS, 90)]
)
def test_the_interval_is_never_shorter_than_the_barrier_or_two_micro_batches(
    phi_ns: int, micro_ns: int, low_ms: int
) -> None:
    training = Training(line(-900, 1), phi_ns=phi_ns, micro_ns=micro_ns)
    interval = AutoInterval()
    training.until(interval, "interval-chosen")
    assert interval.next().interval_ns == low_ms * MS


def test_both_lengths_of_a_trial_fit_into_a_pass() -> None:
    training = Training(line(-2, 1), pass_ns=150 * MS)
    rounds, _ = training.until(AutoInterval(), "interval-chosen")
    assert lengths_ms(rounds)[-MEASURING:] == [*([75] * 4 + [150] * 2) * 4, *[75] * 4, 75]


def test_the_barrier_bounds_the_interval_if_a_pass_is_shorter() -> None:
    training = Training(line(-2, 1), phi_ns=50 * MS, pass_ns=10 * MS)
    interval = AutoInterval()
    training.until(interval, "interval-chosen")
    assert interval.next().interval_ns == 50 * MS


def test_a_stage_that_gains_as_promised_goes_on() -> None:
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
    assert len(rounds) == 1 + 3 * 4 * 4, "three checks, each after four times the rounds of a part"
    assert reason.fields["gain"] == pytest.approx(0.75 * reason.fields["promised"], rel=1e-4)
    rounds, _ = training.until(interval, "interval-chosen")
    assert len(rounds) == MEASURING


def test_a_good_check_between_bad_ones_keeps_the_stage() -> None:
    training = Training(line(-2, 1))
    interval = AutoInterval()
    training.until(interval, "interval-chosen")
    good, bad = line(-2, 1), line(-1, 0.5)
    for check in range(30):
        training.rate = good if check % 3 == 2 else bad
        assert [training.round(interval)[1] for _ in range(16)] == [None] * 16


def test_a_stage_ends_when_barriers_become_expensive() -> None:
    training = Training(line(-2, 1))
    interval = AutoInterval()
    training.until(interval, "interval-chosen")
    before = interval.next().interval_ns
    training.phi_ns *= 4
    training.until(interval, "interval-stage-over")
    training.until(interval, "interval-chosen")
    assert interval.next().interval_ns > before


def test_a_barrier_longer_than_the_interval_raises_it_at_once() -> None:
    training = Training(line(-2, 1))
    interval = AutoInterval()
    training.until(interval, "interval-chosen")
    training.phi_ns = 900 * MS
    _, reason = training.until(interval, "interval-raised")
    assert interval.next().interval_ns / MS == reason.fields["interval_ms"]


def test_a_raised_interval_falls_when_barriers_become_cheaper() -> None:
    training = Training(line(-2, 1))
    interval = AutoInterval()
    training.until(interval, "interval-chosen")
    chosen_ns, usual_ns = interval.next().interval_ns, training.phi_ns
    training.phi_ns = 120 * MS
    training.until(interval, "interval-raised", most=4)
    training.phi_ns = usual_ns
    training.until(interval, "interval-lowered", most=4)
    assert interval.next().interval_ns == chosen_ns


@pytest.mark.parametrize("missing", [None, float("nan"), float("inf")])
@pytest.mark.parametrize("make", [AutoInterval, BinaryInterval])
def test_without_an_objective_rounds_have_as_many_points_as_under_bsp(
    make: type[AutoInterval] | type[BinaryInterval], missing: float | None
) -> None:
    training = Training(line(-2, 1), phi_ns=5 * MS, objective=missing, batch_ns=70 * MS)
    interval = make()
    training.until(interval, "interval-blind")
    assert interval.next().interval_ns == 70 * MS
    assert [training.round(interval)[1] for _ in range(40)] == [None] * 40
    training.batch_ns = 20 * MS
    training.until(interval, "interval-blind", most=5)
    assert interval.next().interval_ns == 20 * MS
    training.phi_ns = 40 * MS
    training.until(interval, "interval-blind", most=5)
    assert interval.next().interval_ns == 40 * MS, "never shorter than a barrier"


@pytest.mark.parametrize("make", [AutoInterval, BinaryInterval])
def test_an_objective_that_is_reported_later_is_used(
    make: type[AutoInterval] | type[BinaryInterval],
) -> None:
    training = Training(line(-2, 1), objective=None)
    interval = make()
    training.until(interval, "interval-blind")
    training.objective = 50.0
    training.until(interval, "interval-measuring", most=4)
    training.until(interval, "interval-chosen", most=30)


@pytest.mark.parametrize("before", ["interval-measuring", "interval-chosen"])
def test_an_objective_that_is_missing_for_a_few_rounds_does_not_end_the_search(before: str) -> None:
    """With kind statistics there is no objective while points travel."""
    training = Training(line(-2, 1))
    interval = AutoInterval()
    training.until(interval, before)
    while not interval.next().probe:
        training.round(interval)
    terms, value = interval.next(), training.objective
    training.objective = None
    for _ in range(8):
        assert training.round(interval)[1] is None
        assert interval.next() == terms, "the objective is asked for again"
    training.objective = value
    assert interval.next().probe
    training.round(interval)
    training.objective = None
    training.until(interval, "interval-blind", most=100)


# -- binary ----------------------------------------------------------------------------------------


def test_binary_halves_from_a_full_pass_and_goes_back_at_the_reversal() -> None:
    training = Training(line(-2, 5), phi_ns=100 * MS, pass_ns=2_000 * MS)
    interval = BinaryInterval()
    rounds, reason = training.until(interval, "interval-chosen")
    gains = {ms: training.rate(ms / 1e3, 0) * ms / (ms + 100) for ms in (2000, 1000, 500, 250)}
    assert max(gains, key=lambda ms: gains[ms]) == 500
    assert lengths_ms(rounds) == [200, 2000, 1000, 1000, 500, 500, 250, 250, 125]
    assert interval.next() == IntervalTerms(500 * MS, probe=False)
    assert reason.fields["gain"] == pytest.approx(gains[500])


def test_binary_stops_at_the_barriers_cost() -> None:
    training = Training(line(-900, 1), pass_ns=2_000 * MS, phi_ns=300 * MS)
    interval = BinaryInterval()
    training.until(interval, "interval-chosen")
    assert interval.next().interval_ns == 500 * MS
    training.phi_ns = 600 * MS
    training.until(interval, "interval-raised")


def test_the_barrier_bounds_binary_if_a_pass_is_shorter() -> None:
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


def test_a_fixed_interval_does_not_change() -> None:
    interval = FixedInterval(250 * MS)
    assert interval.next() == IntervalTerms(250 * MS, probe=False)
    assert interval.on_closed(Measured(250 * MS, 20 * MS)) is None
    assert interval.next() == IntervalTerms(250 * MS, probe=False)


def test_a_fixed_interval_below_the_barriers_cost_is_raised_and_restored() -> None:
    training = Training(line(-2, 1), phi_ns=40 * MS)
    interval = FixedInterval(10 * MS)
    _, reason = training.until(interval, "interval-raised")
    assert in_words(reason) == "the interval is raised to 40.0 ms: a barrier alone takes 40.0 ms"
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
def test_the_text_of_interval_chooses_the_class(text: str, kind: type[Interval]) -> None:
    assert isinstance(parse_interval(text), kind)


def test_a_fixed_length_is_used_unchanged() -> None:
    assert parse_interval(" 1.5s ").next().interval_ns == 1500 * MS


@pytest.mark.parametrize("text", ["", "0ms", "-5ms", "250", "fast", "auto:3", "nans"])
def test_other_texts_of_interval_are_refused_in_one_line(text: str) -> None:
    with pytest.raises(UsageError) as refusal:
        parse_interval(text)
    assert "auto, binary or 250ms" in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_every_change_has_a_reason() -> None:
    training = Training(lambda eta, worked_s: (3 - eta) / (1 + worked_s))
    interval = AutoInterval()
    told = [training.round(interval) for _ in range(300)]
    stages = sum(reason is not None and reason.code == "interval-chosen" for _, reason in told)
    assert stages > 1
    for (terms, reason), (following, _) in pairwise(told):
        ratio = following.interval_ns / terms.interval_ns
        assert reason is not None or ratio in (0.5, 1.0, 2.0)


@pytest.mark.parametrize(("phi_ms", "low_ms"), [(2, 5), (3, 5), (10, 10), (300, 300)])
def test_a_job_that_gains_only_from_short_intervals_gets_the_shortest_possible(
    phi_ms: int, low_ms: float
) -> None:
    """No interval is shorter than two micro-batches (5 ms here), or shorter than a barrier
    (`phi_ms`)."""
    training = Training(line(-900, 1), phi_ns=phi_ms * MS, micro_ns=5 * MS // 2, batch_ns=9 * MS)
    interval = parse_interval("auto")
    training.until(interval, "interval-chosen")
    assert interval.next().interval_ns / MS == pytest.approx(low_ms, rel=1e-3)


@pytest.mark.parametrize(("phi_ms", "found_ms"), [(2, 9), (10, 10)])
def test_with_kind_gradient_no_shorter_round_than_a_batch_is_chosen(
    phi_ms: int, found_ms: float
) -> None:
    """A round with fewer points makes a part of a step, so it cannot gain more."""
    training = Training(line(-900, 1), phi_ns=phi_ms * MS, micro_ns=5 * MS // 2, batch_ns=9 * MS)
    interval = parse_interval("auto", "gradient")
    training.until(interval, "interval-chosen")
    assert interval.next().interval_ns / MS == pytest.approx(found_ms, rel=1e-3)


@pytest.mark.parametrize("kind", ["gradient", "local"])
def test_longer_rounds_than_a_batch_are_chosen_whatever_the_kind(kind: str) -> None:
    interval = parse_interval("auto", kind)
    Training(line(1, 1)).until(interval, "interval-chosen")
    assert interval.next().interval_ns == 400 * MS


def test_noise_alone_leaves_the_interval_where_the_users_batch_puts_it() -> None:
    """Every optimizer step gains the same, so the shortest interval would be best. But the noise of
    the readings is larger than the gain: in most of 200 trainings the interval stays near its
    start."""
    rng = random.Random(4)
    chosen = []
    for _ in range(200):
        training = Training(
            lambda eta, _: 0.001 / eta,
            phi_ns=3 * MS,
            batch_ns=12 * MS,
            noise=lambda: rng.gauss(0.0, 1.0),
        )
        interval = AutoInterval()
        training.until(interval, "interval-chosen")
        chosen.append(interval.next().interval_ns / MS)
    assert sum(11 <= ms <= 13 for ms in chosen) > 160
    assert max(chosen) <= 24


def test_a_gain_larger_than_the_noise_changes_the_interval() -> None:
    """A second of work gains the same with every interval. Longer intervals have fewer barriers, so
    they are better."""
    rng = random.Random(4)
    ups = 0
    for _ in range(50):
        training = Training(
            lambda eta, _: 1.0,
            phi_ns=12 * MS,
            batch_ns=12 * MS,
            noise=lambda: rng.gauss(0.0, 0.001),
        )
        interval = AutoInterval()
        training.until(interval, "interval-chosen")
        ups += interval.next().interval_ns > 20 * MS
    assert ups > 45


def test_one_slow_round_does_not_change_the_interval() -> None:
    training = Training(line(-2, 1))
    interval = AutoInterval()
    training.until(interval, "interval-chosen")
    before = interval.next().interval_ns
    training.phi_ns, usual_ns = 900 * MS, training.phi_ns
    assert training.round(interval)[1] is None
    training.phi_ns, training.micro_ns = usual_ns, 700 * MS
    assert training.round(interval)[1] is None
    assert interval.next().interval_ns == before


def test_binary_halves_the_time_worked_if_a_pass_is_shorter_than_the_interval() -> None:
    """How long a pass takes is unknown until a worker has visited all its points and asks for the
    barrier."""
    interval = BinaryInterval()
    assert interval.on_closed(Measured(200 * MS, 2 * MS)) is not None
    assert interval.next().interval_ns == 60_000 * MS
    interval.on_closed(Measured(2_000 * MS, 2 * MS, 1.0, 4 * MS, pass_ns=2_000 * MS))
    assert interval.next().interval_ns == 1_000 * MS


def test_without_a_learning_rate_the_start_follows_the_cost_of_barriers() -> None:
    training = Training(line(-2, 1), phi_ns=15 * MS, objective=None, batch_ns=5 * MS)
    interval = AutoInterval.without_rate()
    training.until(interval, "interval-blind")
    assert interval.next().interval_ns == 30 * MS
    training.phi_ns = 30 * MS
    training.until(interval, "interval-blind", most=8)
    assert interval.next().interval_ns == 60 * MS


def test_without_a_learning_rate_rounds_have_most_of_the_points_of_a_batch() -> None:
    training = Training(line(-2, 1), phi_ns=1 * MS, objective=None, batch_ns=40 * MS)
    interval = AutoInterval.without_rate()
    training.until(interval, "interval-blind")
    assert interval.next().interval_ns == 30 * MS


def test_without_a_learning_rate_two_micro_batches_still_fit_into_a_round() -> None:
    training = Training(
        line(-2, 1), phi_ns=1 * MS, micro_ns=20 * MS, objective=None, batch_ns=10 * MS
    )
    interval = AutoInterval.without_rate()
    training.until(interval, "interval-blind")
    assert interval.next().interval_ns == 40 * MS


@pytest.mark.parametrize(("kind", "start_ms"), [("statistics", 150), ("gradient", 200)])
def test_only_statistics_have_no_learning_rate(kind: str, start_ms: int) -> None:
    policy = choose_policy(JobSpec(job="x", kind=kind, sync="fsp"))
    training = Training(line(-2, 1), phi_ns=8 * MS, objective=None)
    interval = policy._interval  # type: ignore[attr-defined]
    training.until(interval, "interval-blind")
    assert interval.next().interval_ns == start_ms * MS
