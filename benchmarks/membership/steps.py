"""A job whose steps compute almost nothing. Each worker writes the time at which each step ended
to a file."""

import os
import time
from pathlib import Path

import torch

from polyrhythm import Worker


def main(worker: Worker) -> None:
    model = torch.nn.Linear(64, 16)
    optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.0))
    Path(f"{worker.name}.pid").write_text(str(os.getpid()))
    with open(f"{worker.name}.steps", "a", buffering=1) as steps:
        while not worker.stopped:
            model(torch.ones(2, 64)).sum().backward()
            optimizer.step(points=2)
            steps.write(f"{time.monotonic_ns()}\n")
