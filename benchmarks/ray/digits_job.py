"""The job of RayPS's experiments: digits of MNIST, batches of 128, SGD with a rate of 0.1. A worker
writes down when its first and its last step ended."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

import polyrhythm as pr
from polyrhythm.learn.data.images import Images, read_mnist
from polyrhythm.learn.jobs.images import accuracy
from polyrhythm.learn.jobs.mnist_cnn import build as build_network

BATCH, RATE, STEPS = 128, 0.1, 400
"""`STEPS` is the number of batches of all workers together, after the first step of each: Ray may need
ten seconds more for the last process than for the first."""
PACE_MS = 20
"""The shortest duration of a step."""


def images() -> Images:
    return read_mnist(Path(os.environ["POLYRHYTHM_DATA"]) / "mnist")


def build() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = build_network()
    return model, torch.optim.SGD(model.parameters(), lr=RATE)


def batches(data: Images, rank: int, workers: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Batches of a worker's share of the points, without end."""
    generator = torch.Generator().manual_seed(0)
    share = torch.randperm(len(data.train_y), generator=generator)[rank::workers]
    while True:
        order = share[torch.randperm(len(share), generator=generator)]
        for first in range(0, len(order) - BATCH + 1, BATCH):
            indices = order[first : first + BATCH]
            yield data.train_x[indices], data.train_y[indices]


def tested(model: nn.Module) -> float:
    data = images()
    return accuracy(model, data.test_x, data.test_y)


def main(worker: pr.Worker) -> None:
    rank, workers = int(worker.name.rpartition("-")[2]), int(worker.options["workers"])
    source = batches(images(), rank, workers)
    model, own = build()
    optimizer = worker.attach(model, own)
    began_s = 0.0
    while not worker.stopped:
        points, labels = next(source)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(points), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step(points=len(labels))
        began_s = began_s or time.monotonic()
    times = f"{began_s} {time.monotonic()}"
    Path(worker.options["folder"], worker.name).write_text(times)
