"""A job that trains a model of a given size (--set mb=102) with Adam on random points."""

import torch

from polyrhythm.learn.worker import Worker

_CLASSES = 1000
_POINTS = 256
_BATCH = 8


def main(worker: Worker) -> None:
    torch.manual_seed(0)
    columns = round(float(worker.options["mb"]) * 1e6 / 4 / _CLASSES)
    points = torch.randn(_POINTS, columns)
    labels = torch.randint(_CLASSES, (_POINTS,))
    model = torch.nn.Linear(columns, _CLASSES, bias=False)
    optimizer = worker.attach(model, torch.optim.Adam(model.parameters(), lr=1e-4))
    data = torch.utils.data.TensorDataset(points, labels)
    for inputs, targets in worker.batches(data, _BATCH):
        torch.nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
