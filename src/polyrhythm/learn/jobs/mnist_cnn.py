"""MNIST digits with a small convolutional network: 98% right after two passes."""

import torch
from torch import nn

from polyrhythm.learn.jobs.images import Pixels, train_on
from polyrhythm.learn.worker import Worker

DEFAULTS = {"epochs": 3, "data": ["mnist"]}
BATCH_SIZE = 64


def build() -> nn.Module:
    return nn.Sequential(
        Pixels(0.1307, 0.3081),
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(32 * 7 * 7, 10)),
    )


def choose_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def main(worker: Worker) -> None:
    train_on(worker, "mnist", build, choose_optimizer, BATCH_SIZE)
