"""Ray's documented parameter server on the cluster of this process: an actor with the model, actors
that compute gradients, and a driver that passes references.

Synchronous: the server applies the mean of all gradients, and the next steps wait for the new
weights. Asynchronous: each gradient is applied alone, and its worker goes on with the new weights; the
rate is divided by the number of workers, as in polyrhythm's policies without rounds. A step of a
worker lasts at least 20 ms, as in the other system (`digits_job.py`)."""

import time
from typing import Any

import numpy as np
import numpy.typing as npt
import ray
import torch
from torch import nn

from benchmarks.ray.digits_job import PACE_MS, STEPS, batches, build, images, tested
from polyrhythm.learn.slowdowns import Pacer, Slowdowns

Gradients = list[npt.NDArray[np.float32]]
Weights = dict[str, torch.Tensor]


class ServerActor:
    def __init__(self, share: float) -> None:
        torch.set_num_threads(1)
        self._model, self._optimizer = build()
        for group in self._optimizer.param_groups:
            group["lr"] *= share

    def weights(self) -> Weights:
        return {name: tensor.clone() for name, tensor in self._model.state_dict().items()}

    def apply(self, *gradients: Gradients) -> Weights:
        for parameter, *parts in zip(self._model.parameters(), *gradients, strict=True):
            parameter.grad = torch.from_numpy(np.stack(parts).mean(axis=0))
        self._optimizer.step()
        return self.weights()


class WorkerActor:
    def __init__(self, rank: int, workers: int) -> None:
        torch.set_num_threads(1)
        self._model, _ = build()
        self._batches = batches(images(), rank, workers)
        pace = Slowdowns.parse({"min-step": f"{PACE_MS}ms"}, workers)
        self._pacer = Pacer(pace.of(f"worker-{rank}"))
        self._points = 0

    def compute(self, weights: Weights) -> Gradients:
        self._model.load_state_dict(weights)
        self._pacer.resume(time.monotonic_ns())
        points, labels = next(self._batches)
        self._model.zero_grad()
        nn.functional.cross_entropy(self._model(points), labels).backward()  # type: ignore[no-untyped-call]
        self._points += len(labels)
        self._pacer.pace(self._points)
        return [p.grad.numpy() for p in self._model.parameters() if p.grad is not None]


class TorchActor:
    """An actor that imports torch and does nothing else."""

    def ready(self, optimizer: bool) -> float:
        import torch

        if optimizer:
            torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0).zero_grad()
        return time.monotonic()


def start_torch(actors: int, *, optimizer: bool = False) -> float:
    """The seconds until so many new actors have imported torch. `optimizer`: and have made an optimizer,
    for which torch imports as much again."""
    remote: Any = ray.remote
    began_s = time.monotonic()
    made = [remote(num_cpus=1)(TorchActor).remote() for _ in range(actors)]
    ends = ray.get([actor.ready.remote(optimizer) for actor in made])
    for actor in made:
        ray.kill(actor)
    return float(max(ends) - began_s)


def train(workers: int, *, together: bool) -> dict[str, float]:
    """Train until all workers together have made `STEPS` steps."""
    actor: Any = ray.remote(num_cpus=1)
    server = actor(ServerActor).remote(1.0 if together else 1 / workers)
    made = [actor(WorkerActor).remote(rank, workers) for rank in range(workers)]
    weights = server.weights.remote()
    ray.get([each.compute.remote(weights) for each in made])  # they are ready after a first step
    began_s = time.monotonic()
    if together:
        for _ in range(STEPS // workers):
            weights = server.apply.remote(*[each.compute.remote(weights) for each in made])
    else:
        computing = {each.compute.remote(weights): each for each in made}
        for step in range(STEPS):
            ready, _ = ray.wait(list(computing))
            idle = computing.pop(ready[0])
            weights = server.apply.remote(ready[0])
            if step + len(computing) + 1 < STEPS:
                computing[idle.compute.remote(weights)] = idle
    ray.wait([weights], fetch_local=False)
    took_s = time.monotonic() - began_s
    model, _ = build()
    model.load_state_dict(ray.get(weights))
    for each in (server, *made):
        ray.kill(each)
    return {"seconds": took_s, "accuracy": tested(model)}
