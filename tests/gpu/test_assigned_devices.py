"""Jobs whose workers train on the devices that the engine assigns: on CPUs, and on a GPU beside a
CPU."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from polyrhythm.engines.environment import environment
from tests.cluster.processes import Command, call, wait_until
from tests.gpu import assigned_job

JOB_FILE = Path(assigned_job.__file__)
ON_GPU = pytest.mark.gpu

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize("sync", ["bsp", "ssp:2", "asp", "psp", "fsp"])
@pytest.mark.parametrize("devices", ["cpu,cpu", pytest.param("cuda:0,cpu", marks=ON_GPU)])
def test_workers_on_different_devices_train_one_model_under_every_policy(
    tmp_path: Path, devices: str, sync: str
) -> None:
    flags = ("--workers", 2, "--servers", 1, "--devices", devices, "--sync", sync)
    with Command(JOB_FILE, *flags, "--rounds", 12, "--set", f"out={tmp_path}", cwd=tmp_path) as job:
        assert job.wait(100) == 0, job.stderr()
        joined = {line["name"]: line["device"] for line in job.journal("joined")}
    first, second = devices.split(",")
    assert joined == {"worker-0": first, "worker-1": second}
    with np.load(tmp_path / "worker-0.npz") as one, np.load(tmp_path / "worker-1.npz") as other:
        for name in one.files:
            assert np.isfinite(one[name]).all()
            np.testing.assert_array_equal(one[name], other[name])


@pytest.mark.parametrize("devices", ["cpu", pytest.param("cuda:0,cpu", marks=ON_GPU)])
def test_a_worker_that_is_killed_is_started_again_on_its_device(
    tmp_path: Path, devices: str
) -> None:
    flags = ("--workers", 2, "--servers", 1, "--devices", devices, "--respawn")
    goal = ("--rounds", 1_000_000_000, "--set", f"out={tmp_path}")
    with Command(JOB_FILE, *flags, *goal, cwd=tmp_path, trace=False) as job:
        job.await_round(5)
        os.kill(job.joined("worker-0")[0]["pid"], signal.SIGKILL)
        wait_until(lambda: len(job.joined("worker-0")) > 1, "worker-0 is started again")
        again = max(line["round"] for line in job.journal("rounds"))
        job.await_round(again + 5)
        told = json.loads(call("status", "run", "--json", cwd=tmp_path).stdout)
        shown = call("status", "run", cwd=tmp_path).stdout
        job.process.send_signal(signal.SIGINT)
        job.wait(100)
        devices_of_worker = [line["device"] for line in job.joined("worker-0")]
    device = devices.split(",")[0]
    assert devices_of_worker == [device, device]
    assert [member["device"] for member in told["members"]] == [device, "cpu"]
    # the column is there only if some worker has a device other than the CPU
    rows = [line for line in shown.splitlines() if line.startswith("worker-0 ")]
    assert rows and (device == "cpu" or device in rows[0])


LOOK = """
import os
import torch
from polyrhythm.engines.cuda import look_for_cuda_in_child
from polyrhythm.tensors.compiler import prepare_optimizers

prepare_optimizers(steps=False)
found = look_for_cuda_in_child()
assert found.forked and found.count > 0, found
assert not torch.cuda.is_initialized()
pid = os.fork()
if pid == 0:
    try:
        assert torch.ones(3, device="cuda:0").sum().item() == 3
        os._exit(7)
    finally:
        os._exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
print(found.count)
"""


@ON_GPU
def test_a_process_that_is_forked_after_the_count_can_use_the_gpu() -> None:
    """The program imports the modules of the fork server and counts the devices in the same
    environment. Then it forks a process that uses the GPU."""
    done = subprocess.run(
        [sys.executable, "-c", LOOK],
        env=environment([1]),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == torch.cuda.device_count()


@ON_GPU
def test_a_gpu_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    done = call("train", JOB_FILE, "--rounds", 3, "--devices", "cuda:99", cwd=tmp_path)
    assert done.returncode != 0
    assert "--devices cuda:99: there is no such device" in done.stderr


@ON_GPU
def test_workers_that_share_the_gpu_are_named(tmp_path: Path) -> None:
    flags = ("--workers", 2, "--servers", 1, "--devices", "cuda:0", "--rounds", 3)
    done = call("train", JOB_FILE, *flags, "--set", f"out={tmp_path}", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "worker-0 and worker-1 share cuda:0: there are more workers than devices" in done.stderr
