"""The training task that all compared systems get.

The model, the optimizer, the data and the test set are those of a built-in job. `Numbers` sets the
learning rate and the batch size. Polyrhythm's own `Pacer` makes the forward and backward pass of a
step last 10 ms, and 40 ms on the last worker. Worker 0 evaluates the model on the whole test set
between two steps, as often as polyrhythm itself would. The evaluation is not part of these step times.
The target is reached when an evaluation has the target accuracy. The other systems (peers) write the
time of that evaluation to a file, because they have no other way to report it.
"""

import importlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from polyrhythm.learn.data.images import Images, read_mnist
from polyrhythm.learn.jobs.images import accuracy
from polyrhythm.learn.load import JOBS
from polyrhythm.learn.reporting import Evaluations
from polyrhythm.learn.slowdowns import Pacer, Slowdowns

WORKERS = 4
MIN_STEP = "10ms"
SLOW = f"{WORKERS - 1}=4x"
MOST_PER_S = (WORKERS - 1) * 100 + 25
"""The batches per second of all workers if no worker ever waited and only computing took time."""


_USUAL: dict[str, tuple[float | None, int | None]] = {"mnist-lr": (2e-3, 512)}
"""The learning rate and batch size of jobs for which the benchmark does not use the job's
defaults."""


@dataclass(frozen=True)
class Numbers:
    rate: float | None
    """The learning rate; None: the default of the job."""
    batch_size: int

    @classmethod
    def of(cls, job: str, rate: float | None = None, batch_size: int | None = None) -> "Numbers":
        usual_rate, usual_size = _USUAL.get(job, (None, None))
        own_size = int(importlib.import_module(JOBS[job]).BATCH_SIZE)
        return cls(rate or usual_rate, batch_size or usual_size or own_size)

    @property
    def flags(self) -> tuple[str, ...]:
        """The flags for `polyrhythm train`."""
        rate = () if self.rate is None else ("--set", f"rate={self.rate}")
        return (*rate, "--set", f"batch={self.batch_size}")

    @property
    def words(self) -> tuple[str, ...]:
        """The command-line arguments for a peer."""
        rate = () if self.rate is None else ("--rate", str(self.rate))
        return (*rate, "--batch", str(self.batch_size))


@dataclass(frozen=True)
class Task:
    job: str
    seed: int
    target: float
    verdict: Path
    """The file to which worker 0 writes the time at which the target was reached."""
    numbers: Numbers

    @property
    def _module(self) -> Any:
        return importlib.import_module(JOBS[self.job])

    def build(self) -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(self.seed)
        model = self._module.build()
        optimizer = self._module.choose_optimizer(model)
        if self.numbers.rate is not None:
            for group in optimizer.param_groups:
                group["lr"] = self.numbers.rate
        return model, optimizer

    def images(self) -> Images:
        if self.job == "digits":
            return self._module.load()  # type: ignore[no-any-return]
        return read_mnist(Path(os.environ["POLYRHYTHM_DATA"]) / "mnist")

    def pacer(self, rank: int) -> Pacer:
        slowdowns = Slowdowns.parse({"min-step": MIN_STEP, "slow": SLOW}, WORKERS)
        return Pacer(slowdowns.of(f"worker-{rank}"))

    def batches(self, images: Images, rank: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield batches of this worker's share of the points without end. The share is shuffled
        again in every pass."""
        generator = torch.Generator().manual_seed(self.seed)
        share = torch.randperm(len(images.train_y), generator=generator)[rank::WORKERS]
        while True:
            order = share[torch.randperm(len(share), generator=generator)]
            for first in range(0, len(order), self.numbers.batch_size):
                indices = order[first : first + self.numbers.batch_size]
                yield images.train_x[indices], images.train_y[indices]


class Evaluator:
    """Evaluates the model between the steps of worker 0, and records when the target is reached."""

    def __init__(self, task: Task, model: nn.Module, images: Images) -> None:
        self._task = task
        self._model = model
        self._images = images
        self._times = Evaluations(time.monotonic_ns(), decides=True)

    def look(self) -> None:
        began_ns = time.monotonic_ns()
        if not self._times.due(began_ns):
            return
        found = accuracy(self._model, self._images.test_x, self._images.test_y)
        now_ns = time.monotonic_ns()
        self._times.done(began_ns, now_ns)
        if found >= self._task.target and not self._task.verdict.exists():
            whole = self._task.verdict.with_suffix(".part")
            whole.write_text(json.dumps({"at_ns": now_ns, "accuracy": found}))
            whole.rename(self._task.verdict)


def answer(task: Task, began_ns: int, contributions: int) -> str:
    """The line of JSON that a peer prints. It has the same fields as the result of `polyrhythm
    train --json`."""
    seconds = (time.monotonic_ns() - began_ns) / 1e9
    reached = json.loads(task.verdict.read_text()) if task.verdict.exists() else None
    return json.dumps(
        {
            "seconds_to_target": (reached["at_ns"] - began_ns) / 1e9 if reached else None,
            "accuracy": reached["accuracy"] if reached else None,
            "contributions_per_s": contributions / seconds,
            "batches_per_s": contributions / seconds,
        }
    )
