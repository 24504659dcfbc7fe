"""A job over 603 points that trains slowly until the file `go` exists, and records its visits."""

import os
import time
from pathlib import Path

import torch

POINTS = 603
_UNTIL_GO_S = 0.5
"""The duration of a step until the file `go` exists."""
_STEPS_UNTIL_GO = 60
"""A worker that has made more steps than this waits for the file. Three workers have 228 steps in
three passes, so the job has not reached its goal while they wait."""


def main(worker):
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 4)
    optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.0))
    Path(f"{worker.name}.pid").write_text(str(os.getpid()))
    number = 0
    with open(f"{worker.name}.book", "a", buffering=1) as book:
        for (points,) in worker.batches((torch.ones(POINTS, 8),), batch_size=8):
            time.sleep(0 if os.path.exists("go") else _UNTIL_GO_S)
            while number > _STEPS_UNTIL_GO and not os.path.exists("go"):
                time.sleep(0.1)
            model(points).sum().backward()
            optimizer.step()
            book.write(f"acknowledged {number}\n")
            number += 1
