"""A job over 1,203 points that trains slowly until the file `go` exists, and records its visits."""

import os
import time
from pathlib import Path

import torch

POINTS = 1203


def main(worker):
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 4)
    optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.0))
    Path(f"{worker.name}.pid").write_text(str(os.getpid()))
    number = 0
    with open(f"{worker.name}.book", "a", buffering=1) as book:
        for (points,) in worker.batches((torch.ones(POINTS, 8),), batch_size=5):
            time.sleep(0 if os.path.exists("go") else 0.1)
            while number > 180 and not os.path.exists("go"):
                time.sleep(0.01)
            model(points).sum().backward()
            optimizer.step()
            book.write(f"acknowledged {number}\n")
            number += 1
