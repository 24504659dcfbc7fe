"""If workers fail shortly before the job fails, one line reports their failures together with the
end of the job."""

from pathlib import Path

import pytest

from polyrhythm.engines.inline import _how
from polyrhythm.engines.supervisor import Supervisor
from polyrhythm.errors import UsageError
from polyrhythm.wire.messages import JobSpec
from tests.engines.hosts import supervisor_of


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def supervisor(tmp_path: Path, said: list[str]) -> Supervisor:
    supervisor, _ = supervisor_of(JobSpec(job="j", name="digits"), tmp_path, said)
    # a failure of a worker that has not been reported yet
    supervisor._failures._unsaid = {"worker-0": "it raised"}
    return supervisor


def test_a_failure_is_reported_soon_while_the_job_goes_on(
    supervisor: Supervisor, said: list[str]
) -> None:
    supervisor._look_around()
    assert said == ["worker-0 failed: it raised"]


def test_a_failure_is_reported_with_the_end_of_a_job_that_has_failed(
    supervisor: Supervisor, said: list[str]
) -> None:
    supervisor._run.failed = "server s0 died"
    supervisor._look_around()
    assert said == [] and supervisor._failures.take()


def test_a_failure_that_the_end_of_the_job_names_is_not_repeated(supervisor: Supervisor) -> None:
    supervisor._failures.note("worker-1", "it holds NaN")
    supervisor._run.failed = "the job ends (--on-nan end): it holds NaN"
    supervisor._supervise()
    assert supervisor._run.failed == (
        "the job ends (--on-nan end): it holds NaN: worker-0 failed: it raised"
    )


def test_the_inline_engine_reports_an_error_of_polyrhythm_as_processes_do() -> None:
    assert _how(UsageError("k is 0: give a positive number")) == "k is 0: give a positive number"
    assert _how(ValueError("too few")) == "ValueError: too few"
