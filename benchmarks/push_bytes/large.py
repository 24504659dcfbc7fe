"""A job whose model has 25 MB. Its gradients cost nothing to compute, so a round takes only as long
as its exchange."""

from __future__ import annotations

import statistics
import time

import torch

import polyrhythm as pr

_SIDE = 2500
_WARM_UP = 3
"""How many rounds are not measured: the first rounds take longer, because memory is used for the
first time."""


def main(worker: pr.Worker) -> None:
    model = torch.nn.Linear(_SIDE, _SIDE, bias=False)
    optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=1e-3))
    gradient = torch.randn_like(model.weight)
    times = []
    while not worker.stopped:
        model.weight.grad = gradient
        began_s = time.perf_counter()
        optimizer.step(points=1)
        times.append(time.perf_counter() - began_s)
    worker.report(round_s=statistics.median(times[_WARM_UP:] or times))
