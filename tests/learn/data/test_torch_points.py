"""A torch data set as a source of points."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from polyrhythm import Worker
from polyrhythm.data import DatasetSource
from polyrhythm.engines.inline import run_inline
from polyrhythm.errors import DataError, UsageError
from polyrhythm.learn.pointwise.algorithm import Batch
from polyrhythm.learn.pointwise.kmeans import KMeansAlgorithm
from polyrhythm.learn.pointwise.local import fit_local
from polyrhythm.learn.pointwise.runner import run_pointwise
from polyrhythm.wire.messages import JobSpec

X = torch.from_numpy(np.random.default_rng(0).normal(size=(90, 2, 3)))
Y = torch.arange(90) % 3


class Bare(Dataset[torch.Tensor]):
    def __init__(self) -> None:
        self.read: list[int] = []

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, index: int) -> torch.Tensor:
        self.read.append(index)
        return X[index]


def test_items_become_rows() -> None:
    batch = DatasetSource(TensorDataset(X, Y)).read(10, 25)
    assert np.array_equal(batch.x, X[10:25].reshape(15, 6).numpy())
    assert batch.y is not None and np.array_equal(batch.y, Y[10:25].numpy())
    assert DatasetSource(Bare()).read(0, 4).y is None


def test_a_job_finds_what_a_loop_over_the_array_finds() -> None:
    first = {"centers": X[:3].reshape(3, 6).numpy(), "variance": np.ones(()), "offset": np.zeros(6)}
    found = {}
    data = {"worker-0": Bare(), "worker-1": Bare()}

    def main(worker: Worker) -> None:
        source = DatasetSource(data[worker.name])
        found[worker.name] = run_pointwise(worker, KMeansAlgorithm(3), source, parameter=first)

    job = JobSpec(
        job="t", kind="statistics", sync="bspb", workers=2, epochs=50, timer="off", heartbeat_s=20.0
    )
    run_inline(job, main, timeout_s=60)
    x = X.reshape(90, 6).numpy()
    rng = np.random.default_rng(0)
    local = fit_local(KMeansAlgorithm(3), Batch(x), rng=rng, max_passes=50, parameter=first)
    assert np.allclose(found["worker-0"].parameter["centers"], local.parameter["centers"])
    read = data["worker-0"].read + data["worker-1"].read
    assert sorted(read) == list(range(90)), "each item is read by one worker, once"


def test_other_data_sets_are_refused() -> None:
    class Stream(IterableDataset[torch.Tensor]):
        def __iter__(self) -> Iterator[torch.Tensor]:
            return iter(X)

    with pytest.raises(UsageError, match="Stream has no length or no items"):
        DatasetSource(Stream())
    with pytest.raises(DataError, match="a tensor, or a pair"):
        DatasetSource(TensorDataset(X, Y, Y)).read(0, 3)
    broken = X.clone()
    broken[7, 0, 0] = torch.nan
    with pytest.raises(DataError, match="item 7 of the data set is not finite"):
        DatasetSource(TensorDataset(broken)).read(5, 9)
