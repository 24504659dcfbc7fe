"""What launchers such as Kubernetes, Slurm and systemd need of the commands: one secret that all
processes of a job get before any of them runs, workers that wait for the lead, a command that continues
a job when it is started again, and SIGTERM for the first process of a container."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from polyrhythm.api.stores import continuable
from polyrhythm.errors import UsageError
from polyrhythm.io.addresses import await_listener
from polyrhythm.store.objects import open_store
from polyrhythm.wire.messages import JobSpec
from tests.cluster.processes import Command, call, wait_until
from tests.commands.start import run, start
from tests.store.samples import write_checkpoint

SECRET = "7" * 64
JOBS = Path(__file__).parent / "jobs"


def test_a_command_waits_until_a_process_listens() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        waiting = threading.Thread(target=await_listener, args=("127.0.0.1", port, 60.0))
        waiting.start()
        bound.listen()
        waiting.join(30)
        assert not waiting.is_alive()


def test_a_command_waits_no_longer_than_it_should() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        await_listener("127.0.0.1", bound.getsockname()[1], 0.01)
    await_listener("no-such-host.invalid", 1, 0.01)


@pytest.mark.parametrize("role", ["worker", "server"])
def test_a_time_to_wait_that_is_none_is_refused(tmp_path: Path, role: str) -> None:
    done = run(role, "--connect", "127.0.0.1:1", "--wait", "soon", cwd=tmp_path)
    assert done.returncode == 2
    assert "--wait is 'soon': give seconds, such as 60, or a time such as 5min" in done.stderr


def test_processes_that_start_before_the_lead_join_with_the_secret_of_the_environment(
    tmp_path: Path,
) -> None:
    """The lead gets the same secret, and writes it into the folder of the run for later commands."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = {**os.environ, "POLYRHYTHM_SECRET": SECRET, "XDG_STATE_HOME": str(tmp_path / "none")}
    joins = ("--connect", f"127.0.0.1:{port}", "--wait", "60")
    job = ("--workers", 1, "--local-workers", 0, "--servers", 2, "--local-servers", 1)
    goal = ("--rounds", 3, "--port", port, "--name", "run", "--quiet", "--json")
    processes = [
        start(*args, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for args in (
            ("server", *joins),
            ("worker", "digits", *joins),
            ("train", "digits", *job, *goal),
        )
    ]
    ended = [process.communicate(timeout=90) for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], ended
    assert (tmp_path / "runs" / "run" / "secret").read_text() == f"{SECRET}\n"
    assert "waiting up to 60 for the job at" in str(ended[1][1])


def test_a_secret_that_is_too_short_ends_the_command_before_it_starts_a_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLYRHYTHM_SECRET", "short")
    done = call("train", "digits", "--name", "run", "--quiet", cwd=tmp_path)
    assert done.returncode == 2 and "$POLYRHYTHM_SECRET does not contain the secret" in done.stderr
    assert not (tmp_path / "runs").exists()


def test_a_job_that_is_started_again_continues_from_its_newest_checkpoint(tmp_path: Path) -> None:
    job = ("digits", "--workers", 1, "--servers", 1, "--epochs", 2, "--resume")
    regular = ("--checkpoint-every", "2rounds")
    with Command(*job, *regular, "--min-step", "100ms", cwd=tmp_path) as command:
        wait_until(lambda: len(command.journal("checkpoint")) >= 2, "two checkpoints")
        for pid in command.pids():
            with contextlib.suppress(ProcessLookupError):  # it has ended with the fork server
                os.kill(pid, signal.SIGKILL)
        command.wait()
    sized = ("--slice-size", "auto")
    again = run("train", *job, *regular, *sized, "--name", "run", "--json", cwd=tmp_path, spares=1)
    assert again.returncode == 0, again.stderr
    assert "polyrhythm: the job continues from its newest checkpoint in" in again.stderr
    assert "--slice-size has no effect: slices keep their size" in again.stderr
    result = json.loads(again.stdout)
    assert result["passes"] == 2, result
    assert (tmp_path / "runs" / "run-2" / "model.safetensors").is_file()


def written(path: Path, *numbers: int) -> None:
    store = open_store(str(path), make=True)
    for number in numbers:
        write_checkpoint(store, number, job=JobSpec(job="x", name="digits"))


def test_the_newest_run_with_a_checkpoint_is_continued(tmp_path: Path) -> None:
    """A run that died before its first checkpoint is passed over."""
    runs = tmp_path / "runs"
    assert continuable("mine", None, runs) is None
    (runs / "mine").mkdir(parents=True)
    assert continuable("mine", None, runs) is None
    written(runs / "mine-2", 1)
    written(runs / "mine-4", 1)
    assert continuable("mine", None, runs) == str(runs / "mine-2")
    written(runs / "mine-3", 1)
    assert continuable("mine", None, runs) == str(runs / "mine-4")
    (runs / "mine-5").mkdir()
    assert continuable("mine", None, runs) == str(runs / "mine-4")


def test_a_store_comes_before_the_runs_and_may_not_exist_yet(tmp_path: Path) -> None:
    runs, store = tmp_path / "runs", tmp_path / "store"
    written(runs / "mine", 1)
    assert continuable("mine", str(store), runs) is None
    written(store, 3)
    assert continuable("mine", str(store), runs) == str(store)
    with pytest.raises(UsageError, match="--resume needs --name or --store"):
        continuable(None, None, runs)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make a namespace of processes")
@pytest.mark.skipif(shutil.which("unshare") is None, reason="there is no program unshare")
def test_the_first_process_of_a_container_ends_at_sigterm_while_it_waits(tmp_path: Path) -> None:
    inside = [sys.executable, "-m", "polyrhythm", "worker", "digits", "--wait", "10min"]
    with subprocess.Popen(
        ["unshare", "--pid", "--fork", "--kill-child", *inside, "--connect", "127.0.0.1:1"],
        cwd=tmp_path,
        env={**os.environ, "POLYRHYTHM_SECRET": SECRET},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        assert "waiting up to 10min" in process.stderr.readline()
        (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(child), signal.SIGTERM)
        assert process.wait(30) == 128 + signal.SIGTERM
