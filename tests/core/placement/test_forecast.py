"""What the lead expects of rounds with other slices, from what was measured."""

import math

import pytest

from polyrhythm.core.placement.forecast import fit, forecast_aware, forecast_elastic
from polyrhythm.core.placement.reassignment import (
    HORIZON_ROUNDS,
    Prospect,
    SteadyRate,
    horizon,
    moving_nbytes,
    moving_s,
)
from polyrhythm.wire import messages as m
from tests.core.stage import spec

MB = 1e6
SERVERS = {0: "a", 1: "b"}
WORKERS = {"c": 1, "d": 1}
RATES = {"a": 10 * MB, "b": 20 * MB, "c": 50 * MB, "d": 50 * MB}


def test_without_a_measurement_there_is_no_forecast() -> None:
    assert forecast_aware(MB, SERVERS, WORKERS, {}) is None
    assert forecast_aware(MB, SERVERS, WORKERS, {"elsewhere": MB}) is None
    assert forecast_elastic([0, 1], {}) is None


def test_a_host_without_a_measurement_counts_as_an_average_server() -> None:
    forecast = forecast_aware(MB, {**SERVERS, 2: "e"}, WORKERS, RATES)
    assert forecast is not None and forecast.rates[2] == 15 * MB


def test_servers_of_one_host_share_its_time() -> None:
    one = forecast_aware(MB, {0: "a"}, WORKERS, RATES)
    two = forecast_aware(MB, {0: "a", 1: "a"}, WORKERS, RATES)
    assert one is not None and two is not None
    assert two.seconds({0: 1000, 1: 1000}) == pytest.approx(one.seconds({0: 2000}))


def test_fewer_bytes_are_sent_in_half_precision() -> None:
    whole = forecast_aware(MB, SERVERS, WORKERS, RATES)
    half = forecast_aware(MB, SERVERS, WORKERS, RATES, sent=0.5)
    assert whole is not None and half is not None
    held = {0: 10**6, 1: 10**6}
    assert half.seconds(held) == pytest.approx(whole.seconds(held) / 2)
    assert half.rates == whole.rates


@pytest.mark.parametrize(("slow", "limits"), [(1 * MB, True), (4 * MB, False), (0.0, False)])
def test_a_link_is_a_limit_if_its_hosts_do_not_explain_its_rate(slow: float, limits: bool) -> None:
    """Host a sends 10 MB/s to two hosts: 5 MB/s over each link, unless something else is slow. A link
    without a sensible measurement is no limit."""

    def rate(source: str, target: str) -> float | None:
        return slow if {source, target} == {"a", "c"} else None

    forecast = forecast_aware(MB, SERVERS, WORKERS, RATES, rate)
    assert forecast is not None
    assert forecast.lines[0].most == (slow if limits else math.inf)
    assert forecast.lines[1].most == math.inf


def test_the_slower_direction_of_a_link_is_its_limit() -> None:
    def rate(source: str, target: str) -> float | None:
        return {("a", "c"): 2 * MB, ("c", "a"): 1 * MB}.get((source, target))

    forecast = forecast_aware(MB, SERVERS, WORKERS, RATES, rate)
    assert forecast is not None and forecast.lines[0].most == 1 * MB


@pytest.mark.parametrize(("beyond", "shared"), [("c", 1), ("b", 2)])
def test_workers_at_both_ends_share_a_link_if_both_use_servers_beyond_it(
    beyond: str, shared: int
) -> None:
    """Host a has a worker, and b has a server, but c has none."""

    def rate(source: str, target: str) -> float | None:
        return 0.1 * MB if {source, target} == {"a", beyond} else None

    forecast = forecast_aware(MB, SERVERS, {"a": 1, "b": 1, "c": 1}, RATES, rate)
    assert forecast is not None
    assert forecast.lines[0].most == pytest.approx(0.1 * MB / shared)


def test_a_limit_of_a_host_is_shared_by_its_servers() -> None:
    def rate(source: str, target: str) -> float | None:
        return 1 * MB if {source, target} == {"a", "c"} else None

    forecast = forecast_aware(MB, {0: "a", 1: "a"}, WORKERS, RATES, rate)
    assert forecast is not None
    assert [forecast.lines[server].most for server in (0, 1)] == [0.5 * MB, 0.5 * MB]


def test_bytes_that_hardly_vary_say_nothing_of_the_slope() -> None:
    """Twenty rounds with nearly the same bytes vary no more than two of them."""
    points = [(10.0, 2.0), (10.2, 2.03)] * 10
    assert fit(points)[0] == 0.0


def test_a_line_is_fitted_to_times() -> None:
    assert fit([(float(x), 2.0 + 0.5 * x) for x in (10, 20, 40)]) == pytest.approx((2.0, 0.5))


@pytest.mark.parametrize(
    "points",
    [[(10.0, 4.0)] * 20, [(10.0, 5.0), (20.0, 3.0)], [(10.0, 1.0), (20.0, 7.0)]],
    ids=["no variation", "falling", "negative start"],
)
def test_otherwise_the_line_goes_through_the_origin(points: list[tuple[float, float]]) -> None:
    start, slope = fit(points)
    mean_s = sum(seconds for _, seconds in points) / sum(nbytes for nbytes, _ in points)
    assert start == 0 and slope == pytest.approx(mean_s)


def test_the_average_of_a_rate_follows_a_change_at_once() -> None:
    steady = SteadyRate.begin(10.0)
    assert not steady.add(10.0)
    for rate in (11.0, 9.0, 10.5, 9.5):
        assert steady.add(rate)
    assert steady.value == pytest.approx(10.0) and steady.count == 5
    assert steady.add(20.0)
    assert (steady.value, steady.count) == (20.0, 1)


def test_gain_must_exceed_the_error_of_measurements_and_pay_for_moves() -> None:
    assert Prospect(1.0, 0.8, moving_s=1.0).pays(rounds=10, measured=4)
    assert not Prospect(1.0, 0.8, moving_s=1.0).pays(rounds=5, measured=4)
    assert not Prospect(1.0, 0.93).pays(rounds=100, measured=4)
    assert Prospect(1.0, 0.93).pays(rounds=100, measured=16)
    assert not Prospect(0.0, 0.0).pays(rounds=100, measured=100)


def test_moves_take_as_long_as_on_the_busiest_server() -> None:
    fetched = {(0, 2): 6.0, (1, 2): 6.0}
    assert moving_s(fetched, {0: 1.0, 1: 4.0, 2: 3.0}) == 6.0
    assert moving_s(fetched, {2: 3.0}) == 4.0 and moving_s({}, {}) == 0.0


def test_a_job_with_few_rounds_left_has_a_short_horizon() -> None:
    job = m.JobSpec(job="j", rounds=120)
    assert [horizon(job, done) for done in (0, 50, 120, 130)] == [HORIZON_ROUNDS, 70, 0, 0]
    assert horizon(m.JobSpec(job="j"), 10**6) == HORIZON_ROUNDS


@pytest.mark.parametrize(
    ("optimizer", "job", "times"),
    [
        ("SGD", {}, 1),
        ("Adam", {}, 3),
        ("Adam", {"updater": "addition"}, 1),
        ("Adam", {"optimizer_on": "workers"}, 1),
        ("Adam", {"kind": "local"}, 1),
        ("Adam", {"kind": "local", "outer": "nesterov"}, 2),
        ("SGD", {"kind": "statistics", "workers": 4}, 5),
    ],
)
def test_what_moves_with_a_slice(optimizer: str, job: dict[str, object], times: int) -> None:
    settings = m.JobSpec(job="j", **job)  # type: ignore[arg-type]
    assert moving_nbytes(settings, spec((8,), optimizer=optimizer), 100) == 100 * times
