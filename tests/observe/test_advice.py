"""The advice at the end of a summary: one line that says what to change, and what it would gain."""

import re
from itertools import product
from typing import Any

import pytest
from msgspec.structs import replace

from polyrhythm.api.checks import check_sharing, check_spec
from polyrhythm.core.kinds import KINDS
from polyrhythm.core.sync.registry import POLICIES, traits_of
from polyrhythm.errors import UsageError
from polyrhythm.observe.advice import advise, less_waiting
from polyrhythm.observe.learning import learning_remedies
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


LOWER_RATE = "try a lower rate: the objective was 1 in pass 2, before it rose"
FAST, SLOW = (0.3, 0.64, 0.06), (0.9, 0.03, 0.07)


COMPARE = "compare the time to the same objective"


def test_one_is_waited_for() -> None:
    """Three workers wait 61% of their time more than the fourth: without that they would be 2.56
    times as fast, and all four together 2.17 times."""
    state = after(10.0, FAST, FAST, FAST, SLOW)
    assert advise(state, job()) == f"try --sync fsp for up to 2.2x points/s; {COMPARE}"


def test_the_usual_advice_fits_one_line_of_a_summary() -> None:
    said = advise(after(10.0, FAST, FAST, FAST, SLOW), job())
    assert said is not None and len(said) <= 80 - len("  ")


def test_a_worker_that_is_gone_is_not_advised_about() -> None:
    state = after(20.0, (10.0, 9.0, 1.0), (18.0, 1.0, 1.0), (10.0, 9.0, 1.0))
    assert advise(state, job()) is not None
    state.take(
        line(21.0, "left", worker=1, name="worker-1", reason="failed", fields={"detail": "x"})
    )
    assert advise(state, job()) is None


def test_the_job_without_the_slow_worker_is_the_last_resort() -> None:
    said = advise(after(10.0, FAST, FAST, SLOW), job(deterministic=True, timer="off"))
    assert said is not None and said.startswith("try the job without worker-2 for up to ")


@pytest.mark.parametrize("sync", ["bsp", "fsp", "psp", "ssp:2", "ssp-restart:2"])
def test_no_policy_is_recommended_on_speed_alone(sync: str) -> None:
    said = advise(after(10.0, FAST, FAST, FAST, SLOW), job(sync=sync))
    assert said is not None and "--sync" in said
    assert "asp" not in said and said.endswith(COMPARE)


@pytest.mark.parametrize(
    "fields",
    [
        *({"kind": kind} for kind in KINDS),
        {"data_private": True},
        {"data_private": True, "share_data": True, "migrate": "full"},
        {"migrate": "lease"},
        {"replicas": 1},
        {"weights": "workers"},
        {"outer": "nesterov", "kind": "local"},
        {"in_place": True},
        {"push": "int8"},
        {"abandon": "10ms"},
        {"read_ahead": True},
        {"deterministic": True, "timer": "off"},
    ],
    ids=repr,
)
def test_only_what_the_job_accepts_is_recommended(fields: dict[str, Any]) -> None:
    """Every option in the advice, and in the lists of `why`, is given to the job. The checks of a
    command accept the job."""
    servers = 1 + fields.get("replicas", 0)
    policies = [name + ":9" * bool(entry.argument) for name, entry in POLICIES.items()]
    jobs = [job(**{"sync": sync, "workers": 2, "servers": servers, **fields}) for sync in policies]
    accepted = [each for each in jobs if is_accepted(each)]
    assert accepted
    rising = learning(5.0, "rising", objective=2.0, best=1.0, best_pass=2, rises=1)
    states = (
        after(10.0, FAST, SLOW),
        after(10.0, (0.3, 0.1, 0.6)),
        fold([*opened(0, 1), rising]),
    )
    for base, state in product(accepted, states):
        waits = traits_of(base.sync).asks_before_steps
        listed = [*(less_waiting(base) if waits else []), *learning_remedies(state, base)]
        for changes in options_in(", ".join([advise(state, base) or "", *listed])):
            assert is_accepted(replace(base, **changes)), (base.sync, changes)
            assert any(getattr(base, name) != value for name, value in changes.items())


def is_accepted(spec: JobSpec) -> bool:
    try:
        check_spec(spec)
        check_sharing(spec, spec.workers)
    except UsageError:
        return False
    return True


def options_in(said: str) -> list[dict[str, Any]]:
    """The alternatives in an advice, each as the settings that it changes. N stands for 90."""
    found = []
    for part in re.split(r", | or ", said):
        given = re.findall(r"--(sync|kind|local-steps|push|most-steps) ([\w:-]+)", part)
        changes = {
            name.replace("-", "_"): int(value) if value.isdigit() else value.replace(":N", ":90")
            for name, value in given
        }
        if changes:
            found.append(changes)
    return found


def test_a_job_with_a_global_batch_gets_no_advice_about_a_bound() -> None:
    said = advise(after(10.0, FAST, SLOW), job(sync="bspg:64"))
    assert said is not None and "bound" not in said
    assert "--sync ssp:4 (without --global-batch)" in less_waiting(job(sync="bspg:64"))
    rising = learning(5.0, "rising", objective=2.0, best=1.0, best_pass=2, rises=1)
    assert advise(fold([*opened(0, 1), rising]), job(sync="bspg:64")) == LOWER_RATE


def test_a_job_that_reads_ahead_is_not_told_to_set_a_bound() -> None:
    rising = learning(5.0, "rising", objective=2.0, best=1.0, best_pass=2, rises=1)
    tries = learning_remedies(fold([*opened(0, 1), rising]), job(sync="asp", read_ahead=True))
    assert tries == ["a lower rate", "no --read-ahead"]


def test_a_run_that_does_not_learn_gets_advice_about_that_only() -> None:
    lines = [*opened(0, 1), learning(5.0, "rising", objective=2.0, best=1.0, best_pass=2, rises=1)]
    done = {"0": totals(10, 3.0, 6.4, 0.6), "1": totals(10, 9.0, 0.3, 0.7)}
    state = fold([*lines, rounds(11.0, 10, done)])
    assert advise(state, job()) == LOWER_RATE
    assert advise(fold(lines), job()) == LOWER_RATE, "however short the run was"


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
    assert said is not None and said.startswith("try --sync fsp for up to 1.3x points/s")


@pytest.mark.parametrize(
    ("fields", "remedy", "gain"),
    [
        ({}, "--kind local --local-steps 8", 2.5),
        ({"kind": "local", "local_steps": 8}, "--local-steps 16", 1.5),
    ],
)
def test_the_exchange_takes_most(fields: dict[str, Any], remedy: str, gain: float) -> None:
    """The exchange takes 69% of the time: an eighth or half of it would be left."""
    said = advise(after(10.0, (0.3, 0.1, 0.6), (0.3, 0.12, 0.58)), job(**fields))
    assert said == f"try {remedy} for up to {gain}x points/s; {COMPARE}"


@pytest.mark.parametrize(
    ("link", "fields", "remedy"),
    [
        ("tcp", {}, "--push int8"),
        ("tcp", {"push": "int8"}, "larger batches"),
        ("local", {}, "larger batches"),
    ],
)
def test_what_is_advised_if_the_job_cannot_make_local_steps(
    link: str, fields: dict[str, Any], remedy: str
) -> None:
    state = after(10.0, (0.3, 0.1, 0.6))
    state.links["w0"] = link
    said = advise(state, job(weights="workers", updater="addition", **fields))
    if said is not None and "--local-steps" in said:
        pytest.skip("this job accepts local steps")
    assert said is not None and said.startswith(f"try {remedy} for up to ")


def test_one_worker_alone_waits_for_the_exchange() -> None:
    said = advise(after(10.0, (0.2, 0.6, 0.2)), job())
    assert said is not None and said.startswith("try --kind local --local-steps 8 for up to 3.3x")


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
        "try --interval auto: in 5ms a worker visits only 2 points of its batch of 64"
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
