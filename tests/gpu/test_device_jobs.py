"""Jobs whose workers have their models on a device: they compute what jobs in host memory and plain
torch compute."""

import functools
import math
import os
import re
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from polyrhythm import Worker
from polyrhythm.engines.inline import run_inline
from polyrhythm.errors import NotFinite, UsageError
from polyrhythm.runtime.worker.push import Quantising
from polyrhythm.tensors.copies import SWITCH, Copies
from polyrhythm.tensors.device_model import DeviceModel
from polyrhythm.wire.messages import JobSpec
from tests.commands.start import run
from tests.gpu import device_job as dj
from tests.gpu.conftest import Place
from tests.learn import twin_job as tj
from tests.learn.exchanges import record_exchanges

TOLERANCE = 1e-4
JOB_FILE = Path(dj.__file__)
twin = functools.cache(tj.twin)
local_twin = functools.cache(tj.local_twin)


def run_in_threads(
    job: JobSpec, device: str, optimizer: str, steps: int = 1
) -> dict[str, tj.State]:
    found: dict[str, tj.State] = {}

    def main(worker: Worker) -> None:
        model = dj.train(worker, device, optimizer, steps)
        found[worker.name] = {name: t.cpu().clone() for name, t in model.state_dict().items()}

    run_inline(job, main, timeout_s=60)
    assert len(found) == job.workers
    return found


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_a_device_the_host_and_plain_torch_agree(
    place: Place, optimizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = JobSpec(job="twin", workers=2, servers=2, rounds=tj.ROUNDS, heartbeat_s=20.0)
    there = run_in_threads(job, place.device, optimizer)
    monkeypatch.delenv(SWITCH, raising=False)
    here = run_in_threads(job, "cpu", optimizer)
    for states in (there, here):
        assert tj.distance(states["worker-0"], states["worker-1"]) == 0.0
    assert tj.distance(there["worker-0"], here["worker-0"]) < TOLERANCE
    assert tj.distance(there["worker-0"], twin(2, optimizer)) < TOLERANCE


@pytest.mark.parametrize("wire", ["same", "bf16"])
def test_local_steps_on_a_device_give_what_plain_torch_gives(place: Place, wire: str) -> None:
    job = JobSpec(
        job="twin",
        workers=2,
        servers=1,
        rounds=8,
        kind="local",
        local_steps=3,
        wire_dtype=wire,
        heartbeat_s=20.0,
    )
    states = run_in_threads(job, place.device, "momentum", 3)
    limit = TOLERANCE if wire == "same" else 0.02
    assert tj.distance(states["worker-0"], local_twin(2, "momentum", 3, 8)) < limit


@pytest.mark.parametrize(
    "options",
    [
        {"sync": "asp"},
        {"sync": "ssp:1"},
        {"sync": "psp", "kind": "local"},
        {"sync": "fsp", "kind": "local"},
        {"sync": "fsp", "kind": "gradient"},
        {"sync": "bsp", "replicas": 1, "servers": 2},
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_every_policy_trains_on_a_device(place: Place, options: Mapping[str, Any]) -> None:
    fields = {"job": "twin", "workers": 2, "servers": 1, "rounds": 12, "heartbeat_s": 20.0}
    states = run_in_threads(JobSpec(**{**fields, **options}), place.device, "momentum")
    # under these policies workers have no common version
    if options["sync"] not in ("asp", "ssp:1"):
        assert tj.distance(states["worker-0"], states["worker-1"]) == 0.0
    assert all(tensor.isfinite().all() for tensor in states["worker-0"].values())


@pytest.mark.parametrize("options", [{"sync": "bsp"}, {"sync": "psp", "kind": "local"}])
def test_quantised_pushes_from_a_device_are_those_from_host_memory(
    place: Place, options: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The links of an inline job carry references, so the test tells the worker that they carry
    bytes. With psp the number of steps varies, so its parameters are not compared."""
    monkeypatch.setattr(Quantising, "by_reference", lambda self: frozenset())
    job = JobSpec(**{"job": "twin", "rounds": 12, "push": "int8", **options})
    there = run_in_threads(job, place.device, "momentum")["worker-0"]
    assert all(tensor.isfinite().all() for tensor in there.values())
    if options["sync"] == "bsp":
        monkeypatch.delenv(SWITCH, raising=False)
        here = run_in_threads(job, "cpu", "momentum")["worker-0"]
        assert tj.distance(there, here) < (TOLERANCE if place.device == "cpu" else 0.02)


def test_a_job_has_workers_on_a_device_and_in_host_memory(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: dict[str, tj.State] = {}
    on_device: dict[str, bool] = {}

    def copies_for(device: torch.device) -> Copies | None:
        return place.copies() if threading.current_thread().name == "worker-0" else None

    monkeypatch.setattr("polyrhythm.tensors.device_model.copies_for", copies_for)

    def main(worker: Worker) -> None:
        threading.current_thread().name = worker.name
        device = place.device if worker.name == "worker-0" else "cpu"
        model = dj.train(worker, device, "momentum")
        found[worker.name] = {name: t.cpu().clone() for name, t in model.state_dict().items()}
        on_device[worker.name] = isinstance(worker._node._model, DeviceModel)

    job = JobSpec(job="twin", workers=2, servers=1, rounds=tj.ROUNDS, heartbeat_s=20.0)
    run_inline(job, main, timeout_s=60)
    assert on_device == {"worker-0": True, "worker-1": False}
    assert tj.distance(found["worker-0"], found["worker-1"]) == 0.0
    assert tj.distance(found["worker-0"], twin(2, "momentum")) < TOLERANCE


def test_parameters_stay_in_flat_memory_on_the_device(place: Place) -> None:
    def main(worker: Worker) -> None:
        model = tj.build().to(place.device)
        optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
        before = [parameter.data_ptr() for parameter in model.parameters()]
        flat = worker._node._model
        assert isinstance(flat, DeviceModel)
        storages = {tensor.untyped_storage().data_ptr() for tensor in model.parameters()}
        assert len(storages) == 1
        while not worker.stopped:
            points, labels = tj.batch(0, worker.version)
            tj.loss_of(model, points.to(place.device), labels.to(place.device)).backward()
            optimizer.step(points=len(labels))
        assert [parameter.data_ptr() for parameter in model.parameters()] == before

    run_inline(JobSpec(job="flat", rounds=3, heartbeat_s=20.0), main, timeout_s=60)


def test_a_model_on_two_devices_is_refused(place: Place) -> None:
    def main(worker: Worker) -> None:
        model = tj.build().to(place.device)
        model.last.to("meta")
        worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))

    words = (
        rf"'first.weight' is on the device {place.device} and 'last.weight' on meta, and a worker"
    )
    with pytest.raises(UsageError, match=words):
        run_inline(JobSpec(job="two", rounds=1), main, timeout_s=60)


def test_the_loss_of_a_model_on_a_device_is_reported(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    exchanges = record_exchanges(monkeypatch)

    def main(worker: Worker) -> None:
        model = tj.build().to(place.device)
        optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
        expected = []
        while not worker.stopped:
            points, labels = tj.batch(0, worker.version)
            loss = tj.loss_of(model, points.to(place.device), labels.to(place.device))
            loss.backward()
            expected.append(loss.item())
            optimizer.step(points=len(labels), objective=loss)
        assert [sent.trailer.report.objective for sent in exchanges.of(worker)] == expected

    run_inline(JobSpec(job="loss", rounds=4, heartbeat_s=20.0), main, timeout_s=60)


def test_a_step_that_is_not_finite_is_left_out_on_a_device(place: Place) -> None:
    """The gradients of every third step, and the buffers of BatchNorm, become NaN."""

    def main(worker: Worker) -> None:
        model = tj.build().to(place.device)
        optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
        step = 0
        while not worker.stopped:
            points, labels = tj.batch(0, step)
            points = points * (math.nan if step % 3 == 1 else 1.0)
            tj.loss_of(model, points.to(place.device), labels.to(place.device)).backward()
            optimizer.step(points=len(labels))
            step += 1
        assert all(tensor.isfinite().all() for tensor in model.state_dict().values())
        assert step == 12

    job = JobSpec(job="nan", rounds=12, on_nan="skip", heartbeat_s=20.0)
    run_inline(job, main, timeout_s=60)
    refused = JobSpec(job="nan", rounds=12, heartbeat_s=20.0)
    with pytest.raises(NotFinite, match=r"^worker-0, step 2: the gradient of 'first.weight' holds"):
        run_inline(refused, main, timeout_s=60)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_and_a_grad_scaler_train_on_a_device(place: Place, dtype: torch.dtype) -> None:
    kind = torch.device(place.device).type

    def main(worker: Worker) -> None:
        model = tj.build().to(place.device)
        optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
        scaler = torch.amp.GradScaler(kind, init_scale=2.0**20, growth_interval=1000)
        losses: list[float] = []
        points, labels = (each.to(place.device) for each in tj.batch(0, 0))
        while not worker.stopped:
            with torch.autocast(kind, dtype=dtype):
                loss = tj.loss_of(model, points, labels)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            losses.append(loss.item())
        assert losses[-1] < losses[0] / 2

    run_inline(JobSpec(job="amp", rounds=40, heartbeat_s=20.0), main, timeout_s=90)


@pytest.mark.filterwarnings("ignore")  # torch's compiler prints warnings
@pytest.mark.parametrize(
    "backend", ["aot_eager", pytest.param("inductor", marks=[pytest.mark.gpu, pytest.mark.slow])]
)
def test_a_compiled_model_trains_on_a_device(place: Place, backend: str) -> None:
    """Compiled code keeps the addresses of parameters, which must not change."""
    if backend == "inductor":
        try:
            torch.compile(torch.sin)(torch.ones(2, device=place.device))
        except Exception as error:  # inductor needs a C compiler, and Triton on a GPU
            pytest.skip(f"torch cannot compile here: {error}")

    def main(worker: Worker) -> None:
        model = tj.build().to(place.device)
        optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
        compiled = torch.compile(model, backend=backend)
        losses: list[float] = []
        points, labels = (each.to(place.device) for each in tj.batch(0, 0))
        while not worker.stopped:
            loss = tj.loss_of(compiled, points, labels)
            loss.backward()
            optimizer.step(points=len(labels), objective=loss)
            losses.append(loss.item())
        assert losses[-1] < losses[0] / 2

    run_inline(JobSpec(job="compiled", rounds=40, heartbeat_s=60.0), main, timeout_s=110)


# -- real processes ----------------------------------------------------------------------------


def run_in_processes(tmp_path: Path, place: Place, *flags: object) -> tuple[tj.State, str]:
    """Run the job as processes. Return worker-0's final state, and what the command has printed."""
    out = tmp_path / "final.npz"
    options = (
        "--set",
        "optimizer=momentum",
        "--set",
        f"out={out}",
        "--set",
        f"device={place.device}",
    )
    goal = ("--rounds", tj.ROUNDS, "--quiet", "--max-seconds", 80)
    done = run("train", JOB_FILE, *goal, *options, *flags, cwd=tmp_path, env=dict(os.environ))
    assert done.returncode == (3 if "exhaust" in str(flags) else 0), done.stderr
    with np.load(out) as saved:
        return {name: torch.from_numpy(saved[name].copy()) for name in saved.files}, done.stderr


@pytest.mark.cluster
@pytest.mark.parametrize("switch", ["1", "bounce"])
@pytest.mark.parametrize("link", ["local", "tcp"])
def test_a_job_of_processes_on_a_device_gives_what_plain_torch_gives(
    tmp_path: Path, place: Place, link: str, switch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if place.device == "cpu":
        monkeypatch.setenv(SWITCH, switch)
    state, _ = run_in_processes(tmp_path, place, "--workers", 2, "--servers", 2, "--link", link)
    assert tj.distance(state, twin(2, "momentum")) < TOLERANCE


@pytest.mark.cluster
@pytest.mark.parametrize("sync", ["fsp", "psp"])
def test_a_worker_on_a_device_can_be_staged(tmp_path: Path, place: Place, sync: str) -> None:
    state, _ = run_in_processes(tmp_path, place, "--workers", 2, "--sync", sync, "--slow", "0=2x")
    assert all(tensor.isfinite().all() for tensor in state.values())


@pytest.mark.cluster
def test_a_worker_without_memory_leaves_with_one_line_and_the_others_continue(
    tmp_path: Path, place: Place
) -> None:
    flags = ("--workers", 2, "--servers", 1, "--set", "exhaust=1")
    state, told = run_in_processes(tmp_path, place, *flags)
    assert all(tensor.isfinite().all() for tensor in state.values())
    (line,) = [line for line in told.splitlines() if "worker-1 failed" in line]
    words = r"out of memory on the device, which has no [\d.]+ [GT]iB left: use smaller batches"
    assert re.search(words, line)
    assert "Traceback" not in told


@pytest.mark.cluster
@pytest.mark.gpu
def test_a_kernel_that_fails_is_reported_as_the_failure_of_its_worker(tmp_path: Path) -> None:
    """After a kernel has failed, every call of CUDA in its process fails, even the calls that wait
    for copies."""
    job = tmp_path / "failing.py"
    job.write_text(
        "import torch\n"
        "def main(worker):\n"
        "    model = torch.nn.Embedding(4, 2).to('cuda')\n"
        "    worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))\n"
        "    model(torch.tensor([7], device='cuda')).sum().item()\n"
    )
    done = run("train", job, "--workers", 1, "--rounds", 3, "--quiet", cwd=tmp_path)
    assert done.returncode == 1
    assert "device-side assert" in done.stderr and "failing.py" in done.stderr
