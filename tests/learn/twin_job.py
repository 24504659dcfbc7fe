"""One training problem in two implementations: as a job, and as one process that does the work of
all workers.

Workers run `main`, inline or as processes (`polyrhythm train twin_job.py`). `twin` and `local_twin`
are deliberately simple implementations to compare the results with. A batch depends only on the
worker and the step, so that both implementations visit the same points.
"""

import copy
import math
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import nn

from polyrhythm import Worker

ROUNDS = 10
FEATURES, HIDDEN, CLASSES = 12, 16, 4
State = dict[str, torch.Tensor]


class Net(nn.Module):
    """A network with tied weights and with BatchNorm after a layer without bias. It is smooth
    everywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, HIDDEN, bias=False)
        self.norm = nn.BatchNorm1d(HIDDEN)
        self.there = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.again = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.again.weight = self.there.weight
        self.last = nn.Linear(HIDDEN, CLASSES)

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.norm(self.first(points)))
        hidden = torch.tanh(self.again(torch.tanh(self.there(hidden))))
        return self.last(hidden)


def build() -> Net:
    """Build the model with the same parameters in every worker. Do not use torch's global random
    number generator, which inline workers share."""
    model = Net()
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 4)
        model.norm.weight.add_(1.0)
    return model


def batch(worker: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Make a worker's batch for a step. Batches have different sizes, from 4 to 14 points."""
    generator = torch.Generator().manual_seed(1_000_003 * worker + step)
    count = 4 + 3 * (worker % 3) + step % 5
    points = torch.randn((count, FEATURES), generator=generator)
    labels = torch.randint(CLASSES, (count,), generator=generator)
    return points, labels


def loss_of(model: nn.Module, points: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(model(points), labels)


def groups_of(model: Net) -> list[dict[str, object]]:
    return [
        {"params": [model.first.weight, model.there.weight, *model.norm.parameters()]},
        {"params": list(model.last.parameters()), "lr": 0.02, "weight_decay": 0.01},
    ]


OPTIMIZERS: dict[str, Callable[[Net], torch.optim.Optimizer]] = {
    "momentum": lambda model: torch.optim.SGD(groups_of(model), lr=0.1, momentum=0.9),
    "nesterov": lambda model: torch.optim.SGD(
        groups_of(model), lr=0.1, momentum=0.9, nesterov=True
    ),
    "adam": lambda model: torch.optim.Adam(groups_of(model), lr=0.01),
    "adamw": lambda model: torch.optim.AdamW(groups_of(model), lr=0.01),
}


def schedule(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.StepLR(optimizer, step_size=4, gamma=0.7)


# -- as a job ----------------------------------------------------------------------------------


def train(worker: Worker, optimizer_name: str, steps: int = 1) -> Net:
    """Train. `steps` is the value of --local-steps; with kind gradient it is 1."""
    number = int(worker.name.removeprefix("worker-"))
    model = build()
    optimizer = worker.attach(model, OPTIMIZERS[optimizer_name](model))
    scheduler = schedule(optimizer)
    while not worker.stopped:
        for local in range(steps):
            points, labels = batch(number, worker.version * steps + local)
            loss_of(model, points, labels).backward()
            optimizer.step(points=len(labels))
        scheduler.step()
    return model


def main(worker: Worker) -> None:
    """Train, and save the result in the file given with `--set out=FILE`."""
    number = int(worker.name.removeprefix("worker-"))
    model = build()
    optimizer = worker.attach(model, OPTIMIZERS[worker.options["optimizer"]](model))
    scheduler = schedule(optimizer)
    while not worker.stopped:
        points, labels = batch(number, worker.version)
        loss_of(model, points, labels).backward()
        optimizer.step(points=len(labels))
        scheduler.step()
    if number == 0:
        out = worker.options["out"]
        with open(f"{out}.part", "wb") as file:
            state = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
            np.savez(file, shared=lies_in_a_segment(model.first.weight), **state)
        os.replace(f"{out}.part", out)


def lies_in_a_segment(tensor: torch.Tensor) -> bool:
    """Return whether the tensor lies in a shared segment that is mapped read-only."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, last = (int(end, 16) for end in line.split()[0].split("-"))
        if first <= tensor.data_ptr() < last:
            return "memfd:polyrhythm" in line and "w" not in line.split()[1]
    return False


# -- as one process ----------------------------------------------------------------------------


def twin(
    workers: int, optimizer_name: str, rounds: int = ROUNDS, *, by_points: bool = True
) -> State:
    """Train in one process: compute each worker's batch on its own copy, average gradients and
    buffers by points, then make one step. With `by_points=False` every worker has the same weight,
    which is wrong."""
    model = build()
    optimizer = OPTIMIZERS[optimizer_name](model)
    scheduler = schedule(optimizer)
    for round_ in range(rounds):
        copies, weights = [], []
        for worker in range(workers):
            mine = copy.deepcopy(model)
            points, labels = batch(worker, round_)
            loss_of(mine, points, labels).backward()
            copies.append(mine)
            weights.append(len(labels) if by_points else 1)
        for name, parameter in model.named_parameters():
            gradients = [dict(mine.named_parameters())[name].grad for mine in copies]
            parameter.grad = mean_by_points(gradients, weights)
        average_buffers(model, copies, weights)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
    return model.state_dict()


OUTER: dict[str, Callable[[Net], torch.optim.Optimizer]] = {
    "nesterov:lr=0.7,momentum=0.9": lambda model: torch.optim.SGD(
        model.parameters(), lr=0.7, momentum=0.9, nesterov=True
    ),
    "sgd:lr=0.5": lambda model: torch.optim.SGD(model.parameters(), lr=0.5),
    "adam:lr=0.01,beta2=0.95": lambda model: torch.optim.Adam(
        model.parameters(), lr=0.01, betas=(0.9, 0.95)
    ),
}
"""By the text of `--outer`, the same optimizer in plain torch."""


def local_twin(
    workers: int,
    optimizer_name: str,
    steps: int,
    rounds: int,
    outer: str = "off",
    *,
    by_points: bool = True,
) -> State:
    """Train in one process with kind local: every worker makes steps of its own optimizer from the
    common parameters, and then the models are averaged. With an outer optimizer (DiLoCo), the
    difference between the common parameters and this average is the gradient of its step. With
    `by_points=False` every worker has the same weight."""
    model = build()
    outer_optimizer = OUTER[outer](model) if outer != "off" else None
    copies = [copy.deepcopy(model) for _ in range(workers)]
    optimizers = [OPTIMIZERS[optimizer_name](mine) for mine in copies]
    schedulers = [schedule(optimizer) for optimizer in optimizers]
    for round_ in range(rounds):
        weights = []
        for worker, mine in enumerate(copies):
            mine.load_state_dict(model.state_dict())
            visited = 0
            for local in range(steps):
                points, labels = batch(worker, round_ * steps + local)
                optimizers[worker].zero_grad()
                loss_of(mine, points, labels).backward()
                optimizers[worker].step()
                visited += len(labels)
            schedulers[worker].step()
            weights.append(visited if by_points else 1)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parts = [dict(mine.named_parameters())[name] for mine in copies]
                average = mean_by_points(parts, weights)
                if outer_optimizer is None:
                    parameter.copy_(average)
                else:
                    parameter.grad = parameter - average
        if outer_optimizer is not None:
            outer_optimizer.step()
        average_buffers(model, copies, weights)
    return model.state_dict()


def mean_by_points(tensors: list[torch.Tensor], weights: list[int]) -> torch.Tensor:
    total = sum(tensor * weight for tensor, weight in zip(tensors, weights, strict=True))
    return total / sum(weights)


def average_buffers(model: nn.Module, copies: list[nn.Module], weights: list[int]) -> None:
    """Average floating-point buffers by points; take the maximum of integer buffers."""
    for name, buffer in model.named_buffers():
        parts = [dict(mine.named_buffers())[name] for mine in copies]
        if buffer.is_floating_point():
            buffer.copy_(mean_by_points(parts, weights))
        else:
            buffer.copy_(torch.stack(parts).amax(0))


def distance(ours: State, theirs: State) -> float:
    """Return |a-b| / |b| over all parameters and floating-point buffers together. The result is
    infinite if integer buffers differ."""
    assert ours.keys() == theirs.keys()
    off = whole = 0.0
    for name, tensor in theirs.items():
        if tensor.is_floating_point():
            off += (ours[name].double() - tensor.double()).square().sum().item()
            whole += tensor.double().square().sum().item()
        elif not torch.equal(ours[name], tensor):
            return math.inf
    return (off / whole) ** 0.5
