"""A job whose model has 25 MB. Its gradients cost nothing to compute, so that a round takes as long
as its exchange."""

from __future__ import annotations

import torch

import polyrhythm as pr

_SIDE = 2500


def main(worker: pr.Worker) -> None:
    model = torch.nn.Linear(_SIDE, _SIDE, bias=False)
    optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=1e-3))
    gradient = torch.randn_like(model.weight)
    while not worker.stopped:
        model.weight.grad = gradient
        optimizer.step(points=1)
