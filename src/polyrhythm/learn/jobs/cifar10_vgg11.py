"""CIFAR-10 photographs with VGG-11 and BatchNorm: 9.2 million parameters.

On one core of the host that the README's benchmarks use, a step of 64 images takes 0.6 to 0.9 s. So
a pass takes about ten minutes of one core, divided among the workers. An evaluation on the 10,000
test images takes half a minute. On a GPU a pass takes seconds:

    polyrhythm train cifar10-vgg11 --devices cuda:0
"""

import torch
from torch import nn

from polyrhythm.learn.jobs.images import Pixels, train_on
from polyrhythm.learn.worker import Worker

DEFAULTS = {"epochs": 10, "data": ["cifar10"]}
_STAGES = ((64,), (128,), (256, 256), (512, 512), (512, 512))
"""Channels of the convolutions; each stage ends with a layer that halves the image."""
_EVALUATED = 500
"""How many test images a CPU worker uses for an evaluation during training. More images would make
the other workers wait. A GPU worker uses all test images."""


def build() -> nn.Module:
    layers: list[nn.Module] = [Pixels(0.473, 0.252)]
    before = 3
    for stage in _STAGES:
        for channels in stage:
            convolution = nn.Conv2d(before, channels, 3, padding=1, bias=False)
            layers += [convolution, nn.BatchNorm2d(channels), nn.ReLU(inplace=True)]
            before = channels
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(before, 10))


def choose_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=5e-4)


def main(worker: Worker) -> None:
    evaluated = _EVALUATED if worker.device.type == "cpu" else None
    train_on(worker, "cifar10", build, choose_optimizer, evaluated=evaluated)
