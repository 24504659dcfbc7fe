"""A training script that torchrun, Slurm or cron starts: each of its processes is a worker.

polyrhythm serve --workers 2 --epochs 5
torchrun --nproc-per-node 2 examples/connect.py 127.0.0.1:PORT

PORT is in the line that `polyrhythm serve` prints. The script has no `main(worker)`: it is an
ordinary program, and the workers may also be started one after the other, or on several machines.
"""

import sys

import torch
from torch import nn

import polyrhythm as pr

TRAIN, TEST = 2_000, 500


def points(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Points in a square. The label says whether a point is inside a circle."""
    generator = torch.Generator().manual_seed(seed)
    inputs = 2 * torch.rand(count, 2, generator=generator) - 1
    return inputs, (inputs.square().sum(1) < 0.6).long()


def accuracy(model: nn.Module) -> float:
    inputs, labels = points(TEST, seed=1)
    with torch.no_grad():
        return (model(inputs).argmax(1) == labels).float().mean().item()


with pr.connect(sys.argv[1]) as worker:
    torch.manual_seed(worker.seed)
    model = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 2))
    optimizer = worker.attach(model, torch.optim.Adam(model.parameters(), lr=0.01))
    for inputs, labels in worker.batches(points(TRAIN, seed=0), batch_size=50):
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step(objective=loss)
        worker.evaluate(accuracy=lambda: accuracy(model))
    worker.report(accuracy=accuracy(model))

print(f"{worker.name}: accuracy {accuracy(model):.3f}")
