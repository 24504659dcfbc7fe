"""A small job whose workers write down when their steps ended, until there is a file `finish`."""

import os
import time
from pathlib import Path

import torch

import polyrhythm as pr


def main(worker: pr.Worker) -> None:
    folder = Path(worker.options["folder"])
    model = torch.nn.Linear(64, 10)
    optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.01))
    with (folder / f"{worker.name}.{os.getpid()}").open("a", buffering=1) as file:
        while not worker.stopped:
            model(torch.ones(32, 64)).square().mean().backward()
            optimizer.step(points=32)
            file.write(f"{time.monotonic()}\n")
            if (folder / "finish").exists():
                worker.report(finished=1.0)
