"""A process on which all others depend is killed: the result names it, and no other process."""

import json
import os
import signal
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.cluster.processes import Command


@pytest.mark.parametrize("sync", ["bsp", "asp"])
@pytest.mark.parametrize("flags", [(), ("--respawn",), ("--on-error", "end")])
def test_when_the_only_server_is_killed_no_worker_counts_as_failed(
    tmp_path: Path, long_job: Path, sync: str, flags: tuple[str, ...]
) -> None:
    sizes = ("--workers", 3, "--servers", 1, "--rounds", 1_000_000)
    with Command(long_job, *sizes, "--sync", sync, *flags, "--json", cwd=tmp_path) as command:
        command.await_round(3)
        (server,) = command.servers()
        os.kill(server, signal.SIGKILL)
        assert command.wait() == 1
    result = json.loads(command.stdout())
    assert result["failed"].startswith("server s0 died (killed by SIGKILL)")
    assert result["worker_failures"] == {}
    (line,) = command.stderr().splitlines()
    assert line == f"polyrhythm: {result['failed']}" and "worker" not in line


@pytest.mark.parametrize("flags", [(), ("--respawn",)])
def test_when_the_fork_server_is_killed_the_model_and_the_result_are_saved(
    tmp_path: Path, long_job: Path, flags: tuple[str, ...]
) -> None:
    sizes = ("--workers", 2, "--servers", 2, "--rounds", 1_000_000)
    with Command(long_job, *sizes, *flags, "--json", cwd=tmp_path) as command:
        command.await_round(3)
        fork_server = command.pids()[1]
        os.kill(fork_server, signal.SIGKILL)
        assert command.wait() == 1
        assert not [pid for pid in command.pids() if pid != fork_server], "a process is left over"
    result = json.loads(command.stdout())
    words = "the process that starts the others died (killed by SIGKILL)"
    assert result["failed"] == result["ended"] == words and result["worker_failures"] == {}
    assert json.loads((command.run_dir / "result.json").read_text()) == result
    assert load_file(command.run_dir / "model.safetensors")["weight"].shape == (4, 8)
    assert command.stderr().splitlines() == [f"polyrhythm: {words}"]
