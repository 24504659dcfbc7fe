"""How a job ended, as `result.json` and `--json` say it."""

import signal

import pytest

from polyrhythm.api.running import summary_of
from polyrhythm.engines.engine import EngineRun
from polyrhythm.observe.state import RunState
from polyrhythm.wire.messages import JobSpec


@pytest.mark.parametrize(
    ("run", "failed", "stopped_by"),
    [
        (EngineRun(ended="goal reached"), None, None),
        (EngineRun(ended="deserted", failed="every worker left"), "every worker left", None),
        (EngineRun(), "the job ended before its goal, and no process reported why", None),
        (EngineRun(interrupted=signal.SIGTERM), None, "SIGTERM"),
    ],
    ids=["goal", "failed", "without a word", "signal before round 1"],
)
def test_a_result_says_why_a_job_has_ended_without_a_goal(
    run: EngineRun, failed: str | None, stopped_by: str | None
) -> None:
    summary = summary_of(run, JobSpec(job="j"), RunState())
    assert (summary["failed"], summary["stopped_by"]) == (failed, stopped_by)
