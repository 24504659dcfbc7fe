"""The training problem of `tests/learn/twin_job.py` with its model on a device, as a job that
workers run inline or as processes."""

import os
import sys
from pathlib import Path

import numpy as np
import torch

from polyrhythm import Worker

# let processes that a command starts import modules of this repository
sys.path.append(str(Path(__file__).parents[2]))

from tests.learn import twin_job as tj


def train(worker: Worker, device: str, optimizer_name: str, steps: int = 1) -> tj.Net:
    """Train. `steps`: the value of --local-steps."""
    number = int(worker.name.removeprefix("worker-"))
    model = tj.build().to(device)
    optimizer = worker.attach(model, tj.OPTIMIZERS[optimizer_name](model))
    scheduler = tj.schedule(optimizer)
    while not worker.stopped:
        for local in range(steps):
            points, labels = tj.batch(number, worker.version * steps + local)
            loss = tj.loss_of(model, points.to(device), labels.to(device))
            loss.backward()
            optimizer.step(points=len(labels), objective=loss)
        scheduler.step()
    return model


def main(worker: Worker) -> None:
    """Train on the device of `--set device=`. Worker 0 saves the result in `--set out=FILE`. With
    `--set exhaust=NUMBER`, the worker with this number runs out of memory after two steps."""
    device, number = worker.options["device"], int(worker.name.removeprefix("worker-"))
    if worker.options.get("exhaust") == str(number):
        _exhaust(worker, device)
    model = train(worker, device, worker.options["optimizer"])
    assert all(parameter.device == torch.device(device) for parameter in model.parameters())
    if number == 0:
        out = worker.options["out"]
        with open(f"{out}.part", "wb") as file:
            np.savez(file, **{name: t.cpu().numpy() for name, t in model.state_dict().items()})
        os.replace(f"{out}.part", out)


def _exhaust(worker: Worker, device: str) -> None:
    model = tj.build().to(device)
    optimizer = worker.attach(model, tj.OPTIMIZERS[worker.options["optimizer"]](model))
    for step in range(2):
        points, labels = tj.batch(1, step)
        tj.loss_of(model, points.to(device), labels.to(device)).backward()
        optimizer.step(points=len(labels))
    if device == "cpu":  # a CPU never raises this error, so the test raises it
        raise torch.OutOfMemoryError(
            "CUDA out of memory. Tried to allocate 3.64 TiB. GPU 0 has a total capacity of 139.80"
            " GiB.\nIf reserved but unallocated memory is large, try another setting."
        )
    torch.empty(10**12, device=device)
