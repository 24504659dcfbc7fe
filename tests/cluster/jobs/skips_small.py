"""A loop that skips batches with fewer points than it asked for, as loops for BatchNorm do. Every
worker writes the number of points of its steps to a file."""

from pathlib import Path

import torch

from polyrhythm import Worker

POINTS, BATCH = 1_000, 32


def main(worker: Worker) -> None:
    inputs = torch.linspace(-1, 1, POINTS).reshape(-1, 1)
    model = torch.nn.Linear(1, 1)
    optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.01))
    stepped = 0
    for (x,) in worker.batches((inputs,), batch_size=BATCH):
        if len(x) < BATCH:
            continue
        loss = (model(x) - x).square().mean()
        loss.backward()
        optimizer.step(objective=loss)
        stepped += len(x)
        Path(f"stepped-{worker.name}").write_text(str(stepped))
