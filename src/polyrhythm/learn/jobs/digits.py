"""Handwritten digits (scikit-learn's 1,797 images of 8x8): a small network, seconds to train."""

import torch
from sklearn.datasets import load_digits
from torch import nn

from polyrhythm.learn.worker import Worker

DEFAULTS = {"epochs": 30}
_TRAIN = 1_437
"""Points to train on; the other 360 are the test set."""


def load() -> tuple[torch.Tensor, torch.Tensor]:
    data = load_digits()
    images = torch.tensor(data.data, dtype=torch.float32) / 16.0
    labels = torch.tensor(data.target, dtype=torch.int64)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    return images[order], labels[order]


def main(worker: Worker) -> None:
    images, labels = load()
    torch.manual_seed(worker.seed)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    for batch, targets in worker.batches((images[:_TRAIN], labels[:_TRAIN]), batch_size=32):
        loss = nn.functional.cross_entropy(model(batch), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step(objective=loss)
    with torch.no_grad():
        right = model(images[_TRAIN:]).argmax(1) == labels[_TRAIN:]
    worker.report(accuracy=right.float().mean().item())
