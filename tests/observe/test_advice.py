"""The last sentence of a summary: how the time was spent, and what would help."""

import re
from itertools import product
from typing import Any

import pytest
from msgspec.structs import replace

from polyrhythm.api.checks import check_sharing, check_spec
from polyrhythm.core.kinds import KINDS
from polyrhythm.core.sync.registry import POLICIES
from polyrhythm.errors import UsageError
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
        "the others waited 61% of the time for worker-3: try --sync fsp, --sync psp --kind local"
        " or --sync ssp:4, and compare how many seconds it takes to reach the same objective"
    )


def test_a_worker_that_is_gone_is_not_named() -> None:
    state = after(20.0, (10.0, 9.0, 1.0), (18.0, 1.0, 1.0), (10.0, 9.0, 1.0))
    named = advise(state, job())
    assert named is not None and "for worker-1" in named
    state.take(
        line(21.0, "left", worker=1, name="worker-1", reason="failed", fields={"detail": "x"})
    )
    assert "worker-1" not in (advise(state, job()) or "")


@pytest.mark.parametrize("sync", ["bsp", "fsp", "psp", "ssp:2", "ssp-restart:2"])
def test_no_policy_is_recommended_on_speed_alone(sync: str) -> None:
    said = advise(after(10.0, FAST, FAST, FAST, SLOW), job(sync=sync))
    assert said is not None and "--sync" in said
    assert (
        "asp" not in said
        and "compare how many seconds it takes to reach the same objective" in said
    )


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
    """Every option in the advice is given to the job. The checks of a command accept the job."""
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
        for changes in options_in(advise(state, base) or ""):
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
    assert "or --sync ssp:4 (without --global-batch)," in said
    rising = learning(5.0, "rising", objective=2.0, best=1.0, best_pass=2, rises=1)
    assert advise(fold([*opened(0, 1), rising]), job(sync="bspg:64")) == "try a lower rate"


def test_a_job_that_reads_ahead_is_not_told_to_set_a_bound() -> None:
    rising = learning(5.0, "rising", objective=2.0, best=1.0, best_pass=2, rises=1)
    said = advise(fold([*opened(0, 1), rising]), job(sync="asp", read_ahead=True))
    assert said == "try a lower rate or no --read-ahead"


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
