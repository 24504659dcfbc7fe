"""Fits with real worker processes, and as a worker of a job that runs already."""

import mmap
import re
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
from sklearn.exceptions import ConvergenceWarning

import polyrhythm as pr
from polyrhythm.cluster import FuzzyCMeans, KMeans
from polyrhythm.decomposition import NMF
from polyrhythm.errors import UsageError
from polyrhythm.estimators import fitting
from polyrhythm.learn.pointwise.algorithm import Batch
from polyrhythm.learn.pointwise.kmeans import KMeansAlgorithm
from polyrhythm.learn.pointwise.logistic import LogisticRegressionAlgorithm
from polyrhythm.linear_model import LogisticRegression
from polyrhythm.mixture import GaussianMixture
from polyrhythm.wire.messages import JobSpec
from polyrhythm.wire.messages.job import Target

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


DOCS = (Path(__file__).parents[2] / "docs" / "estimators.md").read_text()
ESTIMATORS: dict[str, Any] = {
    "KMeans()": (KMeans(3), {}, "cluster_centers_"),
    "FuzzyCMeans()": (FuzzyCMeans(3), {}, "cluster_centers_"),
    "GaussianMixture()": (GaussianMixture(3), {}, "means_"),
    "LogisticRegression()": (LogisticRegression(), {"y": Y}, "coef_"),
    "NMF()": (NMF(3, tol=0.03), {"X": np.abs(X)}, "components_"),
}


def _documented(name: str) -> dict[str, Any]:
    """The options of `pr.serve` that the documentation gives for an estimator."""
    row = next(line for line in DOCS.splitlines() if line.startswith(f"| `{name}` |"))
    found: dict[str, Any] = eval(f"dict({row.split('`')[3]})")
    return found


@pytest.mark.cluster
@pytest.mark.parametrize("name", ESTIMATORS)
def test_an_estimator_joins_the_job_that_the_documentation_serves(name: str) -> None:
    estimator, given, found = ESTIMATORS[name]
    given = {"X": X, **given}
    here = clone(estimator).set_params(random_state=0).fit(**given)
    with pr.serve(workers=1, quiet=True, **_documented(name)) as job:
        there = clone(estimator).set_params(random_state=0, address=job.address).fit(**given)
    assert np.allclose(getattr(there, found), getattr(here, found), rtol=1e-6, atol=1e-8)
    assert there.n_iter_ == here.n_iter_


@pytest.mark.cluster
def test_a_refused_estimator_says_what_to_serve_and_the_job_goes_on() -> None:
    with pr.serve(workers=1, epochs=300, kind="statistics", quiet=True) as job:
        with pytest.raises(ValueError, match="its policy is bsp, and this algorithm") as refused:
            LogisticRegression(address=job.address).fit(X, Y)
        there = KMeans(3, random_state=0, address=job.address).fit(X)
    here = KMeans(3, random_state=0).fit(X)
    assert there.inertia_ == pytest.approx(here.inertia_, rel=0.01)
    call = str(refused.value).split("Serve it with pr.serve(")[1].split(")")[0]
    with pr.serve(**eval(f"dict({call})"), quiet=True) as job:
        right = LogisticRegression(address=job.address).fit(X, Y)
    assert np.allclose(right.coef_, LogisticRegression().fit(X, Y).coef_, atol=1e-6)


@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.parametrize(
    ("served", "fault"),
    [
        ({}, ""),
        ({"kind": "gradient", "sync": "bsp"}, "its kind is gradient"),
        ({"sync": "asp"}, "its policy is asp"),
        ({"epochs": None, "max_seconds": 60.0}, "it has no number of passes"),
        ({"epochs": 7}, "it ends after 7 passes"),
        ({"epochs": 1000}, "it ends after 1000 passes"),
        ({"rounds": 5}, r"it has another goal \(rounds\)"),
        ({"targets": (Target("objective", 1.0, False),)}, r"it has another goal \(target\)"),
        ({"target_change": 0.1}, r"it has another goal \(target_change\)"),
    ],
)
def test_an_estimator_refuses_jobs_that_do_not_fit(
    name: str, served: dict[str, Any], fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    estimator, given, _ = ESTIMATORS[name]
    job = JobSpec(job="serve", **{**_documented(name), **served})
    found: list[list[str]] = []

    def joined(fit: Any, place: Any, max_passes: int) -> None:
        found.append(fitting.unfit(job, fit.algorithm, place.sync, max_passes))
        raise UsageError("stop here")

    monkeypatch.setattr(fitting, "_joined", joined)
    with pytest.raises(ValueError, match="stop here"):
        clone(estimator).set_params(address="host:1").fit(**{"X": X, **given})
    assert re.search(fault, "; ".join(found[0])) if fault else found == [[]]


@pytest.mark.parametrize("sync", ["bsp", "bspv", "fsp"])
def test_only_logistic_regression_needs_a_policy_with_whole_passes(sync: str) -> None:
    job = JobSpec(job="serve", kind="statistics", sync=sync, epochs=300)
    assert fitting.unfit(job, KMeansAlgorithm(3), "bspb", 300) == []
    assert fitting.unfit(job, LogisticRegressionAlgorithm(2), "bspb", 300) != []


def test_asp_is_joined_only_on_request() -> None:
    job = JobSpec(job="serve", kind="statistics", sync="asp", epochs=300)
    assert fitting.unfit(job, KMeansAlgorithm(3), "asp", 300) == []
    assert fitting.unfit(job, LogisticRegressionAlgorithm(2), "asp", 300) != []


def test_a_served_job_runs_one_fit() -> None:
    for estimator in (KMeans(3, init="random"), GaussianMixture(3, n_init=2)):
        with pytest.raises(ValueError, match="give n_init=1"):
            estimator.set_params(address="host:1").fit(X)


@pytest.mark.cluster
def test_a_job_that_stops_before_the_fit_has_converged_gives_a_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(KMeansAlgorithm, "terminated", lambda self, check: False)
    shown = threading.Event()
    monkeypatch.setattr(KMeans, "_show", lambda self, number, objective: shown.set())
    with pr.serve(workers=1, quiet=True, kind="statistics", sync="bspb", epochs=10**6) as job:
        stopping = threading.Thread(target=lambda: (shown.wait(), job.stop()))
        stopping.start()
        model = KMeans(3, random_state=0, verbose=1, max_iter=10**6, address=job.address)
        with pytest.warns(ConvergenceWarning, match="ended after .* before the fit had converged"):
            model.fit(X)
        stopping.join()


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
