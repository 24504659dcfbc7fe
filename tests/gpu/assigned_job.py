"""The training problem of `tests/learn/twin_job.py` on the device that the job assigns. Every worker
saves its final model in the folder of `--set out=FOLDER`."""

import sys
from pathlib import Path

import numpy as np

from polyrhythm import Worker

# let processes that a command starts import modules of this repository
sys.path.append(str(Path(__file__).parents[2]))

from tests.gpu import device_job as dj


def main(worker: Worker) -> None:
    model = dj.train(worker, str(worker.device), "momentum")
    assert all(parameter.device == worker.device for parameter in model.parameters())
    state = {name: tensor.cpu().numpy() for name, tensor in model.state_dict().items()}
    np.savez(Path(worker.options["out"]) / f"{worker.name}.npz", **state)
