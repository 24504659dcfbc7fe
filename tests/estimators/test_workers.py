"""Fits with real worker processes, and as a worker of a job that runs already."""

import mmap
import threading
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

pytest.importorskip("sklearn", minversion="1.6")

import pandas as pd
import pyarrow as pa
from scipy import sparse
from sklearn.base import clone

import polyrhythm as pr
from polyrhythm.cluster import FuzzyCMeans, KMeans
from polyrhythm.decomposition import NMF
from polyrhythm.estimators import fitting
from polyrhythm.learn.pointwise.algorithm import Batch
from polyrhythm.linear_model import LogisticRegression
from polyrhythm.mixture import GaussianMixture

RNG = np.random.default_rng(0)
X = RNG.normal(size=(3, 5))[RNG.integers(0, 3, 900)] * 5 + RNG.normal(size=(900, 5))
Y = (X @ RNG.normal(size=5) + RNG.normal(size=900) > 0).astype(int)
WEIGHT = RNG.random(900)
Points = npt.NDArray[Any]


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("estimator", "given", "found"),
    [
        (KMeans(3), {"sample_weight": WEIGHT}, "cluster_centers_"),
        (FuzzyCMeans(3), {}, "cluster_centers_"),
        (GaussianMixture(3), {}, "means_"),
        (LogisticRegression(), {"y": Y}, "coef_"),
        (NMF(3, max_iter=20, tol=0.0), {"X": sparse.csr_matrix(np.abs(X))}, "components_"),
    ],
    ids=["kmeans", "fuzzy", "mixture", "logistic", "nmf"],
)
def test_two_processes_find_what_this_process_finds(
    estimator: Any, given: dict[str, Any], found: str
) -> None:
    given = {"X": X, **given}
    here = clone(estimator).set_params(random_state=0).fit(**given)
    there = clone(estimator).set_params(random_state=0, workers=2).fit(**given)
    assert np.allclose(getattr(there, found), getattr(here, found), rtol=1e-6, atol=1e-8)
    assert there.n_iter_ == here.n_iter_


@pytest.mark.cluster
def test_an_error_of_the_input_is_a_value_error_with_processes_too() -> None:
    x = np.repeat(np.arange(6.0)[:, None], 3, axis=1)
    with pytest.raises(ValueError, match="^a covariance is singular"):
        GaussianMixture(2, reg_covar=0.0, random_state=0, workers=2).fit(x)


@pytest.mark.cluster
def test_this_process_joins_a_job_that_runs_already() -> None:
    here = KMeans(3, random_state=0).fit(X)
    with pr.serve(workers=1, epochs=300, kind="statistics", sync="bspb", quiet=True) as job:
        there = KMeans(3, random_state=0, address=job.address).fit(X)
    assert np.allclose(there.cluster_centers_, here.cluster_centers_)


@pytest.mark.parametrize("sync", ["bsp", "bspv", "fsp"])
def test_other_policies_find_as_good_clusters(sync: str) -> None:
    here = KMeans(3, random_state=0).fit(X)
    other = KMeans(3, random_state=0, sync=sync).fit(X)
    assert other.inertia_ == pytest.approx(here.inertia_, rel=0.01)


def test_fits_in_several_threads_do_not_disturb_each_other() -> None:
    alone = [KMeans(3, random_state=seed).fit(X).inertia_ for seed in range(4)]
    found: dict[int, float] = {}

    def fit(seed: int) -> None:
        found[seed] = KMeans(3, random_state=seed).fit(X).inertia_

    threads = [threading.Thread(target=fit, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[seed] for seed in range(4)] == alone


@pytest.mark.cluster
def test_an_array_that_is_mapped_from_a_file_is_not_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save(tmp_path / "x.npy", X)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")

    def refuse(*arguments: object) -> None:
        raise AssertionError("the points were copied")

    monkeypatch.setattr("polyrhythm.estimators.fitting.np.save", refuse)
    there = KMeans(3, random_state=0, workers=2).fit(mapped)
    here = KMeans(3, random_state=0).fit(X)
    assert np.allclose(there.cluster_centers_, here.cluster_centers_)


def test_a_part_of_a_mapped_array_is_found_in_its_file(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    for part in (mapped, mapped[10:20], np.asarray(mapped[100:]), mapped[3:][4:50]):
        place = fitting._mapped(part)
        assert place is not None
        assert np.array_equal(fitting._map(place), part)
    assert fitting._mapped(mapped[:, 1:]) is None
    assert fitting._mapped(X) is None


def _borrowed(owner: str, x: Points, folder: Path) -> Points:
    """The points in memory that belongs to an object which is not an array of numpy."""
    if owner == "tensor":
        return torch.from_numpy(x.copy()).numpy()
    if owner == "arrow":
        column = pa.array(x.ravel()).to_numpy(zero_copy_only=True)
        return np.asarray(column).reshape(x.shape)
    if owner == "pandas":
        return pd.DataFrame(x.copy()).to_numpy()
    if owner == "mmap":
        (folder / "x.bin").write_bytes(x.tobytes())
        with (folder / "x.bin").open("rb") as file:
            memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return np.frombuffer(memory, x.dtype).reshape(x.shape)
    if owner == "deleted file":
        mapped = np.memmap(folder / "x.bin", x.dtype, "w+", shape=x.shape)
        mapped[:] = x
        (folder / "x.bin").unlink()
        return mapped
    memory = {"bytes": x.tobytes(), "memoryview": memoryview(bytearray(x.tobytes()))}[owner]
    return np.frombuffer(memory, x.dtype).reshape(x.shape)


@pytest.mark.parametrize(
    "owner", ["tensor", "arrow", "pandas", "mmap", "deleted file", "bytes", "memoryview"]
)
def test_points_in_memory_of_any_owner_are_kept_for_the_workers(owner: str, tmp_path: Path) -> None:
    x = _borrowed(owner, X, tmp_path)
    kept = fitting._keep(Batch(x, None, x[:, 0]), tmp_path)
    found = fitting._load(kept)
    assert found.weight is not None
    assert np.array_equal(found.x, X) and np.array_equal(found.weight, X[:, 0])


@pytest.mark.cluster
def test_processes_fit_points_whose_memory_belongs_to_a_tensor() -> None:
    x = torch.from_numpy(X.copy()).numpy()
    there = KMeans(3, random_state=0, workers=2).fit(x)
    here = KMeans(3, random_state=0).fit(X)
    assert np.allclose(there.cluster_centers_, here.cluster_centers_)


@pytest.mark.parametrize("points", [1, 5, 900, 20_000, 262_144, 263_000, 1_000_000, 50_000_000])
@pytest.mark.parametrize("workers", [1, 2, 7])
def test_every_worker_has_a_chunk_and_a_step_is_at_most_a_few_megabytes(
    points: int, workers: int
) -> None:
    batch, least = fitting._steps(points, workers, "bspb")
    assert 1 <= least <= batch <= 131_072
    assert points < workers or points // least >= workers
    assert fitting._steps(points, workers, "fsp")[0] == 32_768
