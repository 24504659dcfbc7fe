"""Every worker has its own data (`--data-private`): no other worker visits its points, and a pass
counts the points of the present workers only."""

import os
import signal
from pathlib import Path

import pytest
import torch
from msgspec import structs

from tests.cluster.jobs.private_visits import WORKERS, points_of
from tests.cluster.processes import Command, call, wait_until
from tests.cluster.test_resume import kill_whole, newest, resume, visited

JOB = Path(__file__).parent / "jobs" / "private_visits.py"
EPOCHS = 3
FLAGS = (JOB, "--data-private", "--updater", "addition", "--workers", WORKERS, "--servers", 2)


def visits(folder: Path, worker: int) -> torch.Tensor:
    """How often every point of this worker was visited."""
    counts = torch.load(folder / "final.pt")[worker]
    assert not counts[points_of(worker) :].any(), "points that no worker has"
    return counts[: points_of(worker)]


@pytest.mark.parametrize(
    ("sync", "kind"),
    [
        ("bsp", "gradient"),
        ("bsp", "local"),
        ("psp", "local"),
        ("fsp", "local"),
        ("asp", "gradient"),
        ("asp", "local"),
        ("ssp:2", "gradient"),
        ("ssp-restart:2", "gradient"),
    ],
)
def test_every_worker_visits_its_own_points_once_per_pass(
    tmp_path: Path, sync: str, kind: str
) -> None:
    local = ("--set", "local=1") if kind == "local" else ()
    done = call(
        *("train", *FLAGS, "--sync", sync, "--kind", kind, *local, "--epochs", EPOCHS),
        *("--check", "--quiet"),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    for worker in range(WORKERS):
        assert (visits(tmp_path, worker) == EPOCHS).all()


def kill_while_held(command: Command) -> None:
    wait_until(lambda: (command.cwd / "held").exists(), "worker-1 waits in a batch")
    os.kill(int((command.cwd / "worker-1.pid").read_text()), signal.SIGKILL)


def train(folder: Path, *flags: object) -> Command:
    return Command(*FLAGS, "--set", "hold=1", "--timer", "off", *flags, cwd=folder)


@pytest.mark.parametrize("sync", ["bsp", "asp", "ssp:2"])
def test_points_that_are_lost_with_their_worker_are_left_out_of_the_passes(
    tmp_path: Path, sync: str
) -> None:
    with train(tmp_path, "--epochs", EPOCHS, "--sync", sync) as command:
        kill_while_held(command)
        assert command.wait() in (0, 3)
        (lost,) = command.journal("data-set")
        left = points_of(0) + points_of(2)
        assert lost["reason"] == "data-lost"
        assert lost["fields"] == {"name": "worker-1", "points": points_of(1), "total": left}
        assert f"the {points_of(1)} points of worker-1 are lost with it" in command.stderr()
        assert command.journal("rounds")[-1]["passes"] == EPOCHS
    for worker in (0, 2):
        assert (visits(tmp_path, worker) == EPOCHS).all()
    assert visits(tmp_path, 1).max() <= 1, "the worker was killed in its first pass"


@pytest.mark.parametrize("sync", ["bsp", "asp"])
def test_the_points_of_a_worker_that_comes_back_count_again(tmp_path: Path, sync: str) -> None:
    """The worker is killed in its first pass. Visits that counted before its death are not
    repeated."""
    epochs = 12
    with train(
        tmp_path, "--epochs", epochs, "--respawn", "--set", "wait=1", "--sync", sync
    ) as command:
        kill_while_held(command)
        assert command.wait() in (0, 3)
        said = [line["reason"] for line in command.journal("data-set")]
        assert said in ([], ["data-lost", "data-back"]), "none if it was back before its removal"
        assert command.journal("rounds")[-1]["passes"] == epochs
    for worker in (0, 2):
        assert (visits(tmp_path, worker) == epochs).all()
    assert visits(tmp_path, 1).max() <= epochs
    assert visits(tmp_path, 1).min() > 1, "it was killed in its first pass"


@pytest.mark.guarantee("job-killed", policies=("bsp",), k=(0,))
@pytest.mark.parametrize("workers", [WORKERS, WORKERS - 1])
def test_a_killed_job_continues_with_the_passes_that_each_worker_had_made(
    tmp_path: Path, workers: int
) -> None:
    """All processes are killed when worker-1 has made its first pass and worker-0 has not. After
    the resume, worker-1 announces its points before the others do. This must not end the first pass
    of worker-0. A worker that does not come back keeps the visits of the checkpoint."""
    with Command(
        *(*FLAGS, "--epochs", EPOCHS, "--timer", "off", "--checkpoint-every", "9rounds"),
        *("--set", "hold=0", "--set", "after=10", "--set", "first=1"),
        cwd=tmp_path,
    ) as command:
        wait_until(lambda: (tmp_path / "held").exists(), "worker-0 waits in a batch")
        wait_until(lambda: command.journal("checkpoint"), "the checkpoint of round 9")
        kill_whole(command)
    _, record = newest(command.run_dir)
    least = {
        f"worker-{n}": min(c.passes for c in record.chunks if c.holder == f"worker-{n}")
        for n in range(WORKERS)
    }
    assert least == {"worker-0": 0, "worker-1": 1, "worker-2": 1}
    resume(tmp_path, "--workers", workers, "--check")
    for worker in range(workers):
        assert (visits(tmp_path, worker) == EPOCHS).all(), worker
    for worker in range(workers, WORKERS):
        mine = tuple(chunk for chunk in record.chunks if chunk.holder == f"worker-{worker}")
        assert visits(tmp_path, worker).sum() == visited(structs.replace(record, chunks=mine))


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (("--migrate", "lease"), "--migrate lease cannot be used with --data-private"),
        (("--kind", "statistics"), "not built for kind statistics"),
    ],
)
def test_options_that_contradict_private_data_are_refused(
    tmp_path: Path, flags: tuple[str, ...], why: str
) -> None:
    done = call("train", JOB, "--data-private", "--rounds", 1, *flags, cwd=tmp_path)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "--data-private" in line and why in line


def test_without_the_flag_data_sets_of_different_lengths_are_refused(tmp_path: Path) -> None:
    done = call(
        *("train", JOB, "--updater", "addition", "--workers", WORKERS, "--epochs", 1),
        cwd=tmp_path,
    )
    assert "if every worker has its own data set, give --data-private" in done.stderr
