"""If workers fail shortly before the job fails, one line reports their failures together with the
end of the job."""

from pathlib import Path

import pytest

from polyrhythm.engines.engine import EngineWatch
from polyrhythm.engines.inline import _how
from polyrhythm.engines.local import LocalJob
from polyrhythm.engines.requests import ChildRequest
from polyrhythm.errors import UsageError
from polyrhythm.wire.messages import JobSpec


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def local_job(tmp_path: Path, said: list[str]) -> LocalJob:
    job = JobSpec(job="j", name="digits")
    server = ChildRequest(role="server", number=0, name="s0", job=job, run_dir=str(tmp_path))
    local_job = LocalJob([server], EngineWatch(say=said.append))
    # a failure of a worker that has not been reported yet
    local_job._failures._unsaid = {"worker-0": "it raised"}
    return local_job


def test_a_failure_is_reported_soon_while_the_job_goes_on(
    local_job: LocalJob, said: list[str]
) -> None:
    local_job._look_around()
    assert said == ["worker-0 failed: it raised"]


def test_a_failure_is_reported_with_the_end_of_a_job_that_has_failed(
    local_job: LocalJob, said: list[str]
) -> None:
    local_job._run.failed = "server s0 died"
    local_job._look_around()
    assert said == [] and local_job._failures.take()


def test_a_failure_that_the_end_of_the_job_names_is_not_repeated(local_job: LocalJob) -> None:
    local_job._failures.note("worker-1", "it holds NaN")
    local_job._run.failed = "the job ends (--on-nan end): it holds NaN"
    local_job._supervise()
    assert local_job._run.failed == (
        "the job ends (--on-nan end): it holds NaN: worker-0 failed: it raised"
    )


def test_the_inline_engine_reports_an_error_of_polyrhythm_as_processes_do() -> None:
    assert _how(UsageError("k is 0: give a positive number")) == "k is 0: give a positive number"
    assert _how(ValueError("too few")) == "ValueError: too few"
