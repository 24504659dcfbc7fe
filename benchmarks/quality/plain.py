"""Trains a job as an ordinary torch loop in one process. The final accuracy of every policy is compared
with the accuracy of this loop.

    python -m benchmarks.quality.plain digits 3 0

The model, the optimizer, the data and the number of passes are those of the job. A batch is as
large as the batches of all workers together. The loop has one thread per worker, so that it uses no
more cores than a job beside it.
"""

import importlib
import json
import os
import sys

import torch
from torch import nn

from polyrhythm.learn.data.catalogue import known
from polyrhythm.learn.data.fetch import obtain
from polyrhythm.learn.jobs.images import accuracy, read_images
from polyrhythm.learn.load import JOBS


def train(job: str, workers: int, seed: int, *, passes: int | None = None) -> float:
    """Train one model in this process, and return its accuracy on the test set."""
    module = importlib.import_module(JOBS[job])
    if hasattr(module, "load"):
        images = module.load()
    else:
        (name,) = module.DEFAULTS["data"]
        images = read_images(name, obtain(known(name), None, os.environ))
    torch.manual_seed(seed)
    model: nn.Module = module.build()
    optimizer: torch.optim.Optimizer = module.choose_optimizer(model)
    batch = workers * int(module.BATCH_SIZE)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(passes or module.DEFAULTS["epochs"]):
        order = torch.randperm(len(images.train_y), generator=generator)
        for first in range(0, len(order), batch):
            points = order[first : first + batch]
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(
                model(images.train_x[points]), images.train_y[points]
            )
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return accuracy(model, images.test_x, images.test_y)


if __name__ == "__main__":
    named, workers_, seed_, *passes_ = sys.argv[1:]
    torch.set_num_threads(int(workers_))
    passes__ = int(passes_[0]) if passes_ else None
    print(json.dumps({"accuracy": train(named, int(workers_), int(seed_), passes=passes__)}))
