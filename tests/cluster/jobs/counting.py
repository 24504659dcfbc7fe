"""Counts in the model how often every point was visited. A visit counts when its contribution is
folded.

Every worker also records in a file which points its loop got. `--set loaders=2` loads batches with
two processes, and `--set local=1` is needed with kind local. With `--set context=spawn`,
`worker.batches` gets a `DataLoader` whose processes are started by the method `spawn`.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from polyrhythm import Worker

POINTS = 151
BATCH = 8


class Numbers(Dataset[int]):
    """A data set in which an item is the number of the point together with the process that has
    loaded it."""

    def __len__(self) -> int:
        return POINTS

    def __getitem__(self, index: int) -> tuple[int, int]:
        return index, os.getpid()


def batches_of(worker: Worker, loaders: int) -> Iterator[Any]:
    context = worker.options.get("context")
    if context is None:
        return worker.batches(Numbers(), batch_size=BATCH, num_workers=loaders)
    loader = DataLoader(
        Numbers(), BATCH, num_workers=loaders, shuffle=True, multiprocessing_context=context
    )
    return worker.batches(loader)


def main(worker: Worker) -> None:
    counts = nn.Parameter(torch.zeros(POINTS))
    model = nn.ParameterList([counts])
    optimizer = worker.attach(model, torch.optim.SGD([counts], lr=1.0))
    # the updater `addition` adds gradients, but a local step of SGD subtracts them
    one = -1.0 if "local" in worker.options else 1.0
    loaders = int(worker.options["loaders"])
    with Path(f"seen-{worker.name}-{os.getpid()}").open("w") as seen:
        for numbers, pids in batches_of(worker, loaders):
            assert (os.getpid() in pids) == (loaders == 0)
            print(*numbers.tolist(), file=seen, flush=True)
            counts.grad = torch.zeros(POINTS).index_add(0, numbers, torch.full(numbers.shape, one))
            optimizer.step()
