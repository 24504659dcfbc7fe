"""`--optimizer-on workers`: servers only add gradients up, and every worker makes the steps. The job
computes the same bits as with the optimizer on the servers, whoever joins, dies or resumes."""

import contextlib
import json
import os
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.cluster.processes import Command, call, wait_until
from tests.commands.start import run

JOB = """
import hashlib, os, time
import torch


def main(worker):
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 40), torch.nn.BatchNorm1d(40), torch.nn.Tanh(), torch.nn.Linear(40, 1)
    )
    data = torch.randn(240, 8, generator=torch.Generator().manual_seed(1))
    goal = data.sin().sum(1, keepdim=True)
    inner = torch.optim.%s
    optimizer = worker.attach(model, inner)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10, gamma=0.7)
    for x, y in worker.batches((data, goal), 10):
        torch.nn.functional.mse_loss(model(x), y).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        time.sleep(%s)
        optimizer.step()
        schedule.step()
        worker.report(loss=float(worker.version))
    state = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    with open(worker.name + ".bits", "w") as file:
        file.write(hashlib.sha256(state).hexdigest())
"""
ADAMW = "AdamW(model.parameters(), lr=0.02, weight_decay=0.1)"
MOMENTUM = "SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-3)"
QUICK = "os.urandom(1)[0] / 255 * 0.003"
SLOW = "0.002 if os.path.exists('hurry') else 0.04"
WORKERS = ("--optimizer-on", "workers", "--link", "tcp")
"""Over TCP, servers send sums before the fold is ordered."""


def job_in(folder: Path, optimizer: str = ADAMW, pause: str = QUICK) -> Path:
    folder.mkdir(exist_ok=True)
    job = folder / "job.py"
    job.write_text(JOB % (optimizer, pause))
    return job


def model_in(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "runs" / "run" / "model.safetensors")


def assert_equal(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def assert_all_workers_agree(folder: Path, workers: int) -> None:
    """Every worker had the same final parameters."""
    bits = {path.name: path.read_text() for path in folder.glob("*.bits")}
    assert len(bits) >= workers and len(set(bits.values())) == 1, bits


@pytest.mark.parametrize(
    ("optimizer", "flags"),
    [
        (ADAMW, ("--link", "tcp")),
        (MOMENTUM, ()),
        (MOMENTUM, ("--link", "tcp", "--replicas", 1, "--checkpoint-every", "4rounds")),
        (ADAMW, ("--push", "int8", "--link", "tcp", "--keep-best", "highest:loss")),
    ],
    ids=["adamw-tcp", "momentum-local", "replicas-and-checkpoints", "int8-and-keep-best"],
)
def test_the_same_bits_as_with_the_optimizer_on_servers(
    tmp_path: Path, optimizer: str, flags: tuple[object, ...]
) -> None:
    folders = [tmp_path / where for where in ("servers", "workers")]
    for folder in folders:
        common = ("--workers", 3, "--servers", 2, "--epochs", 3, "--deterministic", "--name", "run")
        job = job_in(folder, optimizer)
        done = call("train", job, *common, *flags, "--optimizer-on", folder.name, cwd=folder)
        assert done.returncode == 0, done.stderr
        assert_all_workers_agree(folder, 3)
    assert_equal(model_in(folders[1]), model_in(folders[0]))
    best = [folder / "runs" / "run" / "model-best.safetensors" for folder in folders]
    if "--keep-best" in flags:
        assert best[0].exists() and best[1].exists()


def test_workers_that_die_and_join_have_the_same_parameters(tmp_path: Path) -> None:
    """First the worker dies that shares the parameters, then another one; others join late."""
    job = job_in(tmp_path, pause=SLOW)
    flags = ("--workers", 3, "--servers", 2, "--epochs", 12, "--respawn", *WORKERS)
    with Command(job, *flags, cwd=tmp_path) as command:
        command.await_round(5)
        os.kill(command.workers()[0], signal.SIGKILL)
        wait_until(lambda: len(command.joined("worker-0")) == 2, "worker-0 is back")
        command.join(job, "--connect", command.address(), "--name", "late")
        wait_until(lambda: command.joined("late"), "one more joins")
        os.kill(command.workers()[1], signal.SIGKILL)
        wait_until(lambda: command.journal("left"), "it is missed")
        (tmp_path / "hurry").touch()
        assert command.wait() == 0, command.stderr()
    assert_all_workers_agree(tmp_path, 3)
    assert model_in(tmp_path)


@pytest.mark.parametrize("victim", [1, 2])
def test_a_server_dies(tmp_path: Path, victim: int) -> None:
    job = job_in(tmp_path, pause=SLOW)
    flags = ("--workers", 3, "--servers", 3, "--replicas", 1, "--epochs", 12, *WORKERS)
    with Command(job, *flags, "--checkpoint-every", "3rounds", cwd=tmp_path) as command:
        command.await_round(4)
        os.kill(command.servers()[victim], signal.SIGKILL)
        wait_until(lambda: command.journal("rerouted"), "replicas take over")
        (tmp_path / "hurry").touch()
        assert command.wait() == 0, command.stderr()
        (ended,) = command.journal("ended")
        assert not ended["failed"]
    assert_all_workers_agree(tmp_path, 3)


def test_servers_join_and_leave(tmp_path: Path) -> None:
    """Slices move with their sums alone, and no bit changes."""
    expected = tmp_path / "expected"
    common = ("--workers", 2, "--servers", 3, "--epochs", 10, "--deterministic")
    job = job_in(expected, MOMENTUM)
    done = call("train", job, *common, "--name", "run", cwd=expected)
    assert done.returncode == 0, done.stderr
    moved = tmp_path / "moved"
    job = job_in(moved, MOMENTUM, SLOW)
    with Command(job, *common, *WORKERS, cwd=moved) as command:
        command.await_round(3)
        command.serve()
        wait_until(lambda: command.journal("server-joined"), "a server joins")
        drained = call("drain", "run", "s1", cwd=moved)
        assert drained.returncode == 0, drained.stderr
        (moved / "hurry").touch()
        assert command.wait() == 0, command.stderr()
    assert_all_workers_agree(moved, 2)
    assert_equal(model_in(moved), model_in(expected))


@pytest.mark.parametrize("then", ["servers", "workers"])
def test_a_job_resumes_from_its_checkpoint(tmp_path: Path, then: str) -> None:
    """On other processes, and with the optimizer on the servers as well."""
    job = job_in(tmp_path, pause=SLOW)
    flags = ("--workers", 2, "--servers", 2, "--epochs", 6, *WORKERS)
    with Command(job, *flags, "--checkpoint-every", "4rounds", cwd=tmp_path) as command:
        wait_until(lambda: len(command.journal("checkpoint")) >= 2, "two checkpoints")
        for pid in [command.process.pid, *command.pids()]:
            with contextlib.suppress(ProcessLookupError):  # ended when the command died
                os.kill(pid, signal.SIGKILL)
        command.wait()
    (tmp_path / "hurry").touch()
    more = ("--name", "again", "--servers", 1, "--workers", 3, "--optimizer-on", then, "--json")
    done = run("resume", "run", *more, cwd=tmp_path, timeout_s=90, spares=1)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["points"] > 0
    assert_all_workers_agree(tmp_path, 3)


def test_the_job_ends_with_the_last_worker_that_had_the_parameters(tmp_path: Path) -> None:
    job = job_in(tmp_path, pause=SLOW)
    flags = ("--workers", 1, "--epochs", 50, "--respawn", *WORKERS)
    with Command(job, *flags, cwd=tmp_path) as command:
        command.await_round(3)
        os.kill(command.workers()[0], signal.SIGKILL)
        assert command.wait() == 1
        assert "no worker is left that had the parameters of round" in command.stderr()
        assert "Traceback" not in command.stderr()


@pytest.mark.parametrize("with_a_worker", [False, True], ids=["alone", "with-a-worker"])
def test_a_server_dies_when_one_worker_has_its_sum_and_the_others_have_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_a_worker: bool
) -> None:
    """That worker drops the sum: the new primary adds up again what workers send it again. If a worker
    dies too, the new sum lacks its part."""
    crash_at = tmp_path / "crash-at"
    monkeypatch.setenv("POLYRHYTHM_CRASH_AT", str(crash_at))
    job = job_in(tmp_path, pause=SLOW)
    flags = ("--workers", 3, "--servers", 3, "--replicas", 1, "--epochs", 12, *WORKERS)
    with Command(job, *flags, cwd=tmp_path) as command:
        command.await_round(3)
        worker = command.workers()[2]
        (tmp_path / "new").write_text("s1 sent early")
        (tmp_path / "new").rename(crash_at)
        wait_until(lambda: not crash_at.exists(), "s1 has sent a sum", pause_s=0.0005)
        if with_a_worker:
            os.kill(worker, signal.SIGKILL)
        wait_until(lambda: command.journal("rerouted"), "replicas take over")
        (tmp_path / "hurry").touch()
        worker_failed = 3 if with_a_worker else 0
        assert command.wait() == worker_failed, command.stderr()
        (lost,) = command.journal("server-lost")
        assert lost["server"] == 1
    assert_all_workers_agree(tmp_path, 2 if with_a_worker else 3)
