"""A small job that writes down when each worker has made its first step."""

import time
from pathlib import Path

import torch

import polyrhythm as pr


def main(worker: pr.Worker) -> None:
    model = torch.nn.Linear(64, 10)
    optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.01))
    first = True
    while not worker.stopped:
        model(torch.ones(32, 64)).square().mean().backward()
        optimizer.step(points=32)
        if first:
            Path(worker.options["times"], worker.name).write_text(str(time.monotonic()))
            first = False
