"""The command says which options have no effect under the policy of a job, and that a job has no
goal."""

import pytest

from polyrhythm.api.checks import without_effect
from polyrhythm.api.training import without_goal
from polyrhythm.core.metrics import Target
from polyrhythm.wire.messages import JobSpec


def test_the_scale_of_contributions_has_no_effect_in_rounds() -> None:
    (line,) = without_effect(JobSpec(job="j", sync="bsp", async_scale="root"))
    assert line.startswith("--async-scale root has no effect: under --sync bsp")
    assert without_effect(JobSpec(job="j", sync="bsp")) == []
    assert without_effect(JobSpec(job="j", sync="asp", async_scale="root")) == []


@pytest.mark.parametrize(
    "goal",
    [
        {"rounds": 1},
        {"epochs": 1},
        {"max_seconds": 1.0},
        {"target_change": 0.1},
        {"targets": (Target("loss", 0.1, False),)},
        {"served": True},
    ],
)
def test_a_job_without_a_goal_is_told_so(goal: dict[str, object]) -> None:
    (line,) = without_goal(JobSpec(job="j"))
    assert line.startswith("the job has no goal, so it trains until Ctrl-C")
    assert without_goal(JobSpec(job="j", **goal)) == []  # type: ignore[arg-type]
