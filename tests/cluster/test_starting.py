"""A server that is killed while it starts holds no slices yet, so the engine restarts it."""

import os
import random
import signal
from pathlib import Path

import pytest

from tests.cluster.job_servers import JobServers
from tests.cluster.ledger_job import FEW, JOB, finish, flags, gather
from tests.cluster.processes import Command, wait_until

BEFORE, AFTER = "made Address", "told Address"
"""Two crash points: just before and just after a server tells the command its address."""


@pytest.fixture
def crash_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "crash-at"
    monkeypatch.setenv("POLYRHYTHM_CRASH_AT", str(file))
    return file


def train(cwd: Path, *more: object) -> Command:
    given = [flag for flag in flags("bsp", FEW) if flag != "--respawn"]
    return Command(JOB, *given, "--workers", 2, "--servers", 3, *more, cwd=cwd)


@pytest.mark.parametrize("replicas", [0, 1])
@pytest.mark.parametrize("point", [f"s0 {BEFORE}", f"s1 {BEFORE}", f"s1 {AFTER}", f"s2 {BEFORE}"])
def test_a_server_killed_before_the_job_began_is_restarted(
    tmp_path: Path, crash_at: Path, point: str, replicas: int
) -> None:
    crash_at.write_text(point)
    with train(tmp_path, "--replicas", replicas) as command:
        job_workers = gather(command, random.Random(0), workers=2)
        assert not crash_at.exists(), "it was killed there"
        finish(job_workers)
    name = point[:2]
    assert command.stderr().splitlines() == [
        f"polyrhythm: {name} failed: killed by SIGKILL; it is started again in 0.5 s",
        f"polyrhythm: {name} was started again",
    ]


def test_a_server_that_dies_while_it_restarts_is_restarted_once_more(
    tmp_path: Path, crash_at: Path
) -> None:
    with train(tmp_path, "--replicas", 1, "--respawn") as command:
        job_workers = gather(command, random.Random(0), workers=2)
        job_servers = JobServers(job_workers, random.Random(0))
        crash_at.write_text(f"s1 {BEFORE}")
        job_workers.begin("s1", job_servers.kill(1))
        job_workers.until_calm()
        assert not crash_at.exists(), "it was killed there"
        finish(job_workers)
    said = command.stderr().splitlines()
    (lost,) = (line for line in said if "server s1 is lost" in line)
    assert "the job goes on with 2 of 3 servers" in lost
    assert [line for line in said if line != lost] == [
        "polyrhythm: s1 failed: killed by SIGKILL; it is started again in 0.5 s",
        "polyrhythm: s1 was started again",
        "polyrhythm: s1 failed: killed by SIGKILL; it is started again in 1 s",
        "polyrhythm: s1 was started again",
    ]


def test_a_server_that_never_starts_ends_the_job_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every process that starts as s1 dies at once. The fifth death in a row ends the job."""
    crash_at = tmp_path / "crash-at"
    monkeypatch.setenv("POLYRHYTHM_CRASH_AT", str(crash_at))
    monkeypatch.setenv("POLYRHYTHM_CRASH_AGAIN", "1")
    crash_at.write_text(f"s1 {BEFORE}")
    with train(tmp_path, "--replicas", 1) as command:
        assert command.wait() == 1
    *before, last = command.stderr().splitlines()
    assert len(before) == 8
    assert last.startswith(
        "polyrhythm: server s1 could not be started: it died 5 times in a row within 10 s of its"
        " start (killed by SIGKILL)"
    )


def test_a_stopped_command_leaves_no_server_that_is_starting(
    tmp_path: Path, crash_at: Path
) -> None:
    crash_at.write_text(f"s0 {BEFORE}")
    with train(tmp_path) as command:
        wait_until(lambda: "started again in" in command.stderr(), "s0 died")
        os.kill(command.process.pid, signal.SIGINT)
        assert command.wait() != 0
        wait_until(lambda: not command.pids(), "no process is left")
        assert "Traceback" not in command.stderr()
        assert not (command.run_dir / "journal.jsonl").exists()
        assert "journal" not in command.stdout(), "no file is named that does not exist"
