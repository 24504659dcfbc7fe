"""Handwritten digits (scikit-learn's 1,797 images of 8x8): a small network, seconds to train."""

import torch
from sklearn.datasets import load_digits
from torch import nn

from polyrhythm.learn.data.images import Images
from polyrhythm.learn.jobs.images import train
from polyrhythm.learn.worker import Worker

DEFAULTS = {"epochs": 30}
BATCH_SIZE = 32
_TRAIN = 1_437
"""Points to train on; the other 360 are the test set."""


def load() -> Images:
    data = load_digits()
    images = torch.tensor(data.data, dtype=torch.float32) / 16.0
    labels = torch.tensor(data.target, dtype=torch.int64)
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
    model = build()
    train(worker, model, choose_optimizer(model), images, BATCH_SIZE)
