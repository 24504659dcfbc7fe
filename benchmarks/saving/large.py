"""A job with a model of a given size (--set mb=102) and without data."""

import torch

from polyrhythm.learn.worker import Worker

_ROWS = 1000


def main(worker: Worker) -> None:
    columns = round(float(worker.options["mb"]) * 1e6 / 4 / _ROWS)
    model = torch.nn.Linear(columns, _ROWS, bias=False)
    optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.01))
    while not worker.stopped:
        model.weight.grad = torch.ones_like(model.weight)
        optimizer.step(points=1)
