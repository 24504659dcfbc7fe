"""`polyrhythm new`: writes a small project as a starting point. The job of the project can be
trained at once."""

import re
from pathlib import Path
from typing import Annotated

import typer

from polyrhythm.api.flags import Debug
from polyrhythm.errors import PolyrhythmError, UsageError

_JOB = '''"""Three clouds of points in the plane, told apart by a small network."""

import torch
from torch import nn

import polyrhythm as pr

# How long to train unless the command line says otherwise. A data set can be named here too, as in
# "data": ["mnist"]; worker.data("mnist") is then its folder.
DEFAULTS = {"epochs": 5}
TRAIN = 1_500


def load() -> tuple[torch.Tensor, torch.Tensor]:
    """Your data. Every worker must see the same points in the same order."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(3, (2_000,), generator=generator)
    centres = torch.tensor([[0.0, 2.0], [2.0, -1.0], [-2.0, -1.0]])
    return centres[labels] + torch.randn((2_000, 2), generator=generator) / 2, labels


def build() -> nn.Module:
    """Your model."""
    return nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 3))


def accuracy(model: nn.Module, points: torch.Tensor, labels: torch.Tensor) -> float:
    """Your test. If the model has dropout or BatchNorm: model.eval() before, model.train()
    after."""
    with torch.no_grad():
        return (model(points).argmax(1) == labels).float().mean().item()


def main(worker: pr.Worker) -> None:
    """What every worker runs: an ordinary torch loop."""
    # The device of this worker: a GPU if there is one. See --devices.
    points, labels = (tensor.to(worker.device) for tensor in load())
    torch.manual_seed(worker.seed)
    model = build().to(worker.device)
    # From here on step() exchanges the parameters with the other workers.
    optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    # Batches of this worker's share of the points, until the job ends.
    for batch, targets in worker.batches((points[:TRAIN], labels[:TRAIN]), batch_size=32):
        loss = nn.functional.cross_entropy(model(batch), targets)
        loss.backward()
        optimizer.step(objective=loss)
        # Called now and then, on one worker. --target-accuracy ends the job by this value.
        worker.evaluate(accuracy=lambda: accuracy(model, points[TRAIN:], labels[TRAIN:]))
    # All workers hold the same model now. The summary shows the reported values.
    worker.report(accuracy=accuracy(model, points[TRAIN:], labels[TRAIN:]))
'''

_TEST = '''"""The job learns, on two workers and a server."""

import job

import polyrhythm as pr


def test_it_learns(tmp_path):
    result = pr.train(job.main, workers=2, servers=1, epochs=2, runs_dir=tmp_path)
    assert not result.worker_failures
    assert result.metrics["accuracy"] > 0.9
    points, labels = job.load()
    model = job.build()
    model.load_state_dict(result.state_dict())
    assert job.accuracy(model, points[job.TRAIN :], labels[job.TRAIN :]) > 0.9
'''

_README = """# {name}

Train it on this machine, on three workers and two servers:

    polyrhythm train job.py --workers 3 --servers 2

- `job.py`: the data, the model and the loop that every worker runs. Change it.
- `test_job.py`: trains for two passes and tests the model. `python -m pytest` runs it.
- `runs/`: one folder for each run, with its options, its journal and the trained model.

Workers may exchange less often: `--kind local --local-steps 8` averages models every eight steps
instead of gradients every step. `polyrhythm train --help` has the rest.
"""

_IGNORE = """runs/
__pycache__/
.pytest_cache/
"""


def new(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The project's name, or a path that ends in it.")
    ],
    debug: Debug = False,
) -> None:
    """Write a small working project: a job, its test and a README.

    Examples:

      polyrhythm new clouds

      cd clouds && polyrhythm train job.py --workers 3
    """
    folder = Path(name)
    if not re.fullmatch(r"\w[\w.-]*", folder.name):
        raise UsageError(f"{name!r} does not end in a name of letters, digits, '-', '_' and '.'")
    files = {
        "job.py": _JOB,
        "test_job.py": _TEST,
        "README.md": _README.format(name=folder.name),
        ".gitignore": _IGNORE,
    }
    try:
        folder.mkdir(parents=True)
        for file, text in files.items():
            (folder / file).write_text(text, encoding="utf-8")
    except FileExistsError:
        raise UsageError(f"{folder} exists already: choose another name, or remove it") from None
    except OSError as error:
        raise PolyrhythmError(f"cannot make {folder}: {error.strerror}") from None
    print(f"{folder} is ready: cd {folder} && polyrhythm train job.py")
