"""Fashion-MNIST with LeNet-5, the network of 1998, but with ReLU and max-pooling instead of
sigmoids and averages."""

import torch
from torch import nn

from polyrhythm.learn.jobs.images import Pixels, train_on
from polyrhythm.learn.worker import Worker

DEFAULTS = {"epochs": 5, "data": ["fashion-mnist"]}
BATCH_SIZE = 64


def build() -> nn.Module:
    return nn.Sequential(
        Pixels(0.2860, 0.3530),
        *(nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(400, 120), nn.ReLU()),
        *(nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)),
    )


def choose_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)


def main(worker: Worker) -> None:
    train_on(worker, "fashion-mnist", build, choose_optimizer, BATCH_SIZE)
