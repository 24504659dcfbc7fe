"""Reports several metrics: a loss that falls with every pass, a score that rises, and tensors."""

import torch
from torch import nn

import polyrhythm as pr

DEFAULTS = {"epochs": 4}


def main(worker: pr.Worker) -> None:
    torch.manual_seed(worker.seed)
    inputs = torch.randn(64, 2)
    targets = inputs.sum(1, keepdim=True)
    model = nn.Linear(2, 1)
    optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.01))
    passes = 0

    def measured() -> dict[str, object]:
        nonlocal passes
        passes += 1
        return {"val_loss": torch.tensor(1.0 / passes), "f1": passes / 10}

    for x, y in worker.batches((inputs, targets), batch_size=8):
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step(objective=loss)
        worker.evaluate(measured, every="pass")
    worker.report(visited=float(worker.name == "worker-0"))
