"""The memory that workers use on a device, and whether it is free again when they die."""

import gc
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from polyrhythm import Worker
from polyrhythm.engines.inline import run_inline
from polyrhythm.wire.messages import JobSpec
from tests.cluster.processes import Command, wait_until
from tests.gpu.conftest import Place

MB = 1 << 20
SIZE = 64 * MB
SLACK = 2 * MB
"""The amount by which the device's own figure of used memory may vary."""
ROUNDED = 8 * MB
"""Torch's allocator may give each of a few tensors up to 1 MB more than it needs."""
CHUNKS = 3 * 8 * MB
"""With kind local, changes are computed in pieces of 8 MB."""


@pytest.mark.parametrize(
    ("options", "more"),
    [
        ({}, 0),
        ({"wire_dtype": "bf16"}, 0),
        ({"sync": "asp"}, 0),
        ({"sync": "fsp"}, 0),
        ({"kind": "local"}, CHUNKS),
        ({"kind": "local", "sync": "psp"}, 2 * CHUNKS),
    ],
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else "",
)
def test_a_device_holds_parameters_gradients_and_one_more_model(
    place: Place, options: dict[str, str], more: int
) -> None:
    """Without a GPU the test runs the jobs but does not measure memory, because the memory of the
    servers would count too."""
    on_gpu = place.device != "cpu"
    peaks: list[int] = []

    def main(worker: Worker) -> None:
        gc.collect()  # free the models of earlier tests
        before = torch.cuda.memory_allocated() if on_gpu else 0
        size = SIZE if on_gpu else MB
        parameter = torch.nn.Parameter(torch.zeros(size // 4, device=place.device))
        model = torch.nn.ParameterList([parameter])
        optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
        if on_gpu:
            torch.cuda.reset_peak_memory_stats()
        gradient = torch.ones_like(parameter, requires_grad=False)
        while not worker.stopped:
            parameter.grad = gradient
            optimizer.step(points=1)
        if on_gpu:
            peaks.append(torch.cuda.max_memory_allocated() - before)

    run_inline(
        JobSpec(**{"job": "memory", "rounds": 6, "heartbeat_s": 20.0, **options}),
        main,
        timeout_s=100,
    )
    for peak in peaks:
        assert 2 * SIZE <= peak <= 3 * SIZE + more + ROUNDED, f"{peak / SIZE:.2f} models"


TRAINING = """
import torch


def main(worker):
    device = worker.options["device"]
    model = torch.nn.Linear(1024, 1024).to(device)
    optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.0))
    while not worker.stopped:
        model(torch.ones(2, 1024, device=device)).sum().backward()
        optimizer.step(points=2)
"""


def used_memory(place: Place) -> int:
    """How much memory of the device all processes use. This process must not initialise CUDA."""
    if place.device == "cpu":
        return 0
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id=0"]
    done = subprocess.run(query, capture_output=True, text=True, check=True)
    return int(done.stdout) * MB


@pytest.mark.cluster
@pytest.mark.timeout(400)
def test_workers_that_are_killed_and_started_again_leave_no_memory_on_the_device(
    tmp_path: Path, place: Place
) -> None:
    """On a GPU, 50 workers are killed with SIGKILL, ten at a time, while another worker trains on. No
    other process may use the GPU meanwhile."""
    waves, together = (5, 10) if place.device != "cpu" else (2, 2)
    job = tmp_path / "training.py"
    job.write_text(TRAINING)
    before = used_memory(place)
    flags = ("--rounds", 1_000_000, "--timer", "off", "--set", f"device={place.device}")
    with Command(
        job.name, *flags, "--workers", 1, "--servers", 1, cwd=tmp_path, trace=False
    ) as command:
        command.await_round(3)
        with_one = used_memory(place)
        for wave in range(waves):
            names = [f"guest-{wave}-{number}" for number in range(together)]
            joiners = [command.join(job.name, "--name", name) for name in names]
            for name in names:
                wait_until(_has_joined(command, name), f"{name} joins", 120)
            command.await_round(command.journal("rounds")[-1]["round"] + 2)
            with_all = used_memory(place)
            for joiner in joiners:
                os.kill(joiner.pid, signal.SIGKILL)
            for name in names:
                wait_until(_has_left(command, name), f"the lead removes {name}", 60)
            assert with_all > with_one or place.device == "cpu"
            wait_until(
                lambda: used_memory(place) <= with_one + SLACK, f"wave {wave} leaves no memory", 60
            )
        command.await_round(command.journal("rounds")[-1]["round"] + 2)
    wait_until(lambda: used_memory(place) <= before + SLACK, "all memory is free again", 60)


@pytest.mark.cluster
@pytest.mark.timeout(400)
def test_workers_that_respawn_use_no_more_memory_than_the_first_ones(
    tmp_path: Path, place: Place
) -> None:
    """On a GPU, 51 workers are killed with SIGKILL, 17 at a time, while another worker trains on. No
    other process may use the GPU meanwhile."""
    waves, together = (3, 17) if place.device != "cpu" else (2, 2)
    job = tmp_path / "training.py"
    job.write_text(TRAINING)
    before = used_memory(place)
    flags = (
        "--rounds",
        1_000_000,
        "--timer",
        "off",
        "--set",
        f"device={place.device}",
        "--respawn",
    )
    workers = together + 1
    with Command(
        job.name, *flags, "--workers", workers, "--servers", 1, cwd=tmp_path, trace=False
    ) as command:
        wait_until(_have_joined(command, workers), "all workers join", 120)
        command.await_round(3)
        first = used_memory(place)
        for wave in range(1, waves + 1):
            for pid in command.workers()[1:]:
                os.kill(pid, signal.SIGKILL)
            wait_until(
                _have_joined(command, workers + wave * together), f"wave {wave} has respawned", 120
            )
            command.await_round(command.journal("rounds")[-1]["round"] + 2)
            more = used_memory(place) - first
            assert more <= together * SLACK, f"wave {wave}: {more / MB:.0f} MB more"
    wait_until(lambda: used_memory(place) <= before + SLACK, "all memory is free again", 60)


def _have_joined(command: Command, times: int) -> Callable[[], bool]:
    def joined() -> bool:
        command.assert_alive()
        return len(command.journal("joined") + command.journal("rejoined")) >= times

    return joined


def _has_joined(command: Command, name: str) -> Callable[[], bool]:
    def joined() -> bool:
        command.assert_alive()
        return bool(command.joined(name))

    return joined


def _has_left(command: Command, name: str) -> Callable[[], bool]:
    def left() -> bool:
        gone = [*command.journal("left"), *command.journal("evicted")]
        return any(line["name"] == name for line in gone)

    return left
