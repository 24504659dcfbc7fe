"""Workers get devices, keep them when they are started again, and report them. The test machines
have no GPU. So torch reports two CUDA devices in the fork server of these jobs, and the model of
the job stays on the CPU."""

import json
import os
import signal
from pathlib import Path

import pytest

from tests.cluster.processes import Command, call, wait_until
from tests.cluster.test_bad_input import lines_of, refused
from tests.commands.warm_server import START_FILE

JOB = """
import time
import torch


def main(worker):
    assert isinstance(worker.device, torch.device)
    print(f"{worker.name} computes on {worker.device}", flush=True)
    model = torch.nn.Linear(8, 4)
    optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.01))
    while not worker.stopped:
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step(points=2)
        time.sleep(0.05)
"""
TWO_DEVICES = """
import torch

torch.backends.cuda.is_built = lambda: True
torch.cuda.device_count = lambda: 2
torch.cuda.set_device = lambda device: None
"""
INITIALISED = """
torch.cuda._is_in_bad_fork = lambda: True
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    path = tmp_path / "job.py"
    path.write_text(JOB)
    return path


@pytest.fixture
def pretended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let fork servers find two CUDA devices. They run this file when they start."""
    path = tmp_path / "start.py"
    path.write_text(TWO_DEVICES)
    monkeypatch.setenv(START_FILE, str(path))
    return path


def devices_of(command: Command) -> dict[str, list[str]]:
    """For each worker, the device that it had each time it joined."""
    found: dict[str, list[str]] = {}
    for line in command.journal("joined") + command.journal("rejoined"):
        found.setdefault(line["name"], []).append(line["device"])
    return found


def test_workers_share_devices_and_keep_them_when_they_are_started_again(
    tmp_path: Path, job: Path, pretended: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = ("--devices", "auto", "--workers", "3", "--servers", "1", "--respawn")
    with Command(job, *flags, "--rounds", "1000000000", cwd=tmp_path) as command:
        command.await_round(3)
        first = {"worker-0": ["cuda:0"], "worker-1": ["cuda:1"], "worker-2": ["cuda:0"]}
        assert devices_of(command) == first
        killed = command.joined("worker-1")[0]["pid"]
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: len(command.joined("worker-1")) > 1, "worker-1 is started again")
        assert devices_of(command) == {**first, "worker-1": ["cuda:1", "cuda:1"]}
        monkeypatch.undo()
        shown = call("status", "run", cwd=tmp_path).stdout
        told = json.loads(call("status", "run", "--json", cwd=tmp_path).stdout)
        command.process.send_signal(signal.SIGINT)
        command.wait()
        said = command.stderr()
        summary = command.stdout()
    assert "worker-0 and worker-2 share cuda:0: there are more workers than devices" in said
    for worker, (device, *_) in first.items():
        assert f"{worker} computes on {device}" in said
        assert [row for row in shown.splitlines() if row.split()[:2] == [worker, device]]
        assert f"  {worker}  {device} " in summary and "points/s" in summary
    assert "device" in shown and "points/s" in shown
    devices = {member["name"]: [member["device"]] for member in told["members"]}
    assert devices == first, "whatever the order in which they have joined"
    assert all(each["points_per_s"] > 0 for each in told["per_worker"].values())


def test_a_job_may_have_workers_with_and_without_a_gpu(
    tmp_path: Path, job: Path, pretended: Path
) -> None:
    flags = ("--devices", "cuda:1,cpu,cpu", "--workers", "3", "--servers", "1")
    with Command(job, *flags, "--rounds", "3", cwd=tmp_path) as command:
        assert command.wait() == 0, command.stderr()
        devices = {"worker-0": ["cuda:1"], "worker-1": ["cpu"], "worker-2": ["cpu"]}
        assert devices_of(command) == devices
        assert "more workers than devices" not in command.stderr()


def test_a_device_that_does_not_exist_is_refused(
    tmp_path: Path, job: Path, pretended: Path
) -> None:
    said = refused(tmp_path, job, "--devices", "cuda:0,cuda:5", "--rounds", "3")
    assert "--devices cuda:5: there is no such device; this machine has cuda:0 to cuda:1" in said
    assert not (tmp_path / "runs").exists()


def test_a_fork_server_in_which_cuda_is_initialised_starts_no_gpu_worker(
    tmp_path: Path, job: Path, pretended: Path
) -> None:
    pretended.write_text(TWO_DEVICES + INITIALISED)
    said = refused(tmp_path, job, "--devices", "cuda:0", "--rounds", "3")
    assert "has initialised CUDA" in said and "--devices cpu" in said


def test_cuda_that_is_not_available_is_refused(
    tmp_path: Path, job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    said = refused(tmp_path, job, "--devices", "cuda:0", "--rounds", "3")
    assert "--devices cuda:0: CUDA is not available: " in said
    assert not (tmp_path / "runs").exists()


def test_a_list_that_is_not_understood_is_refused(tmp_path: Path, job: Path) -> None:
    said = lines_of(tmp_path, job, "--devices", "gpu", "--rounds", "3")
    assert said == [
        "polyrhythm: --devices 'gpu' is not understood: give auto, cpu, cuda, or a list such as"
        " cuda:0,cuda:1 or cuda:0,cpu,cpu"
    ]


def test_a_worker_that_joins_reports_its_device(
    tmp_path: Path, job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with Command(
        *(job, "--local-workers", "1", "--workers", "2", "--servers", "1", "--rounds", "3"),
        cwd=tmp_path,
    ) as command:
        outside = command.join("--devices", "cuda:0", "--name", "anna")
        assert outside.wait(60) != 0
        assert outside.stderr is not None
        assert "CUDA is not available" in outside.stderr.read()
        command.join("--devices", "cpu", "--name", "berta")
        assert command.wait() == 0, command.stderr()
        assert devices_of(command) == {"worker-0": ["cpu"], "berta": ["cpu"]}
