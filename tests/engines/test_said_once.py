"""Workers that fail shortly before the job does are said in one line with its end."""

import time
from pathlib import Path

import pytest

from polyrhythm.engines.local import LocalEngine
from polyrhythm.engines.requests import ChildRequest
from polyrhythm.wire.messages import JobSpec


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def engine(tmp_path: Path, said: list[str]) -> LocalEngine:
    job = JobSpec(job="j", name="digits")
    server = ChildRequest(role="server", number=0, name="s0", job=job, run_dir=str(tmp_path))
    engine = LocalEngine([server], say=said.append)
    engine._stopping_since = time.monotonic()
    engine._unsaid = {"worker-0": "it raised"}
    return engine


def test_while_the_job_goes_on_they_are_said_soon(engine: LocalEngine, said: list[str]) -> None:
    engine._look_around()
    assert said == ["worker-0 failed: it raised"]


def test_when_it_has_failed_they_wait_for_its_end(engine: LocalEngine, said: list[str]) -> None:
    engine._run.failed = "server s0 died"
    engine._look_around()
    assert said == [] and engine._unsaid
