"""Photographs by VGG-11 with BatchNorm, 9.2 million parameters: minutes a pass without a GPU."""

import torch
from torch import nn

from polyrhythm.learn.data.images import read_cifar10
from polyrhythm.learn.jobs.images import Pixels, train
from polyrhythm.learn.worker import Worker

DEFAULTS = {"epochs": 10, "data": ["cifar10"]}
_STAGES = ((64,), (128,), (256, 256), (512, 512), (512, 512))
"""Channels of the convolutions; each stage ends by halving the image."""


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


def main(worker: Worker) -> None:
    images = read_cifar10(worker.data("cifar10"))
    torch.manual_seed(worker.seed)
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=5e-4)
    train(worker, model, optimizer, images, batch_size=64)
