"""A job in which every worker has its own points. No two workers have the same number of points.
Its parameters count visits: row w, element p is the number of counted contributions with point p of
worker-w. Every point contains the number of its owner, so a worker knows which of its points came
from others."""

from pathlib import Path

import torch

MOST, BATCH, WORKERS = 150, 10, 3


def points_of(number: int) -> int:
    return MOST - 25 * number


class Own(torch.utils.data.Dataset):
    """Point n of a worker is the worker's number and n."""

    def __init__(self, owner):
        self.owner = owner

    def __len__(self):
        return points_of(self.owner)

    def __getitem__(self, index):
        if not 0 <= index < len(self):
            raise IndexError(f"worker-{self.owner} has no point {index}")
        return {"owner": self.owner, "number": index}


def main(worker):
    me = int(worker.name.rpartition("-")[2])
    counts = torch.nn.Parameter(torch.zeros(WORKERS, MOST))
    optimizer = worker.attach(torch.nn.ParameterList([counts]), torch.optim.SGD([counts], lr=1.0))
    seen = torch.zeros(WORKERS, dtype=torch.int64)
    processes = int(worker.options.get("processes", 0))
    for points in worker.batches(Own(me), BATCH, num_workers=processes):
        counts.grad = torch.zeros(WORKERS, MOST)
        # a step subtracts the gradient, so -1 adds a visit
        counts.grad[points["owner"], points["number"]] = -1.0
        seen += torch.bincount(points["owner"], minlength=WORKERS)
        Path(f"{worker.name}.seen.txt").write_text(" ".join(map(str, seen.tolist())))
        optimizer.step(points=len(points["number"]))
    torch.save(counts.detach(), f"{worker.name}.final.pt")
