"""A job in which every worker has its own points. No two workers have the same number of points.
Its parameters count visits: row w, element p is the number of counted contributions with point p of
worker-w.

With `--set hold=1`, worker-1 waits in its fourth batch for as long as its first process lives, and
creates the file `held`. Another number names another worker; `--set after=N`: it waits after N
batches. A second process of a worker creates the file `back` with its first batch. With
`--set wait=1`, workers are slow until the file `back` exists. With `--set first=1`, the second
processes of the other workers announce their points only when the second process of worker-1 has
its first batch.
"""

import os
import time
from pathlib import Path

import torch

MOST, BATCH, WORKERS = 90, 8, 3


def points_of(number: int) -> int:
    return MOST - 20 * number


def main(worker):
    number = int(worker.name.rpartition("-")[2])
    points = points_of(number)
    counts = torch.nn.Parameter(torch.zeros(WORKERS, MOST))
    optimizer = worker.attach(torch.nn.ParameterList([counts]), torch.optim.SGD([counts], lr=1.0))
    first = not Path(f"{worker.name}.pid").exists()
    Path(f"{worker.name}.pid").write_text(str(os.getpid()))
    holds = first and worker.options.get("hold") == str(number)
    after = int(worker.options.get("after", 3))
    local = worker.options.get("local")
    if not first and worker.options.get("first", str(number)) != str(number):
        while not Path("back").exists():
            time.sleep(0.01)
    for step, (numbers,) in enumerate(worker.batches([torch.arange(points)], BATCH)):
        if holds and step == after:
            Path("held").touch()
            while True:
                time.sleep(0.05)
        if not first:
            Path("back").touch()
        if "wait" in worker.options and not Path("back").exists():
            time.sleep(0.2)
        counts.grad = torch.zeros(WORKERS, MOST)
        counts.grad[number, numbers] = -1.0 if local else 1.0
        optimizer.step(points=len(numbers))
    if number == 0:
        torch.save(counts.detach(), "final.pt")
