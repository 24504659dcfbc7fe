"""The job of `polyrhythm bench exchange`: in every round each worker pushes and pulls N bytes, and
computes nothing.

It runs like any other job, but its updater is plain addition. The benchmarks of other parameter
servers use additions too. At the end every element of the sum is checked.
"""

import time

import torch

from polyrhythm.learn.worker import Worker


def main(worker: Worker) -> None:
    nbytes = int(worker.options["nbytes"])
    warmup = int(worker.options["warmup"])
    workers = int(worker.options["workers"])
    in_place = worker.options["in_place"] == "yes"
    value = 1.0 + int(worker.name.removeprefix("worker-"))
    parameter = torch.nn.Parameter(torch.zeros(nbytes // 4, device=worker.device))
    model = torch.nn.ParameterList([parameter])
    optimizer = worker.attach(model, torch.optim.SGD([parameter], lr=1.0))
    private = torch.full((nbytes // 4,), value, device=worker.device)
    if in_place:
        for buffer in worker.push_buffers()[:2]:
            buffer[0].fill_(value)
    began_s = 0.0
    while not worker.stopped:
        if worker.version == warmup:
            began_s = time.perf_counter()
        push = worker.push_buffers()[worker.version % 2][0]
        parameter.grad = push[: private.numel()] if in_place else private
        optimizer.step(points=1)
    took_s = time.perf_counter() - began_s
    expected = worker.version * workers * (workers + 1) / 2
    right = bool((parameter.detach() == expected).all())
    worker.report(took_s=took_s, rounds=worker.version - warmup, right=right)
