"""Every worker writes a line with the version and the number of points of each of its batches.
Worker-1 waits in the first batch of version 8, and creates the file `held`. With `--set until=FILE` it
waits until that file exists, otherwise for ever."""

import os
import time
from pathlib import Path

import torch

HELD = 8


def main(worker):
    model = torch.nn.Linear(1, 1)
    local = torch.optim.SGD(model.parameters(), lr=0.01)
    Path(f"{worker.name}.pid").write_text(str(os.getpid()))
    optimizer = worker.attach(model, local)
    data = torch.linspace(-1, 1, 1_200).reshape(-1, 1)
    with Path(f"{worker.name}.points").open("w") as file:
        for (x,) in worker.batches((data,), batch_size=16):
            if worker.name == "worker-1" and worker.version == HELD:
                Path("held").touch()
                until = worker.options.get("until")
                while until is None or not Path(until).exists():
                    time.sleep(0.05)
            print(worker.version, len(x), file=file, flush=True)
            loss = (model(x) - x).square().mean()
            loss.backward()
            optimizer.step(objective=loss)
