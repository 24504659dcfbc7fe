"""Point-wise algorithms in jobs: the same result as a loop over all points in one process."""

from typing import Any

import numpy as np
import pytest

from polyrhythm import Worker
from polyrhythm.engines.inline import InlineRun, run_inline
from polyrhythm.errors import PolyrhythmError
from polyrhythm.learn.pointwise.algorithm import Algorithm, Batch
from polyrhythm.learn.pointwise.kmeans import KMeansAlgorithm
from polyrhythm.learn.pointwise.layout import Arrays
from polyrhythm.learn.pointwise.local import fit_local
from polyrhythm.learn.pointwise.mixture import GaussianMixtureAlgorithm
from polyrhythm.learn.pointwise.runner import Fit, first_parameter, run_pointwise, sample_source
from polyrhythm.learn.pointwise.source import ArraySource
from polyrhythm.observe.summary import summarise
from polyrhythm.wire.messages import JobSpec

COUNT, WIDTH, K = 600, 3, 4


def points() -> Batch:
    rng = np.random.default_rng(1)
    centers = 6 * rng.normal(size=(K, WIDTH))
    return Batch(centers[rng.integers(0, K, COUNT)] + rng.normal(size=(COUNT, WIDTH)))


def run(
    algorithm: type[Algorithm] | Any = KMeansAlgorithm, batch: int = 32_768, **job: Any
) -> tuple[InlineRun, dict[str, Fit]]:
    """Run a job inline. Returns the run, and the result on every worker."""
    found: dict[str, Fit] = {}

    def main(worker: Worker) -> None:
        found[worker.name] = run_pointwise(worker, algorithm(K), ArraySource(points()), batch=batch)

    fields = {"kind": "statistics", "servers": 2, "heartbeat_s": 20.0, "slice_nbytes": 64, **job}
    return run_inline(JobSpec(job="pointwise", **fields), main, timeout_s=60), found


def reference(algorithm: Algorithm, passes: int) -> Any:
    first = first_parameter(algorithm, ArraySource(points()), 0)
    rng = np.random.default_rng(0)
    return fit_local(algorithm, points(), rng=rng, max_passes=passes, parameter=first)


def close(one: Arrays, other: Arrays) -> bool:
    return all(np.allclose(one[name], other[name], atol=1e-9) for name in other)


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("algorithm", [KMeansAlgorithm, GaussianMixtureAlgorithm])
def test_full_passes_give_the_result_of_one_process(algorithm: Any, workers: int) -> None:
    expected = reference(algorithm(K), 5)
    _, found = run(algorithm, sync="bspb", workers=workers, epochs=5)
    assert len(found) == workers
    for fit in found.values():
        assert close(fit.parameter, expected.parameter)
        assert fit.terminated == expected.terminated


@pytest.mark.parametrize("sync", ["bsp", "bspb", "bspv", "fsp"])
def test_every_policy_converges_to_the_same_objective(sync: str) -> None:
    expected = reference(KMeansAlgorithm(K), 50)
    assert expected.terminated
    job, found = run(sync=sync, workers=2, epochs=60, batch=100)
    assert close(found["worker-0"].parameter, found["worker-1"].parameter)
    assert found["worker-0"].objectives[-1] == pytest.approx(expected.objectives[-1], rel=0.01)
    (ended,) = [line for line in job.journal if line["what"] == "ended"]
    assert ended["fields"] == {"goal": "terminated", "why": "converged"}


def test_asp_is_for_comparison_only(capsys: pytest.CaptureFixture[str]) -> None:
    """Without rounds, workers read sums of different moments, so their parameters differ. With one
    worker there is no difference."""
    expected = reference(KMeansAlgorithm(K), 50)
    _, found = run(sync="asp", workers=1, epochs=60)
    assert close(found["worker-0"].parameter, expected.parameter)
    _, found = run(sync="asp", workers=3, epochs=10, batch=50)
    assert len(found) == 3
    assert "is for comparison only: workers compute" in capsys.readouterr().err
    with pytest.raises(PolyrhythmError, match="is for comparison only, and has no --replicas"):
        run(sync="asp", workers=1, epochs=1, replicas=1)


def test_the_workers_use_the_first_parameters_of_one_of_them() -> None:
    def main(worker: Worker) -> None:
        first = reference(KMeansAlgorithm(K), 1).parameter
        if worker.name != "worker-0":
            first = {name: array + 1.0 for name, array in first.items()}
        fit = run_pointwise(worker, KMeansAlgorithm(K), ArraySource(points()), parameter=first)
        found.append(fit.parameter)

    found: list[Arrays] = []
    job = JobSpec(job="j", kind="statistics", sync="bspb", workers=2, epochs=3, heartbeat_s=20.0)
    run_inline(job, main, timeout_s=60)
    assert close(found[0], found[1])


class Halting(KMeansAlgorithm):
    """Every point votes to halt at its third visit."""

    def __init__(self, k: int) -> None:
        super().__init__(k, tol=-1.0)
        self.visits = 0

    def memory(self, count: int) -> dict[str, Any]:
        return {**super().memory(count), "visits": np.zeros(count, np.int64)}

    def update_points(self, batch: Batch, parameter: Arrays, memory: Any) -> Arrays:
        self.visits += len(batch)
        memory["visits"] += 1
        return super().update_points(batch, parameter, memory)

    def vote_to_halt(self, batch: Batch, parameter: Arrays, memory: Any) -> Any:
        return memory["visits"] >= 3


def test_the_job_ends_when_all_points_have_voted_to_halt() -> None:
    # points that have voted are not visited; a job that waited for them would never end a pass
    job, found = run(Halting, sync="bspb", workers=2, rounds=20)
    (ended,) = [line for line in job.journal if line["what"] == "ended"]
    assert ended["fields"] == {"goal": "terminated", "why": "halted"}
    assert all(fit.terminated for fit in found.values())


def test_another_kind_of_job_is_refused() -> None:
    with pytest.raises(PolyrhythmError, match="a point-wise algorithm needs --kind statistics"):
        run(kind="gradient", workers=1, epochs=1)


@pytest.mark.parametrize("most", [10, 64, 999])
def test_the_sample_for_the_first_parameters_comes_from_the_whole_source(most: int) -> None:
    """The first parameters must not come from neighbouring points, because the points of a file may
    be sorted."""
    ascending = np.arange(1_000.0)
    source = ArraySource(Batch(ascending[:, None], ascending, ascending))
    sample = sample_source(source, most, np.random.default_rng(3))
    x = sample.x[:, 0]
    assert most - 16 < len(x) <= most
    assert len(np.unique(x)) == len(x)
    assert np.array_equal(x, sample.y) and np.array_equal(x, sample.weight)
    parts = min(most, 16)
    assert set((x * parts // 1_000).astype(int)) == set(range(parts))


def test_a_sample_of_sparse_points_stays_sparse() -> None:
    sparse = pytest.importorskip("scipy.sparse")
    source = ArraySource(Batch(sparse.eye(100, format="csr")))
    sample = sample_source(source, 32, np.random.default_rng(3))
    assert sparse.issparse(sample.x) and sample.x.shape == (32, 100)


def test_the_summary_of_a_short_job_has_its_last_objective() -> None:
    """All passes are in one line of the journal, and the objective falls in each."""
    done, found = run(sync="bspb", workers=2, epochs=4)
    objectives = found["worker-0"].objectives
    assert objectives[0] > 1.01 * objectives[-1]
    assert summarise(done.journal)["objective"] == pytest.approx(objectives[-1] / COUNT)
