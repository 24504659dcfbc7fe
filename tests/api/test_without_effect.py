"""The command names the options that have no effect under the policy of a job."""

from polyrhythm.api.checks import without_effect
from polyrhythm.wire.messages import JobSpec


def test_the_scale_of_contributions_has_no_effect_in_rounds() -> None:
    (line,) = without_effect(JobSpec(job="j", sync="bsp", async_scale="root"))
    assert line.startswith("--async-scale root has no effect: under --sync bsp")
    assert without_effect(JobSpec(job="j", sync="bsp")) == []
    assert without_effect(JobSpec(job="j", sync="asp", async_scale="root")) == []
