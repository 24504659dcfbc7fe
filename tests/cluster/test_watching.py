"""A run can be watched from another terminal, while it runs and after it was killed."""

import json
import os
import signal
from pathlib import Path
from typing import Any

from tests.cluster.processes import Command, call, wait_until


def status(cwd: Path) -> dict[str, Any]:
    done = call("status", "--json", cwd=cwd)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_run_is_watched_until_it_is_killed(tmp_path: Path, long_job: Path) -> None:
    flags = ["--workers", 2, "--servers", 1, "--rounds", 1_000_000]
    with Command(long_job, *flags, cwd=tmp_path) as command:
        command.await_round(1)
        found = status(tmp_path)
        assert (found["run"], found["is"]) == ("run", "running")
        assert {member["name"] for member in found["members"]} == {"worker-0", "worker-1"}
        assert call("why", cwd=tmp_path).returncode == 0
        # stop the lead, so that it cannot record the ends of its workers
        os.kill(command.servers()[0], signal.SIGSTOP)
        command.process.kill()
        command.wait()
        wait_until(lambda: not command.pids(), "every process ended")
        assert status(tmp_path)["is"] == "ended without a word"
        assert "round 1 opened with 2 workers" in call("story", cwd=tmp_path).stdout
