"""A job with a model of half precision. Its steps are too small to change a number of half
precision, so they change only the servers' float32 copies."""

import time
from pathlib import Path

import torch

from polyrhythm import Worker

RATE = 1e-4
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


class Ones(torch.nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(300, dtype=dtype))


def train(
    worker: Worker, device: str, dtype: str, *, store: Path | None = None, last: int = 0
) -> Ones:
    """`store`: before round `last`, wait until a checkpoint in this store is complete. The end of a
    job does not wait for the checkpoint that is being written."""
    model = Ones(DTYPES[dtype]).to(device)
    optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=RATE))
    while not worker.stopped:
        if store is not None and worker.version >= last - 1:
            while not worker.stopped and not any(store.glob("checkpoints/*/manifest.json")):
                time.sleep(0.01)
        model.weight.sum().backward()
        optimizer.step(points=1)
    return model


def main(worker: Worker) -> None:
    options = worker.options
    store, last = Path(options["store"]), int(options["last"])
    train(worker, options["device"], options["dtype"], store=store, last=last)
