"""The names that blocks of Python in the documents use without defining them, such as `model` and
`dataset`."""

# ruff: noqa: F401  # blocks use the imported names
import math
import subprocess
import sys

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, TensorDataset, default_collate

import polyrhythm as pr
from polyrhythm.cluster import KMeans
from polyrhythm.core.sync.policy import Decision
from polyrhythm.pointwise import Algorithm
from polyrhythm.wire.messages import Contribution

FEATURES, CLASSES, POINTS = 64, 10, 256


class Classifier(nn.Module):
    """A linear classifier with the buffers that docs/training.md names."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(FEATURES, CLASSES)
        self.inner = nn.Module()
        self.inner.register_buffer("centre", torch.zeros(3))
        self.register_buffer("queue", torch.zeros(4))
        self.register_buffer("seen", torch.zeros(2))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.linear(inputs)
        return logits


make_model = Classifier
model = Classifier()

_generator = torch.Generator().manual_seed(0)
inputs = torch.randn(POINTS, FEATURES, generator=_generator)
labels = torch.randint(CLASSES, (POINTS,), generator=_generator)
targets = nn.functional.one_hot(labels, CLASSES).float()
images = inputs
data = (inputs, targets)
dataset = TensorDataset(*data)
X = inputs.numpy()
held_out = test = data
pad = default_collate


def loss_of(guessed: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    return cross_entropy(guessed, wanted)


def loss_on(points: object) -> float:
    return 0.5


f1_on = error_on = loss_on

critic, generator = nn.Linear(FEATURES, 1), nn.Linear(FEATURES, FEATURES)


def critic_loss(critic: nn.Module, generator: nn.Module, real: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = critic(generator(torch.randn_like(real))).mean() - critic(real).mean()
    return loss


def generator_loss(critic: nn.Module, generator: nn.Module, real: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = -critic(generator(torch.randn_like(real))).mean()
    return loss
