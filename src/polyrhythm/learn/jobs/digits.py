"""Handwritten digits (scikit-learn's 1,797 images of 8x8 pixels) with a small network. Training
takes seconds."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import nn

from polyrhythm.errors import UsageError
from polyrhythm.learn.data.images import Images
from polyrhythm.learn.jobs.images import train
from polyrhythm.learn.worker import Worker

DEFAULTS = {"epochs": 30}
BATCH_SIZE = 32
_TRAIN = 1_437
"""The number of points to train on. The other 360 are the test set."""


def find() -> Path:
    """Find the data file in scikit-learn's package. The package is not imported, because that takes
    a second."""
    package = find_spec("sklearn")
    for place in (package.submodule_search_locations or ()) if package is not None else ():
        path = Path(place) / "datasets" / "data" / "digits.csv.gz"
        if path.is_file():
            return path
    raise UsageError("the job digits takes its data from scikit-learn: pip install scikit-learn")


def load() -> Images:
    table = np.loadtxt(find(), delimiter=",", dtype=np.float32)
    images = torch.from_numpy(table[:, :-1].copy()) / 16.0
    labels = torch.from_numpy(table[:, -1].astype(np.int64))
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    images, labels = images[order], labels[order]
    return Images(images[:_TRAIN], labels[:_TRAIN], images[_TRAIN:], labels[_TRAIN:])


def build() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def choose_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def main(worker: Worker) -> None:
    images = load()
    torch.manual_seed(worker.seed)
    model = build().to(worker.device)
    train(worker, model, choose_optimizer(model), images, BATCH_SIZE)
