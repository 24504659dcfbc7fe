"""Logistic regression by gradients on a table with a label, under any policy: `--set data=higgs.csv
--set label=label`. Features are scaled by the mean and the standard deviation of a sample."""

import numpy as np
import torch
from torch import nn

from polyrhythm.errors import DataError
from polyrhythm.learn.data.row_groups import RowGroups
from polyrhythm.learn.jobs.point_options import DATA, LAST, label, number, positive_integer
from polyrhythm.learn.worker import Worker

DEFAULTS = {"epochs": 5, "options": ["data", "label", "rate", "batch"]}
_SAMPLE = 20_000


class Scaled(nn.Module):
    """Shifts and scales the features. It is part of the model, so that the model file is complete."""

    mean: torch.Tensor
    deviation: torch.Tensor

    def __init__(self, mean: torch.Tensor, deviation: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("deviation", deviation)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x - self.mean) / self.deviation


def main(worker: Worker) -> None:
    options = worker.options
    column = label(options)
    data = RowGroups(options[DATA], label=LAST if column is None else column)
    sample = data.source.read(0, min(_SAMPLE, len(data)))
    assert sample.y is not None
    classes = int(sample.y.max()) + 1
    if classes < 2 or sample.y.min() < 0 or not np.issubdtype(sample.y.dtype, np.integer):
        raise DataError(f"the labels of {options[DATA]} must be whole numbers from 0 on")
    deviation = torch.from_numpy(sample.x.std(0)).clamp_min(1e-6)
    torch.manual_seed(worker.seed)
    scaled = Scaled(torch.from_numpy(sample.x.mean(0)), deviation)
    model = nn.Sequential(scaled, nn.Linear(sample.x.shape[1], classes)).to(worker.device)
    rate = number(options, "rate", 0.01)
    optimizer = worker.attach(model, torch.optim.Adam(model.parameters(), lr=rate))
    worker.probe(data, lambda batch: _loss(model, *batch))
    for x, y in worker.batches(data, positive_integer(options, "batch", 256)):
        if not 0 <= int(y.min()) <= int(y.max()) < classes:
            raise DataError(
                f"{options[DATA]} has a label that is not among 0 to {classes - 1}, the labels of its"
                f" first {len(sample)} rows"
            )
        loss = _loss(model, x, y)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step(objective=loss)
    x, y = (torch.from_numpy(np.array(part)) for part in (sample.x, sample.y))
    right = model(x.to(worker.device)).argmax(1).cpu() == y
    worker.report(accuracy=float(right.float().mean()))


def _loss(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    device = next(model.parameters()).device
    return nn.functional.cross_entropy(model(x.to(device)), y.to(device))
