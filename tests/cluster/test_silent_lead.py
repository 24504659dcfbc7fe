"""The lead's process is stopped with SIGSTOP: it sends nothing, and no link ends."""

import json
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.job_workers import JobWorkers
from tests.cluster.processes import Command, call, wait_until

JOB = Path(__file__).parent / "jobs" / "visits.py"


def why(folder: Path) -> dict[str, Any]:
    asked = call("why", "run", "--json", cwd=folder)
    assert asked.returncode == 0, asked.stderr
    return json.loads(asked.stdout)  # type: ignore[no-any-return]


def until(done: Callable[[], Any], what: str) -> Any:
    """Wait for an answer of `why`, which is a command of its own."""
    return wait_until(done, what, pause_s=0.3)


def unless_silent(asked: dict[str, Any]) -> dict[str, Any] | None:
    """Return the answer of `why`, or None if it says that the running job waits for its lead."""
    waits = asked["is"] == "running" and asked["missing"] == ["the lead (s0)"]
    return None if waits else asked


def begin(command: Command, workers: int = 2) -> JobWorkers:
    job_workers = JobWorkers(command, random.Random(0))
    job_workers.until(lambda: len(job_workers.books) == workers, "all train")
    job_workers.until_progress(10)
    return job_workers


@pytest.mark.guarantee("lead-silent", policies=("bsp",), k=(0,))
def test_a_stopped_lead_is_reported_and_its_return_is_reported(
    tmp_path: Path,
) -> None:
    flags = ["--sync", "bsp", "--timer", "off", "--workers", 2, "--servers", 2]
    with Command(JOB, *flags, "--epochs", 1, cwd=tmp_path) as command:
        job_workers = begin(command)
        assert "the lead" not in command.stderr(), "a lead that beats is not suspected"
        lead = command.servers()[0]
        os.kill(lead, signal.SIGSTOP)
        until(lambda: len(why(tmp_path)["held"]) == 3, "both workers and s1 suspect it")
        explained = why(tmp_path)
        assert explained["is"] == "running"
        assert explained["what"].startswith("the lead, in server s0, has sent nothing for ")
        assert explained["missing"] == ["the lead (s0)"]
        assert sorted(explained["held"]) == ["s1", "worker-0", "worker-1"]
        assert 60 < explained["left_s"] < 120, "the default of --lead-timeout is 120 s"
        wait_until(lambda: "the lead has sent nothing for" in command.stderr(), "it is shown")
        os.kill(lead, signal.SIGCONT)
        wait_until(lambda: "the lead was heard from again after" in command.stderr(), "it is shown")
        until(lambda: "the lead" not in why(tmp_path)["what"], "why knows it")
        job_workers.until_progress(10)
        (tmp_path / "go").touch()
        assert command.wait() == 0, command.stderr()


@pytest.mark.guarantee("lead-silent", k=(0,))
@pytest.mark.parametrize("sync", ["bsp", "asp"])
def test_every_process_ends_in_order_if_the_lead_does_not_return(tmp_path: Path, sync: str) -> None:
    flags = ["--sync", sync, "--timer", "off", "--workers", 3, "--local-workers", 2]
    flags += ["--servers", 2, "--respawn", "--lead-timeout", 5]
    with Command(JOB, *flags, "--epochs", 1, cwd=tmp_path) as command:
        wait_until(lambda: command.journal("listening"), "it listens")
        guest = command.join(JOB, "--name", "guest")
        begin(command, workers=3)
        os.kill(command.servers()[0], signal.SIGSTOP)
        until(lambda: "the lead" in why(tmp_path)["what"], "it is suspected")
        asked = until(lambda: unless_silent(why(tmp_path)), "the lead is given up")
        assert asked["is"] == "failed", "why names the lead as long as the run is on"
        assert command.wait() == 1, command.stderr()
        said = command.stderr()
        assert "polyrhythm: the lead has sent nothing for 5." in said.splitlines()[-1]
        assert said.splitlines()[-1].endswith("(--lead-timeout 5): the job ends")
        assert "started again" not in said, "without a lead no process is started again"
        assert guest.wait(30) == 1
        assert guest.stderr is not None
        told = guest.stderr.read().splitlines()
        assert any("guest: the lead has sent nothing for" in line for line in told), told
        assert told[-1].startswith("polyrhythm: guest ends: the lead has sent nothing for 5.")
        wait_until(lambda: not command.pids(), "no process is left, the stopped one included")
    assert "--lead-timeout 5" in asked["what"]
