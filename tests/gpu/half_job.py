"""A job with a model of half precision. Its steps are too small to change a number of half
precision, so they change only the servers' float32 copies."""

import torch

from polyrhythm import Worker

RATE = 1e-4
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


class Ones(torch.nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(300, dtype=dtype))


def train(worker: Worker, device: str, dtype: str) -> Ones:
    model = Ones(DTYPES[dtype]).to(device)
    optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=RATE))
    while not worker.stopped:
        model.weight.sum().backward()
        optimizer.step(points=1)
    return model


def main(worker: Worker) -> None:
    train(worker, worker.options["device"], worker.options["dtype"])
