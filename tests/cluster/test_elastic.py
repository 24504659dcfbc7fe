"""Workers that join by command, leave on request, and are restarted when they die."""

import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.processes import SHOWN_ELSEWHERE, Command, call, wait_until

MANY = 1_000_000
SLOWLY = '        if not os.path.exists("guest.pid"):\n            time.sleep(0.6)\n'
"""The first lines of the training loop of a job that makes few rounds until the worker `guest` has
joined."""
COUNTING = """
import os, pathlib, time
import torch


def main(worker):
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 4)
    optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.0))
    pathlib.Path(f"{worker.name}.pid").write_text(str(os.getpid()))
    steps = 0
    while not worker.stopped:
        while os.path.exists(f"{worker.name}.hold"):
            word = "asked" if worker.stopped else "held"
            pathlib.Path(f"{worker.name}.{word}").touch()
            time.sleep(0.01)
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step(points=2)
        steps += 1
    pathlib.Path(f"{worker.name}.steps").write_text(str(steps))
"""
"""A job that writes its process number and trains. While the file `NAME.hold` exists the worker
waits, and records whether it was told to leave meanwhile. At the end it writes the number of its
steps."""


@pytest.fixture
def counting(tmp_path: Path) -> Path:
    path = tmp_path / "counting.py"
    path.write_text(COUNTING)
    return path


def start(job: Path, *flags: object, rounds: int = MANY) -> Command:
    return Command(job.name, "--rounds", rounds, "--timer", "off", *flags, cwd=job.parent)


def pid_of(command: Command, name: str) -> int:
    path = command.cwd / f"{name}.pid"
    return int(wait_until(lambda: path.exists() and path.read_text(), f"{name} trains"))


def totals_of(command: Command, name: str) -> dict[str, int]:
    worker = str(command.joined(name)[0]["worker"])
    nothing = {"contributions": 0, "points": 0}
    return command.journal("rounds")[-1]["workers"].get(worker, nothing)


def stop(command: Command) -> None:
    os.kill(command.process.pid, signal.SIGTERM)
    command.wait()


# -- joining -----------------------------------------------------------------------------------


def test_a_worker_joins_by_command_and_stays_to_the_end(counting: Path) -> None:
    # The worker named guest joins at the end of a round. Until then rounds must be slow, so that
    # the job does not reach its 100 rounds before the guest trains.
    counting.write_text(COUNTING.replace("worker.stopped:\n", f"worker.stopped:\n{SLOWLY}"))
    with start(counting, "--workers", 1, "--servers", 2, rounds=100) as command:
        command.await_round(0)
        joiner = command.join("--name", "guest")
        assert command.wait() == 0
        _, said = joiner.communicate(timeout=20)
        assert joiner.returncode == 0, said
        address = command.address()
        assert said.splitlines() == [
            f"importing torch, then connecting to {address}",
            f"joined job counting.py at {address} as guest",
            "left: the job has ended",
        ]
        assert f"others may join: polyrhythm worker --connect {address}" in command.stderr()
        assert "guest joined" in command.stderr()
        assert command.left("guest") == ["done"]
        steps = int(counting.with_name("guest.steps").read_text())
        assert totals_of(command, "guest")["contributions"] == steps > 0


def test_a_guest_visits_points_and_has_its_own_stage(tmp_path: Path) -> None:
    """Every point is visited as often as `--epochs` says, although a worker joins."""
    job = tmp_path / "visiting.py"
    loop = "for points, in worker.batches((torch.ones(203, 8),), batch_size=5):"
    text = COUNTING.replace("while not worker.stopped:", loop)
    text = text.replace("torch.ones(2, 8)", "points").replace("(points=2)", "()")
    # The worker named guest joins at the end of a round. Until then rounds must be slow, so that
    # points are left for the guest.
    job.write_text(text.replace("batch_size=5):\n", f"batch_size=5):\n{SLOWLY}"))
    flags = ["--workers", 1, "--epochs", 3, "--timer", "off", "--json"]
    with Command("visiting.py", *flags, cwd=tmp_path) as command:
        joiner = command.join("--min-step", "2ms", "--link", "tcp", "--name", "guest")
        assert command.wait() == 0, command.stderr()
        _, said = joiner.communicate(timeout=20)
        assert joiner.returncode == 0, said
        result = json.loads(command.stdout())
        assert result["passes"] == 3 and result["points"] == 3 * 203
        guest = result["per_worker"]["guest"]
        assert guest["points"] > 0
        assert guest["compute_s"] >= 0.002 * guest["contributions"]


def test_a_job_continues_with_a_guest_after_its_own_workers_have_left(counting: Path) -> None:
    with start(counting, "--workers", 1, "--servers", 1) as command:
        command.await_round(0)
        joiner = command.join("--name", "guest")
        pid_of(command, "guest")
        os.kill(pid_of(command, "worker-0"), signal.SIGTERM)
        wait_until(lambda: command.left("worker-0"), "its own worker left")
        before = totals_of(command, "guest")["contributions"]
        wait_until(
            lambda: totals_of(command, "guest")["contributions"] > before + 20,
            "the guest trains on alone",
        )
        os.kill(joiner.pid, signal.SIGINT)
        _, said = joiner.communicate(timeout=20)
        assert joiner.returncode == 128 + signal.SIGINT, said
        assert said.splitlines()[-1] == "left: it was told to leave"
        assert command.wait() == 1
        assert "all workers left before the job reached its goal" in command.stderr()


# -- leaving -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "a_step"),
    [
        ([], 2),
        pytest.param(["--kind", "local", "--local-steps", 1000], 2, marks=SHOWN_ELSEWHERE),
        (["--sync", "asp"], 2),
        pytest.param(["--sync", "psp", "--kind", "local"], 2, marks=SHOWN_ELSEWHERE),
    ],
    ids=["gradient", "local", "asp", "psp"],
)
def test_a_worker_that_is_told_to_leave_contributes_what_it_has(
    counting: Path, flags: list[object], a_step: int
) -> None:
    with start(counting, "--workers", 2, "--servers", 2, *flags) as command:
        command.await_round(1)
        os.kill(pid_of(command, "worker-1"), signal.SIGTERM)
        wait_until(lambda: command.left("worker-1"), "it left")
        assert command.left("worker-1") == ["told-to-leave"]
        steps = int(counting.with_name("worker-1.steps").read_text())
        wait_until(
            lambda: totals_of(command, "worker-1")["points"] == steps * a_step, "all is counted"
        )
        stop(command)
        assert totals_of(command, "worker-1")["points"] == steps * a_step
        assert "worker-1 left: it was told to leave" in command.stderr()
        assert "failed" not in command.stderr()


def test_a_worker_that_waits_for_others_leaves_without_waiting(counting: Path) -> None:
    with start(counting, "--workers", 2, "--servers", 2) as command:
        command.await_round(0)
        counting.with_name("worker-0.hold").touch()
        wait_until(counting.with_name("worker-0.held").exists, "worker-1 waits for worker-0")
        os.kill(pid_of(command, "worker-1"), signal.SIGTERM)
        wait_until(lambda: command.left("worker-1"), "it left")
        steps = int(counting.with_name("worker-1.steps").read_text())
        counting.with_name("worker-0.hold").unlink()
        wait_until(
            lambda: totals_of(command, "worker-1")["contributions"] == steps, "all is counted"
        )
        stop(command)
        assert totals_of(command, "worker-1")["contributions"] == steps


def test_a_worker_that_is_told_to_leave_twice_leaves_at_once(counting: Path) -> None:
    with start(counting, "--workers", 2, "--servers", 1) as command:
        command.await_round(0)
        counting.with_name("worker-1.hold").touch()
        wait_until(counting.with_name("worker-1.held").exists, "worker-1 is in its step")
        pid = pid_of(command, "worker-1")
        os.kill(pid, signal.SIGTERM)
        wait_until(counting.with_name("worker-1.asked").exists, "it took the first one")
        os.kill(pid, signal.SIGTERM)
        wait_until(lambda: command.left("worker-1"), "it left")
        assert not counting.with_name("worker-1.steps").exists()
        stop(command)


def test_a_guest_that_is_told_to_leave_twice_ends_with_the_status_of_the_signal(
    counting: Path,
) -> None:
    with start(counting, "--workers", 1, "--servers", 1) as command:
        command.await_round(0)
        joiner = command.join("--name", "guest")
        pid_of(command, "guest")
        counting.with_name("guest.hold").touch()
        wait_until(counting.with_name("guest.held").exists, "the guest is in its step")
        os.kill(joiner.pid, signal.SIGTERM)
        wait_until(counting.with_name("guest.asked").exists, "it took the first one")
        os.kill(joiner.pid, signal.SIGTERM)
        assert joiner.wait(20) == 128 + signal.SIGTERM
        wait_until(lambda: command.left("guest"), "it left")
        stop(command)


# -- restarting --------------------------------------------------------------------------------


def test_a_killed_worker_is_restarted(counting: Path) -> None:
    """It contributes between its deaths, so every pause is as short as the first one."""
    with start(counting, "--workers", 2, "--servers", 2, "--respawn", "--json") as command:
        command.await_round(0)
        for times in (2, 3):
            first = pid_of(command, "worker-1")
            os.kill(first, signal.SIGKILL)
            wait_until(lambda n=times: len(command.joined("worker-1")) == n, "it is in again")
            wait_until(lambda pid=first: pid_of(command, "worker-1") != pid, "it trains again")
            # when its second contribution is folded, it knows that the first one is acknowledged
            enough = totals_of(command, "worker-1")["contributions"] + 2
            wait_until(
                lambda n=enough: totals_of(command, "worker-1")["contributions"] >= n,
                "its work counts",
            )
        os.kill(pid_of(command, "worker-0"), signal.SIGTERM)
        wait_until(lambda: command.left("worker-0"), "the other left by itself")
        os.kill(pid_of(command, "worker-1"), signal.SIGTERM)
        assert command.wait() == 1
        again = [
            "polyrhythm: worker-1 failed: killed by SIGKILL; it is started again in 0.5 s",
            "polyrhythm: worker-1 was started again",
        ]
        end = "polyrhythm: all workers left before the job reached its goal"
        assert command.stderr().splitlines() == [*again, *again, end]
        assert json.loads(command.stdout())["respawned"] == {"worker-1": 2}
        assert len(command.joined("worker-0")) == 1


def test_a_worker_that_dies_at_every_start_is_given_up_and_the_job_continues(
    tmp_path: Path,
) -> None:
    job = tmp_path / "counting.py"
    crash = '    if worker.name == "worker-1":\n        os._exit(3)\n'
    job.write_text(COUNTING.replace("(worker):\n", f"(worker):\n{crash}"))
    flags = ["--workers", 2, "--servers", 1, "--respawn", "--start-timeout", 1, "--quiet"]
    with start(job, *flags) as command:
        wait_until(lambda: "not started again" in command.stderr(), "it is given up")
        command.await_round(1)
        lines = command.stderr().splitlines()
        assert len(lines) == 9
        given_up = (
            "worker-1 failed: exit status 3; it is not started again, because it died 5 times in a"
            " row within 10 s of its start"
        )
        assert lines[-1].endswith(given_up)
        stop(command)
        (noted,) = command.journal("given-up")
        assert (noted["name"], noted["detail"], noted["deaths"]) == ("worker-1", "exit status 3", 5)
        assert [line["after_s"] for line in command.journal("respawn")] == [0.5, 1, 2, 4]
        assert given_up in call("story", "run", cwd=tmp_path).stdout
        asked = call("why", "run", cwd=tmp_path).stdout
        assert f"given up: {given_up}" in asked
        assert "died five times in a row within 10 s of its start" in asked
        assert "polyrhythm worker --connect" in asked


def test_no_worker_is_restarted_while_the_job_stops(tmp_path: Path) -> None:
    job = tmp_path / "counting.py"
    crash = '    if worker.name == "worker-1":\n        os._exit(3)\n'
    job.write_text(COUNTING.replace("(worker):\n", f"(worker):\n{crash}"))
    flags = ["--workers", 2, "--servers", 1, "--respawn", "--start-timeout", 0.5, "--quiet"]
    with start(job, *flags) as command:
        command.await_round(1)
        wait_until(lambda: "it is started again in 2 s" in command.stderr(), "it has died thrice")
        os.kill(command.process.pid, signal.SIGINT)
        assert command.wait() == 130
        assert command.stderr().count("worker-1 was started again") == 2
        assert [line["after_s"] for line in command.journal("respawn")] == [0.5, 1, 2]


# -- refusals ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    folder = tmp_path_factory.mktemp("running")
    (folder / "counting.py").write_text(COUNTING)
    with start(folder / "counting.py", "--workers", 1, "--servers", 2, "--quiet") as command:
        command.await_round(0)
        yield command
        command.assert_alive()
        before = totals_of(command, "worker-0")["contributions"]
        wait_until(
            lambda: totals_of(command, "worker-0")["contributions"] > before, "the job is unharmed"
        )
        assert not command.left("worker-0")
        assert len(command.joined("worker-0")) == 1


def refused(done: subprocess.CompletedProcess[str], status: int = 1) -> str:
    """Return the last line on stderr of a worker that must be refused. The lines before it may only
    say that the worker joined, and that its code differs from the job's."""
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    *before, line = done.stderr.strip().splitlines()
    known = ("importing torch", "joined job ", "other.py differs from the job's file")
    assert all(other.startswith(known) for other in before), done.stderr
    assert line.startswith("polyrhythm: ")
    return line


def join(command: Command, *args: object) -> subprocess.CompletedProcess[str]:
    return call("worker", "--connect", command.address(), *args, cwd=command.cwd)


def test_a_port_without_a_listener(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # the socket is bound but does not listen, so connections to its port are refused
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        command = ("worker", "--connect", f"127.0.0.1:{port}")
        unknown = refused(call(*command, cwd=tmp_path))
        monkeypatch.setenv("POLYRHYTHM_SECRET", "5" * 64)
        line = refused(call(*command, cwd=tmp_path))
    assert f"no job listens at 127.0.0.1:{port}: it has ended, or has another address" in unknown
    assert f"could not reach lead at 127.0.0.1:{port}: Connection refused" in line


def test_a_name_that_is_taken_is_refused(running: Command) -> None:
    line = refused(join(running, "--name", "worker-0"))
    assert "worker-0 was refused: a worker with this name is in the job" in line
    noted = [
        line["fields"] for line in running.journal("refused") if line["reason"] == "name-taken"
    ]
    assert noted == [{"name": "worker-0"}]


def test_another_jobs_identifier_is_refused(running: Command) -> None:
    line = refused(join(running, "--name", "lost", "--job", "that-other-one"))
    assert (
        "a process answered as lead, but it is not that process: the process at this address"
        in line
    )
    assert "belongs to another job" in line


def test_this_jobs_identifier_is_accepted(running: Command) -> None:
    job_id = json.loads((running.run_dir / "job.json").read_text())["job"]
    joiner = running.join("--name", "exact", "--job", job_id)
    pid_of(running, "exact")
    os.kill(joiner.pid, signal.SIGTERM)
    assert joiner.wait(20) == 128 + signal.SIGTERM


def test_a_worker_with_another_model_is_refused(running: Command) -> None:
    (running.cwd / "other.py").write_text(COUNTING.replace("Linear(8, 4)", "Linear(8, 5)"))
    line = refused(join(running, "other.py", "--name", "odd"))
    shapes = "the parameter 'weight' has shape [5, 8], in the job it has [4, 8]"
    assert f"odd's model differs: {shapes}" in line


def test_a_worker_without_the_jobs_code_is_refused(running: Command) -> None:
    hidden = running.cwd / "counting.py"
    hidden.rename(hidden.with_name("gone"))
    try:
        line = refused(join(running, "--name", "naked"))
    finally:
        hidden.with_name("gone").rename(hidden)
    assert "the code of job counting.py is not on this machine" in line
    assert "counting.py" in line


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--connect", "nowhere"], "--connect 'nowhere' is not understood: give HOST:PORT"),
        (["--connect", "localhost:99999"], "--connect 'localhost:99999' is not understood"),
        ([], "--connect is missing: give HOST:PORT"),
        (["--connect", "h:1", "--link", "local"], "--link 'local' is not known"),
        (["--connect", "h:1", "--digest", "md5"], "--digest 'md5' is not known"),
        (["--connect", "h:1", "--threads", "0"], "--threads is 0"),
        (["--connect", "h:1", "--name", ""], "--name is empty"),
        (["--connect", "h:1", "--trace", "nowhere"], "--trace nowhere: there is no such folder"),
        (["--connect", "h:1", "missing.py"], "cannot read missing.py"),
        (["--connect", "h:1", "--slow", "fast"], "--slow 'fast' is not understood"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_flags_of_a_worker_are_refused(tmp_path: Path, flags: list[str], words: str) -> None:
    line = refused(call("worker", *flags, cwd=tmp_path), status=2)
    assert words in line


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--min-step", "10"], "--min-step '10' is not understood"),
        (["--slow", "3=4x"], "--slow '3=4x': there is no worker 3; with --workers 3"),
        (["--slow", "1=-2x"], "--slow '1=-2x' is not understood"),
        (["--stall", "1=soon/1000"], "--stall '1=soon/1000' is not understood"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_slowdown_flags_of_train_are_refused(
    tmp_path: Path, flags: list[str], words: str
) -> None:
    assert words in refused(call("train", "digits", *flags, cwd=tmp_path), status=2)
    assert not (tmp_path / "runs").exists(), "refused before anything was made"
