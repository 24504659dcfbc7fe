"""The job that `python -m benchmarks.gpu` measures: in every round each worker pushes and pulls the
same number of bytes, from the memory of a device or of the host, and computes nothing."""

import statistics
import time

import torch

from polyrhythm import Worker


def main(worker: Worker) -> None:
    length, warmup = int(worker.options["nbytes"]) // 4, int(worker.options["warmup"])
    device, workers = worker.options["device"], int(worker.options["workers"])
    parameter = torch.nn.Parameter(torch.zeros(length, device=device))
    model = torch.nn.ParameterList([parameter])
    optimizer = worker.attach(model, torch.optim.SGD([parameter], lr=1.0))
    value = 1.0 + int(worker.name.removeprefix("worker-"))
    gradient = torch.full((length,), value, device=device)
    times_ms: list[float] = []
    while not worker.stopped:
        parameter.grad = gradient
        _finish(device)
        began_s = time.perf_counter()
        optimizer.step(points=1)
        _finish(device)  # wait until the new parameters are on the device
        times_ms.append(1e3 * (time.perf_counter() - began_s))
    expected = worker.version * workers * (workers + 1) / 2
    right = bool((parameter.detach() == expected).all())
    worker.report(round_ms=statistics.median(times_ms[warmup:]), right=right)


def _finish(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize(device)
