"""`target_change` and `target` in virtual time. A change is checked once per full pass of the slowest
worker.

The simulated objective has no noise and halves about every two passes, so its change in a pass is known.
"""

import pytest

from polyrhythm.observe.reasons import in_words
from tests.sim.staged_run import Run

POINTS, BOUND = 600, 0.02
SCENARIO = """
[job]
sync = "{sync}"
kind = "{kind}"
local_steps = {local_steps}
target_change = {bound}
points = {points}
batch = 20
servers = 2
replicas = 1
model = "100kB"
{more}
[objective]
halving = 1200
at_once = 100000
[[workers]]
count = 2
step = "4ms"
step_noise = 0.1
[[workers]]
name = "slow"
step = "16ms"
{after}
"""
POLICIES = [
    ("bsp", "gradient"),
    ("bsp", "local"),
    ("asp", "gradient"),
    ("asp", "local"),
    ("ssp:4", "gradient"),
    ("ssp:4", "local"),
    ("ssp-restart:4", "gradient"),
    ("psp", "local"),
    ("fsp", "gradient"),
    ("fsp", "local"),
]
CHANGES = {
    "a worker dies": '[[events]]\nat = "350ms"\nwhat = "crash"\nworker = "slow"',
    "a worker joins": '[[workers]]\nname = "late"\nstep = "6ms"\njoin = "250ms"',
    "a worker leaves": '[[events]]\nat = "225ms"\nwhat = "leave"\nworker = "worker-1"',
}


def run(sync: str, kind: str = "gradient", after: str = "", points: int = POINTS) -> Run:
    timed = 'interval = "20ms"' if sync == "fsp" else ""
    local_steps = 2 if kind == "local" and sync != "fsp" and sync != "psp" else 1
    return Run(
        SCENARIO.format(
            sync=sync,
            kind=kind,
            local_steps=local_steps,
            bound=BOUND,
            points=points,
            more=timed,
            after=after,
        )
    )


def assert_ended_by_the_rule(job: Run) -> None:
    """The objective halves whenever 2 * `POINTS` points have been visited. Its change in a pass is
    below the bound only when the objective is below 0.07, which takes at least 7 * `POINTS`
    points."""
    assert job.end.reason.code == "goal" and not job.end.failed
    assert "the objective changed by" in in_words(job.end.reason)
    assert "changed by 0 " not in in_words(job.end.reason)
    assert job.result["points"] >= 7 * POINTS
    objective = job.simulation.objective
    assert objective is not None and objective.value < 4 * BOUND


@pytest.mark.parametrize(("sync", "kind"), POLICIES)
def test_a_job_with_passes_shorter_than_a_second_ends_by_the_rule_and_raises_no_alarm(
    sync: str, kind: str
) -> None:
    job = run(sync, kind)
    assert_ended_by_the_rule(job)
    assert {line["state"] for line in job.lines("learning")} <= {"settled"}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("sync", ["bsp", "asp", "ssp:4", "fsp"])
def test_a_change_of_members_does_not_end_the_job_too_early(sync: str, change: str) -> None:
    assert_ended_by_the_rule(run(sync, after=CHANGES[change]))


@pytest.mark.parametrize("sync", ["bsp", "asp", "fsp"])
def test_workers_without_points_are_not_waited_for(sync: str) -> None:
    """The data set has two points for three workers. So one worker never visits a point, and passes
    must still end."""
    job = run(sync, points=2, after='[[events]]\nat = "60s"\nwhat = "leave"\nworker = "slow"')
    assert job.end.reason.code == "goal"
    assert "the objective changed by" in in_words(job.end.reason)


def test_a_simulated_job_that_learns_nothing_is_reported() -> None:
    text = SCENARIO.replace("halving = 1200", "halving = 1_000_000_000")
    fields = {"kind": "gradient", "local_steps": 1, "bound": 1e-30, "points": POINTS}
    job = Run(text.format(sync="asp", more="epochs = 8", after="", **fields))
    assert [line["state"] for line in job.lines("learning")] == ["stalled"]
    assert "hardly fallen" in job.result["ended"]


@pytest.mark.parametrize(("sync", "kind"), POLICIES)
def test_a_simulated_job_ends_at_a_target_of_its_objective(sync: str, kind: str) -> None:
    text = SCENARIO.replace("target_change = {bound}", 'target = "objective={bound}"')
    more = 'interval = "20ms"' if sync == "fsp" else ""
    fields = {"kind": kind, "local_steps": 1, "bound": 0.25, "points": POINTS}
    job = Run(text.format(sync=sync, more=more, after="", **fields))
    assert not job.end.failed
    assert "wanted at most 0.25" in in_words(job.end.reason)
    assert job.result["objective"] <= 0.25
