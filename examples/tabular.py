"""An MLP on a table that pandas reads and prepares. It needs pandas.

    polyrhythm train examples/tabular.py
    polyrhythm train examples/tabular.py --set file=flats.csv

The table has the columns of `make_table`. Without a file, the table is made up.
"""

import numpy as np
import pandas as pd
import torch
from torch import nn

import polyrhythm as pr

DEFAULTS = {"epochs": 10}
TRAIN = 0.8
"""The share of the rows that is used for training."""


def make_table() -> pd.DataFrame:
    """Flats with their rent."""
    rng = np.random.default_rng(0)
    rows = 2_000
    table = pd.DataFrame(
        {
            "area": rng.uniform(20, 150, rows),
            "floor": rng.integers(0, 10, rows),
            "district": rng.choice(["centre", "north", "harbour"], rows),
        }
    )
    per_area = table["district"].map({"centre": 18.0, "north": 11.0, "harbour": 14.0})
    table["rent"] = table["area"] * per_area + 10 * table["floor"] + rng.normal(0, 40, rows)
    return table


def make_data(file: str | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Numbers with mean 0 and deviation 1, and one column per district."""
    table = make_table() if file is None else pd.read_csv(file)
    numbers = table[["area", "floor", "rent"]]
    numbers = (numbers - numbers.mean()) / numbers.std()
    inputs = pd.concat([numbers[["area", "floor"]], pd.get_dummies(table["district"])], axis=1)
    return (
        torch.tensor(inputs.to_numpy(dtype="float32")),
        torch.tensor(numbers[["rent"]].to_numpy(dtype="float32")),
    )


def explained(model: nn.Module, inputs: torch.Tensor, rents: torch.Tensor) -> float:
    """The share of the variance of the rents that the model explains."""
    with torch.no_grad():
        return (1 - (model(inputs) - rents).square().mean() / rents.var()).item()


def main(worker: pr.Worker) -> None:
    inputs, rents = make_data(worker.options.get("file"))
    train = int(TRAIN * len(inputs))
    torch.manual_seed(worker.seed)
    model = nn.Sequential(nn.Linear(inputs.shape[1], 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = worker.attach(model, torch.optim.Adam(model.parameters(), lr=0.01))
    for batch, targets in worker.batches((inputs[:train], rents[:train]), batch_size=32):
        loss = nn.functional.mse_loss(model(batch), targets)
        loss.backward()
        optimizer.step(objective=loss)
    worker.report(explained=explained(model, inputs[train:], rents[train:]))
