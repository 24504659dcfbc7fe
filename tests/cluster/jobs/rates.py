"""A job in which every step has the gradient 1 and the learning rate 1. For each step a worker records
its incarnation, the parameter at the beginning of the step, and the number of earlier steps of this
incarnation."""

import os
import time
from pathlib import Path

import torch


def main(worker):
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=1.0))
    Path(f"{worker.name}.pid").write_text(str(os.getpid()))
    steps: dict[int, int] = {}
    with open(f"{worker.name}.book", "a", buffering=1) as book:
        while not worker.stopped:
            taken = steps.get(worker.incarnation, 0)
            book.write(f"{worker.incarnation} {model.weight.item()} {taken}\n")
            steps[worker.incarnation] = taken + 1
            model(torch.ones(1, 1)).sum().backward()
            time.sleep(0.005)  # the sleep stands for computing
            optimizer.step(points=1)
