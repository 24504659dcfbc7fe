"""A job without computation: every step contributes a gradient of the size of the model. Each worker
writes the time at the end of every step to a file of its own."""

import os
import time
from pathlib import Path

import torch

import polyrhythm as pr
from benchmarks.network.shapes import shapes_of


class Layers(torch.nn.Module):
    def __init__(self, model: str) -> None:
        super().__init__()
        self.layers = torch.nn.ParameterList(torch.zeros(shape) for shape in shapes_of(model))


def main(worker: pr.Worker) -> None:
    layers = Layers(str(worker.options.get("model", "mobilenet")))
    gradients = [torch.full_like(layer, 1e-3) for layer in layers.parameters()]
    optimizer = worker.attach(layers, torch.optim.SGD(layers.parameters(), lr=1e-3))
    path = Path(os.environ["POLYRHYTHM_LABORATORY"]) / f"{worker.name}.steps"
    with path.open("wb", buffering=0) as steps:
        while not worker.stopped:
            for layer, gradient in zip(layers.parameters(), gradients, strict=True):
                layer.grad = gradient
            optimizer.step(points=1)
            steps.write(b"%.6f\n" % time.monotonic())
