"""The minimum size of a batch, with the inline engine. The model has BatchNorm, which cannot train
on one point."""

from typing import Any

import pytest
import torch
from torch import nn

from polyrhythm import Worker
from polyrhythm.engines.inline import run_inline
from polyrhythm.errors import Refused, UsageError
from polyrhythm.wire.messages import JobSpec

POLICIES = [
    ("bsp", "gradient"),
    ("bsp", "local"),
    ("bspb", "gradient"),
    ("ssp:1", "gradient"),
    ("asp", "gradient"),
    ("psp", "local"),
    ("fsp", "gradient"),
    ("fsp", "local"),
]


def train(points: int, batch: int, **fields: Any) -> tuple[list[int], int]:
    """Train, and return the sizes of all batches and the number of points that the job has
    counted."""
    data = (torch.randn(points, 3, generator=torch.Generator().manual_seed(0)),)
    sizes: list[int] = []

    def main(worker: Worker) -> None:
        model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
        optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.01))
        for (inputs,) in worker.batches(data, batch_size=batch):
            sizes.append(len(inputs))
            loss = model(inputs).square().mean()
            loss.backward()
            optimizer.step(objective=loss)

    job = JobSpec(**{"job": "b", "workers": 2, "servers": 1, "heartbeat_s": 20.0, **fields})
    run = run_inline(job, main, timeout_s=60)
    lines = [line for line in run.journal if line["what"] == "rounds"]
    return sizes, sum(line["points"] for line in lines)


@pytest.mark.parametrize(("sync", "kind"), POLICIES)
@pytest.mark.parametrize("points", [33, 130])
def test_batch_norm_trains_with_every_size_of_remainder(sync: str, kind: str, points: int) -> None:
    timer = {} if sync == "psp" else {"timer": "off"}
    sizes, counted = train(points, 8, sync=sync, kind=kind, epochs=3, interval="15ms", **timer)
    assert min(sizes) >= 2
    assert counted == 3 * points, "passes are exact"


@pytest.mark.parametrize("sync", ["bsp", "fsp"])
def test_batches_have_at_least_a_larger_minimum(sync: str) -> None:
    sizes, counted = train(150, 16, sync=sync, epochs=2, min_batch=6, interval="15ms", timer="off")
    assert min(sizes) >= 6 and max(sizes) <= 16 + 5
    assert counted == 300


def test_a_minimum_above_the_users_batch_is_refused() -> None:
    with pytest.raises(UsageError, match="--min-batch is 9: it must not be larger than batch_size"):
        train(100, 8, epochs=1, min_batch=9)


def test_a_data_set_that_is_smaller_than_the_minimum_is_refused() -> None:
    with pytest.raises(Refused, match="has 5 points, fewer than --min-batch 6"):
        train(5, 8, epochs=1, min_batch=6)


def test_three_points_are_one_batch_of_one_worker() -> None:
    assert train(3, 8, epochs=2, timer="off") == ([3, 3], 6)
