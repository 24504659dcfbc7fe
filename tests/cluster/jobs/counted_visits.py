"""A job whose parameters count visits: element p is the number of counted contributions that
contain point p. `--set points=N`: the number of points. `--set batch=N`: the points of a batch.
`--set gates=N:M`: a worker waits before its batch N until the file `gate-N` exists, and so on. So a test
can act before the job ends, however slow the machine is."""

import time
from pathlib import Path

import torch

POINTS, BATCH, SLICES = 600, 10, 4


def main(worker):
    count = int(worker.options.get("points", POINTS))
    blocks = [torch.nn.Parameter(torch.zeros(count)) for _ in range(SLICES)]
    groups = [{"params": [block]} for block in blocks]
    optimizer = worker.attach(torch.nn.ParameterList(blocks), torch.optim.SGD(groups, lr=1.0))
    local = worker.options.get("local")
    batch = int(worker.options.get("batch", BATCH))
    gates = [int(number) for number in worker.options.get("gates", "").split(":") if number]
    for at, (numbers,) in enumerate(worker.batches([torch.arange(count)], batch)):
        while at in gates and not Path(f"gate-{at}").exists() and not worker.stopped:
            time.sleep(0.01)
        visited = torch.zeros(count)
        # a local step subtracts the gradient, so -1 adds a visit
        visited[numbers] = -1.0 if local else 1.0
        for block in blocks:
            block.grad = visited
        optimizer.step(points=len(numbers))
    torch.save([block.detach() for block in blocks], Path(f"{worker.name}.final.pt"))
