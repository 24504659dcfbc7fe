"""Every worker writes a line with the version and the number of points of each of its batches.
Worker-1 waits in the first batch of version 8, and creates the file `held`."""

import os
import time
from pathlib import Path

import torch

HELD = 8


def main(worker):
    model = torch.nn.Linear(1, 1)
    optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.01))
    Path(f"{worker.name}.pid").write_text(str(os.getpid()))
    data = torch.linspace(-1, 1, 1_200).reshape(-1, 1)
    with Path(f"{worker.name}.points").open("w") as file:
        for (x,) in worker.batches((data,), batch_size=16):
            if worker.name == "worker-1" and worker.version == HELD:
                Path("held").touch()
                while True:
                    time.sleep(0.05)
            print(worker.version, len(x), file=file, flush=True)
            loss = (model(x) - x).square().mean()
            loss.backward()
            optimizer.step(objective=loss)
