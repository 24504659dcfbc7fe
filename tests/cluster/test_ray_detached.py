"""Jobs on a Ray cluster that go on when their command has ended."""

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from polyrhythm.errors import JobFailed, UsageError
from polyrhythm.observe.journal import read_journal
from polyrhythm.observe.runs import JOURNAL, RESULT, load_run
from tests.cluster.ray_jobs import (
    HEAVY,
    JOB,
    command,
    environment,
    nothing_is_left,
    started,
    trains,
)
from tests.commands.start import run
from tests.ray_cluster import RayCluster, soon

pytestmark = [pytest.mark.cluster, pytest.mark.ray, pytest.mark.timeout(300, func_only=True)]


NOWHERE = (
    *("--workers", 1, "--resources-per-worker", "nothing=1"),
    *("--resources-per-server", "nothing=1"),
)
"""No process of the job gets a place."""


def detach(cluster: RayCluster, folder: Path, *args: object) -> subprocess.CompletedProcess[str]:
    (folder / "job.py").write_text(JOB)
    words = command(cluster, "job.py", "--detach", "--name", "detached", *args)
    return subprocess.run(
        words, cwd=folder, env=environment(), capture_output=True, text=True, timeout=120
    )


def test_a_detached_job_goes_on_without_its_command_until_it_is_stopped(
    ray_cluster: RayCluster, tmp_path: Path
) -> None:
    ended = detach(ray_cluster, tmp_path, "--workers", 1, "--servers", 1)
    assert ended.returncode == 0, ended.stderr
    assert "run detached continues on the cluster: 'polyrhythm status detached'" in ended.stdout
    folder = tmp_path / "runs" / "detached"
    trains(folder)
    assert load_run(folder).word == "running"
    stopped = run("stop", "detached", cwd=tmp_path)
    assert stopped.returncode == 0, stopped.stderr
    assert load_run(folder).word == "stopped"
    assert (folder / RESULT).is_file() and (folder / "model.safetensors").is_file()
    assert "stopped" in (folder / "command.log").read_text(), "the result is in the log"
    nothing_is_left(ray_cluster)


@HEAVY
def test_all_of_a_detached_job_ends_with_the_process_that_runs_it(
    ray_cluster: RayCluster, tmp_path: Path
) -> None:
    ended = detach(ray_cluster, tmp_path, "--workers", 1, "--servers", 1)
    assert ended.returncode == 0, ended.stderr
    folder = tmp_path / "runs" / "detached"
    trains(folder)
    process = load_run(folder).process
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    nothing_is_left(ray_cluster)
    assert not [line for line in read_journal(folder / JOURNAL) if line["what"] == "ended"]


def test_a_detached_job_that_cannot_begin_is_an_error_of_its_command(
    ray_cluster: RayCluster, tmp_path: Path
) -> None:
    refused = detach(ray_cluster, tmp_path, *NOWHERE, "--start-timeout", 5)
    assert refused.returncode == 1
    shown = refused.stderr.split("no room")[0]
    assert "s0, s1 and worker-0 have not started yet" in shown, refused.stderr
    assert "the cluster has no room for this job after 5 s" in refused.stderr
    assert not (tmp_path / "runs").exists()
    nothing_is_left(ray_cluster)


# -- the handshake between a command and its detached actor ---------------------------------------


def fails_at_once(begun: Callable[[], None]) -> None:
    raise RuntimeError("a fault of the program")


def begins_and_fails(begun: Callable[[], None]) -> None:
    begun()
    raise RuntimeError("a fault of the program")


def begins_and_ends(begun: Callable[[], None]) -> None:
    begun()


class Unreadable:
    """A job that the process of the actor cannot read."""

    def __call__(self, begun: Callable[[], None]) -> None: ...

    def __reduce__(self) -> tuple[object, ...]:
        return (int, ("no number",))


def test_the_answer_of_a_detached_job_is_kept_until_the_command_has_it(
    ray_cluster: RayCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the job does, the command gets an answer, and the actor ends."""
    from polyrhythm.engines.ray_cluster import joined
    from polyrhythm.engines.ray_detached import LOG, detach

    with joined(ray_cluster.address, 0):
        with pytest.raises(JobFailed, match="^RuntimeError: a fault of the program$"):
            detach(fails_at_once, tmp_path, None)
        with pytest.raises(JobFailed, match="could not be started: .*no number") as error:
            detach(Unreadable(), tmp_path, None)
        assert "\n" not in str(error.value)
        with monkeypatch.context() as patch:
            patch.setattr(os, "getuid", lambda: 12345)
            with pytest.raises(JobFailed, match="--detach: Ray runs as user .* and this command"):
                detach(begins_and_ends, tmp_path, None)
        detach(begins_and_ends, tmp_path, None)
        detach(begins_and_fails, tmp_path, None)
        log = tmp_path / LOG
        soon(lambda: "polyrhythm: RuntimeError: a fault" in log.read_text(), "no word in the log")
        nothing_is_left(ray_cluster)


def test_a_detached_job_is_refused_on_a_cluster_that_ends_with_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from polyrhythm.engines.ray_detached import detach

    monkeypatch.setenv("RAY_ADDRESS", "local")
    with pytest.raises(UsageError, match="RAY_ADDRESS is 'local'"):
        detach(begins_and_ends, tmp_path, None)


def test_a_detached_job_that_has_not_begun_ends_with_its_command(
    ray_cluster: RayCluster, tmp_path: Path
) -> None:
    (tmp_path / "job.py").write_text(JOB)
    waits = ("--detach", "--name", "waits", *NOWHERE)
    with started(ray_cluster, tmp_path, "job.py", *waits, "--start-timeout", 600) as program:
        log = tmp_path / "runs" / "waits" / "command.log"
        soon(lambda: log.exists() and "not started yet" in log.read_text(), "nothing is said")
        program.kill()
    nothing_is_left(ray_cluster)
