"""However a command ends, it ends soon, gives its reason on one line, and leaves no processes or
files."""

import os
import signal
import time
from pathlib import Path

import pytest

from polyrhythm.cli.launch import WORKERS_FAILED
from tests.cluster.processes import Command, abstract_names, last_word, wait_until

MANY = 1_000_000
SOON_S = 20
"""Every process must have ended within this many seconds."""


def start(job: Path, cwd: Path, *flags: object) -> Command:
    return Command(job, "--rounds", MANY, "--timer", "off", *flags, cwd=cwd)


def sockets_of(command: Command) -> set[str]:
    names = {name for pid in command.servers() for name in command.local_names(pid)}
    assert names and names <= abstract_names()
    return names


def assert_nothing_left(
    command: Command, names: set[str], files: set[str], within_s: float
) -> None:
    wait_until(lambda: not command.pids(), "every process ended", within_s)
    wait_until(lambda: not names & abstract_names(), "their sockets are gone", 10)
    assert not [path for path in files if os.path.exists(path)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_every_process(
    tmp_path: Path, long_job: Path, number: signal.Signals
) -> None:
    with start(long_job, tmp_path, "--workers", 2, "--servers", 2) as command:
        command.await_round(1)
        assert len(command.pids()) == 6
        names, files = sockets_of(command), command.memory_files()
        began_s = time.monotonic()
        os.kill(command.process.pid, number)
        assert command.wait(SOON_S) != 0
        assert_nothing_left(command, names, files, SOON_S - (time.monotonic() - began_s))
        assert "stopped on request" in command.stderr()
        assert "Traceback" not in command.stderr()


def test_a_signal_during_the_start_ends_every_process(tmp_path: Path, long_job: Path) -> None:
    """The signal comes when the fork server runs, but no server has been started yet."""
    with start(long_job, tmp_path, "--workers", 2, "--servers", 2) as command:
        wait_until(lambda: len(command.pids()) >= 2, "the fork server was started")
        os.kill(command.process.pid, signal.SIGINT)
        assert command.wait(SOON_S) != 0
        wait_until(lambda: not command.pids(), "every process ended", SOON_S)
        assert "Traceback" not in command.stderr()


def test_ctrl_c_in_a_terminal_ends_the_whole_process_group(tmp_path: Path, long_job: Path) -> None:
    with start(long_job, tmp_path, "--workers", 2, "--servers", 1) as command:
        command.await_round(1)
        os.killpg(command.process.pid, signal.SIGINT)
        assert command.wait(SOON_S) != 0
        wait_until(lambda: not command.pids(), "every process ended", SOON_S)
        assert "Traceback" not in command.stderr()


@pytest.mark.parametrize("servers", [1, 2])
def test_sigterm_to_every_process_is_a_request_to_stop(
    tmp_path: Path, long_job: Path, servers: int
) -> None:
    """A service manager may stop a job in this way. The fork server and the servers must not
    end before the model is saved."""
    with start(long_job, tmp_path, "--workers", 2, "--servers", servers) as command:
        command.await_round(1)
        for pid in command.pids():
            os.kill(pid, signal.SIGTERM)
        assert command.wait(SOON_S) == 128 + signal.SIGTERM
        wait_until(lambda: not command.pids(), "every process ended", SOON_S)
        assert "stopped on request" in command.stderr()
        assert "Traceback" not in command.stderr()
        assert (command.run_dir / "result.json").exists()
        assert (command.run_dir / "model.safetensors").exists()


def test_killing_the_command_ends_its_children(tmp_path: Path, long_job: Path) -> None:
    with start(long_job, tmp_path, "--workers", 2, "--servers", 2) as command:
        command.await_round(1)
        names, files = sockets_of(command), command.memory_files()
        command.process.kill()
        command.wait(SOON_S)
        assert_nothing_left(command, names, files, SOON_S)


@pytest.mark.parametrize("server", [0, 1])
def test_killing_a_server_ends_the_job_with_one_line(
    tmp_path: Path, long_job: Path, server: int
) -> None:
    with start(long_job, tmp_path, "--workers", 2, "--servers", 2, "--quiet") as command:
        command.await_round(1)
        names, files = sockets_of(command), command.memory_files()
        os.kill(command.servers()[server], signal.SIGKILL)
        assert command.wait(SOON_S) != 0
        lines = command.stderr().strip().splitlines()
        line = last_word(lines)
        assert f"server s{server} died" in line
        assert server == 0 or lines == [line], "only without the lead do workers fail"
        assert_nothing_left(command, names, files, SOON_S)


def test_after_a_worker_is_killed_the_others_reach_the_goal(tmp_path: Path, long_job: Path) -> None:
    """The other workers wait at a gate until the first worker is dead, so the job cannot end before
    that."""
    text = long_job.read_text().replace("import torch\n", "import os, time\nimport torch\n")
    gate = '        while worker.version == 20 and not os.path.exists("go"):\n'
    gate += "            time.sleep(0.01)\n"
    long_job.write_text(text.replace("stopped:\n", f"stopped:\n{gate}"))
    flags = ["--workers", 3, "--servers", 2, "--timer", "off", "--json"]
    with Command(long_job, "--rounds", 40, *flags, cwd=tmp_path) as command:
        wait_until(lambda: len(command.pids()) == 7, "all processes were started")
        command.await_round(0)
        victim = command.workers()[1]
        os.kill(victim, signal.SIGKILL)
        left = wait_until(lambda: command.journal("left"), "its end was noticed")
        (tmp_path / "go").touch()
        assert command.wait() == WORKERS_FAILED
        assert [line["name"] for line in left] == ["worker-1"]
        assert command.stderr().strip() == ("polyrhythm: worker-1 failed: killed by SIGKILL")
        ended = command.journal("ended")[0]
        assert ended["rounds"] == 40 and not ended["failed"]
        names = {str(line["worker"]): line["name"] for line in command.journal("joined")}
        totals = command.journal("rounds")[-1]["workers"]
        counts = {names[worker]: totals[worker]["contributions"] for worker in totals}
        assert counts["worker-0"] == counts["worker-2"] == 40
        assert counts.get("worker-1", 0) <= 20
