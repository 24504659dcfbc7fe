"""The last sentence of a summary: how the time was spent, and what would help."""

from typing import Any

import pytest

from polyrhythm.observe.advice import advise
from polyrhythm.observe.state import RunState, fold
from polyrhythm.wire.messages import JobSpec
from tests.observe.journals import learning, line, opened, rounds, totals, waiting


def after(seconds: float, *workers: tuple[float, float, float]) -> RunState:
    """Return the state of a run after this many seconds. Each worker is given by its shares of
    time: computing, waiting, transferring."""
    done = {
        str(worker): totals(10, *(seconds * share for share in shares))
        for worker, shares in enumerate(workers)
    }
    return fold([*opened(*range(len(workers))), rounds(1.0 + seconds, 10, done)])


def job(**fields: Any) -> JobSpec:
    return JobSpec(job="x", **fields)


FAST, SLOW = (0.3, 0.64, 0.06), (0.9, 0.03, 0.07)


def test_one_is_waited_for() -> None:
    state = after(10.0, FAST, FAST, FAST, SLOW)
    assert advise(state, job()) == (
        "the others waited 61% of the time for worker-3: try --sync fsp, --sync psp or"
        " --sync ssp:4, and compare how many seconds it takes to reach the same objective"
    )


@pytest.mark.parametrize("sync", ["bsp", "fsp", "psp", "ssp:2", "ssp-restart:2"])
def test_no_policy_is_recommended_on_speed_alone(sync: str) -> None:
    said = advise(after(10.0, FAST, FAST, FAST, SLOW), job(sync=sync))
    assert said is not None and "--sync" in said
    assert (
        "asp" not in said
        and "compare how many seconds it takes to reach the same objective" in said
    )


@pytest.mark.parametrize("needs_rounds", [{"kind": "statistics"}, {"data_private": True}])
def test_no_policy_is_recommended_that_the_job_cannot_have(needs_rounds: dict[str, Any]) -> None:
    state = after(10.0, FAST, SLOW)
    for sync, words in (("bsp", "try --sync fsp,"), ("fsp", "try smaller batches,")):
        said = advise(state, job(sync=sync, **needs_rounds))
        assert said is not None and words in said and "ssp" not in said


def test_a_run_that_does_not_learn_gets_advice_about_that_only() -> None:
    lines = [*opened(0, 1), learning(5.0, "rising", objective=2.0, best=1.0, best_pass=2, rises=1)]
    done = {"0": totals(10, 3.0, 6.4, 0.6), "1": totals(10, 9.0, 0.3, 0.7)}
    state = fold([*lines, rounds(11.0, 10, done)])
    assert advise(state, job()) == "try a lower rate"
    assert advise(fold(lines), job()) == "try a lower rate", "however short the run was"


def test_one_is_waited_for_under_a_bound() -> None:
    said = advise(after(10.0, FAST, SLOW), job(sync="ssp:2"))
    assert said is not None and "a larger bound" in said


def test_under_asp_no_worker_waits_for_another() -> None:
    assert advise(after(10.0, FAST, SLOW), job(sync="asp")) is None


def test_long_waits_that_the_lead_noted() -> None:
    even = {str(worker): totals(10, 9.0, 0.5, 0.5) for worker in (0, 1)}
    notes = [waiting(2.0 + s, 1.0 + s, [1]) for s in range(5)]
    state = fold([*opened(0, 1), *notes, rounds(11.0, 10, even)])
    said = advise(state, job())
    assert said is not None and "of the time for worker-1: " in said


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "try --kind local --local-steps 8 or larger batches"),
        ({"kind": "local", "local_steps": 8}, "try --local-steps 16 or larger batches"),
    ],
)
def test_the_exchange_takes_most(fields: dict[str, Any], words: str) -> None:
    said = advise(after(10.0, (0.3, 0.1, 0.6), (0.3, 0.12, 0.58)), job(**fields))
    compare = "and compare how many seconds it takes to reach the same objective"
    assert said == f"exchange takes 69% of the time: {words}, {compare}"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "try --kind local --local-steps 8, --push int8 or larger batches"),
        ({"kind": "local"}, "try --local-steps 2, --push int8 or larger batches"),
        ({"push": "int8"}, "try --kind local --local-steps 8 or larger batches"),
    ],
)
def test_smaller_pushes_are_recommended_over_tcp(fields: dict[str, Any], words: str) -> None:
    state = after(10.0, (0.3, 0.1, 0.6))
    state.links["w0"] = "tcp"
    said = advise(state, job(**fields))
    assert said is not None and words in said


def test_one_worker_alone_waits_for_the_exchange() -> None:
    said = advise(after(10.0, (0.2, 0.6, 0.2)), job())
    assert said is not None and said.startswith("exchange takes 80%")


@pytest.mark.parametrize("seconds", [0.5, 10.0])
def test_nothing_to_say(seconds: float) -> None:
    """There is no advice if nothing is wrong, or if the run was too short to tell."""
    well = (0.8, 0.1, 0.1) if seconds > 1 else (0.1, 0.1, 0.8)
    assert advise(after(seconds, well, well), job()) is None
    assert advise(fold([]), job()) is None


def under_fsp(points: int, compute_s: float, **fields: Any) -> str | None:
    """The advice for a run of 100 contributions, each with this many points and this much computing,
    with a batch of 64 points."""
    done = {"0": totals(100, 100 * compute_s, 0.2, 0.2, points=100 * points)}
    lines = [*opened(0), line(0.5, "data", batch=64), rounds(11.0, 10, done)]
    return advise(fold(lines), job(**{"sync": "fsp", "interval": "5ms", **fields}))


def test_an_interval_that_is_shorter_than_a_step_is_named() -> None:
    assert under_fsp(2, 0.02) == (
        "the interval of 5ms is shorter than a step: a contribution has 2 points on average, and the"
        " batch of the job has 64; give a longer --interval, or auto"
    )


@pytest.mark.parametrize(
    ("points", "compute_s", "fields"),
    [
        (60, 0.02, {}),
        (2, 0.001, {}),
        (2, 0.02, {"interval": "auto"}),
        (2, 0.02, {"sync": "bsp"}),
    ],
    ids=["whole-batches", "few-points-left", "measured-interval", "no-interval"],
)
def test_no_interval_is_named_that_is_not_the_reason(
    points: int, compute_s: float, fields: dict[str, str]
) -> None:
    said = under_fsp(points, compute_s, **fields)
    assert said is None or "interval" not in said
