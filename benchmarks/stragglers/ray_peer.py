"""Trains with Ray's parameter server, synchronous or asynchronous, in the form of Ray's
documentation.

The server is an actor with the model and its optimizer, the workers are actors, and the driver
passes references between them. Synchronous: the server applies the mean of all workers' gradients,
and each worker's next step waits for the new weights. Asynchronous: each gradient is applied alone
when it is ready, and its worker continues with the new weights. The learning rate is then divided
by the number of workers, as in polyrhythm's policies without rounds. Synchronous steps are
submitted a few steps ahead, so that scheduling overlaps with computing. Actors request no CPU, so
that all of them can run.
"""

import argparse
import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from benchmarks.stragglers.task import WORKERS, Evaluator, Numbers, Task, answer

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
import ray

Gradients = list[npt.NDArray[np.float32]]
Weights = dict[str, torch.Tensor]
AHEAD = 4


class Server:
    def __init__(self, task: Task, share: float) -> None:
        torch.set_num_threads(1)
        self._model, self._optimizer = task.build()
        for group in self._optimizer.param_groups:
            group["lr"] *= share
        self._contributions = 0

    def weights(self) -> Weights:
        return {name: tensor.clone() for name, tensor in self._model.state_dict().items()}

    def apply(self, *gradients: Gradients) -> Weights:
        for parameter, *parts in zip(self._model.parameters(), *gradients, strict=True):
            parameter.grad = torch.from_numpy(np.stack(parts).mean(axis=0))
        self._optimizer.step()
        self._contributions += len(gradients)
        return self.weights()

    def contributions(self) -> int:
        return self._contributions


class Worker:
    def __init__(self, task: Task, rank: int) -> None:
        torch.set_num_threads(1)
        self._model, _ = task.build()
        images = task.images()
        self._batches = task.batches(images, rank)
        self._pacer = task.pacer(rank)
        self._batch_size = task.numbers.batch_size
        self._evaluator = Evaluator(task, self._model, images) if rank == 0 else None

    def warm_up(self) -> Gradients:
        return self._gradients()

    def compute(self, weights: Weights) -> Gradients:
        self._model.load_state_dict(weights)
        if self._evaluator is not None:
            self._evaluator.look()
        self._pacer.resume(time.monotonic_ns())
        gradients = self._gradients()
        self._pacer.pace(self._batch_size)
        return gradients

    def _gradients(self) -> Gradients:
        batch, labels = next(self._batches)
        self._model.zero_grad()
        nn.functional.cross_entropy(self._model(batch), labels).backward()  # type: ignore[no-untyped-call]
        return [p.grad.numpy() for p in self._model.parameters() if p.grad is not None]


def train_together(server: Any, workers: list[Any], task: Task, until_s: float) -> None:
    weights = server.weights.remote()
    pending = []
    while not task.verdict.exists() and time.monotonic() < until_s:
        weights = server.apply.remote(*[worker.compute.remote(weights) for worker in workers])
        pending.append(weights)
        if len(pending) > AHEAD:
            ray.wait([pending.pop(0)], fetch_local=False)


def train_apart(server: Any, workers: list[Any], task: Task, until_s: float) -> None:
    weights = server.weights.remote()
    computing = {worker.compute.remote(weights): worker for worker in workers}
    while not task.verdict.exists() and time.monotonic() < until_s:
        ready, _ = ray.wait(list(computing))
        worker = computing.pop(ready[0])
        computing[worker.compute.remote(server.apply.remote(ready[0]))] = worker


@contextlib.contextmanager
def cluster() -> Iterator[None]:
    """Start Ray for this program alone. After the `with` block it is stopped, and leaves no files
    or processes."""
    folder = tempfile.mkdtemp(prefix="ray-peer-")
    try:
        ray.init(
            address="local",
            num_cpus=0,
            include_dashboard=False,
            log_to_driver=False,
            object_store_memory=1 << 28,
            _node_ip_address="127.0.0.1",
            _temp_dir=folder,
        )
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mode", choices=("sync", "async"))
    parser.add_argument("--job", required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", type=float, required=True)
    parser.add_argument("--rate", type=float)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--max-seconds", type=float, required=True)
    args = parser.parse_args()
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # stdout is for results only: the output of libraries goes to stderr
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory() as folder, cluster():
        numbers = Numbers.of(args.job, args.rate, args.batch)
        task = Task(args.job, args.seed, args.target, Path(folder) / "verdict", numbers)
        actor: Any = ray.remote(num_cpus=0)
        together = args.mode == "sync"
        server = actor(Server).remote(task, 1.0 if together else 1 / WORKERS)
        workers = [actor(Worker).remote(task, rank) for rank in range(WORKERS)]
        for _ in range(3):
            ray.get([worker.warm_up.remote() for worker in workers])
            ray.get(server.weights.remote())
        began_ns = time.monotonic_ns()
        train = train_together if together else train_apart
        train(server, workers, task, time.monotonic() + args.max_seconds)
        contributions = ray.get(server.contributions.remote())
        print(answer(task, began_ns, contributions), file=results, flush=True)


if __name__ == "__main__":
    main()
