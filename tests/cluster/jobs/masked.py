"""A model with a large mask of minus infinity, with a buffer that only worker-0 changes (`seen`,
averaged), and with one that counts the steps of each worker (`mine`, local). Every worker reports the
values of its buffers, and how many bytes it has received."""

import json
import math
import os
import time
from pathlib import Path

import torch

from polyrhythm.runtime.worker.landing import Landing

SIZE = 256
received = 0
take = Landing.take


def count(self, link, message, payload):
    global received
    received += 0 if payload is None else len(payload.view())
    take(self, link, message, payload)


Landing.take = count


def main(worker):
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 4)
    model.register_buffer("mask", torch.full((SIZE, SIZE), -math.inf).triu(1))
    model.register_buffer("seen", torch.zeros(5))
    model.register_buffer("mine", torch.zeros(2))
    optimizer = worker.attach(
        model, torch.optim.SGD(model.parameters(), lr=0.01), buffers={"seen": "mean"}
    )
    began = [
        float(worker.version),
        float(model.seen[0]),
        float(model.mask[0, 1]),
        float(model.mine[0]),
    ]
    Path(f"{worker.name}.begun").touch()
    steps = 0
    while not worker.stopped:
        if worker.options.get("guest") and not os.path.exists("guest.begun"):
            time.sleep(1)
        model(torch.ones(2, 8)).sum().backward()
        model.mine += 1
        steps += 1
        if worker.name == "worker-0":
            model.seen += 1
        optimizer.step(points=2)
    intact = torch.equal(model.mask, torch.full((SIZE, SIZE), -math.inf).triu(1))
    said = {
        "began": began,
        "ended": [worker.version, float(model.seen[0])],
        "steps": steps,
        "mine": model.mine.tolist(),
        "intact": intact,
        "received": received,
    }
    Path(f"{worker.name}.json").write_text(json.dumps(said))
