"""After any number of rounds, a job has the same parameters as training in one process, up to rounding.

The single process (`twin_job.twin`) computes every worker's batch separately, and averages
gradients and buffers by points. The problem has unequal batches, two parameter groups, a scheduler,
tied weights and BatchNorm.
"""

import functools
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from polyrhythm import Worker
from polyrhythm.engines.inline import run_inline
from polyrhythm.wire.messages import JobSpec
from tests.commands.start import run
from tests.learn import twin_job as tj

TOLERANCE = 1e-5
JOB_FILE = Path(tj.__file__)
twin = functools.cache(tj.twin)


def run_in_threads(job: JobSpec, optimizer: str, steps: int = 1) -> dict[str, tj.State]:
    """Run the job inline and return the final state of every worker."""
    found: dict[str, tj.State] = {}

    def main(worker: Worker) -> None:
        model = tj.train(worker, optimizer, steps)
        assert worker.version == job.rounds
        found[worker.name] = {name: t.clone() for name, t in model.state_dict().items()}

    run_inline(job, main, timeout_s=30)
    assert len(found) == job.workers
    return found


def assert_all_equal(states: dict[str, tj.State]) -> None:
    """Assert that all workers end with bit-identical states."""
    first = states["worker-0"]
    for state in states.values():
        assert all(torch.equal(state[name], first[name]) for name in first)


@pytest.mark.parametrize("optimizer", ["momentum", "nesterov", "adam"])
@pytest.mark.parametrize("servers", [1, 2, 3])
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_a_job_over_memory_links_equals_one_process(
    workers: int, servers: int, optimizer: str
) -> None:
    small = (workers + servers) % 2 == 1
    job = JobSpec(
        job="twin",
        workers=workers,
        servers=servers,
        rounds=tj.ROUNDS,
        slice_nbytes=256 if small else 2 * 1024 * 1024,
        heartbeat_s=20.0,
    )
    states = run_in_threads(job, optimizer)
    assert_all_equal(states)
    assert tj.distance(states["worker-0"], twin(workers, optimizer)) < TOLERANCE


def test_the_comparison_can_fail() -> None:
    """Each of these faults gives very different parameters: equal weights for unequal batches,
    another optimizer, or one worker fewer."""
    right = twin(2, "momentum")
    assert tj.distance(right, right) == 0.0
    assert tj.distance(tj.twin(2, "momentum", by_points=False), right) > 100 * TOLERANCE
    assert tj.distance(twin(2, "nesterov"), right) > 100 * TOLERANCE
    assert tj.distance(twin(1, "momentum"), right) > 100 * TOLERANCE
    assert tj.distance(tj.twin(2, "momentum", tj.ROUNDS + 1), right) == math.inf


def test_a_job_with_many_small_slices_equals_one_process() -> None:
    lines: dict[int, int] = {}
    for slice_nbytes in (256, 2 * 1024 * 1024):
        job = JobSpec(job="cut", workers=1, servers=2, rounds=1, slice_nbytes=slice_nbytes)
        run = run_inline(job, lambda worker: tj.train(worker, "adam") and None, timeout_s=30)
        lines[slice_nbytes] = sum(
            next(line["slices"] for line in run.journal if line["what"] == "placed")
        )
    assert lines[256] >= 10
    assert lines[256] > 2 * lines[2 * 1024 * 1024]


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize(("workers", "servers"), [(1, 1), (2, 3), (3, 2)])
def test_kind_local_averages_models(workers: int, servers: int, steps: int) -> None:
    """Each model is weighted by the points of all its local steps. These weights differ between
    workers and steps."""
    job = JobSpec(
        job="local",
        workers=workers,
        servers=servers,
        kind="local",
        local_steps=steps,
        rounds=8,
        slice_nbytes=512,
        heartbeat_s=20.0,
    )
    states = run_in_threads(job, "momentum", steps)
    assert_all_equal(states)
    expected = tj.local_twin(workers, "momentum", steps, rounds=8)
    assert tj.distance(states["worker-0"], expected) < TOLERANCE


def test_bf16_on_the_wire() -> None:
    """Parameters are sent as bf16, so workers hold bf16 numbers. The server keeps float32, so the
    result stays close. Buffers are sent in their own dtype."""
    job = JobSpec(
        job="bf16", workers=2, servers=2, rounds=tj.ROUNDS, wire_dtype="bf16", heartbeat_s=20.0
    )
    dtypes: set[tuple[torch.dtype, ...]] = set()
    states: dict[str, tj.State] = {}

    def main(worker: Worker) -> None:
        model = tj.train(worker, "momentum")
        dtypes.update(
            tuple(t.dtype for t in buffers if t.numel()) for buffers in worker.push_buffers()
        )
        states[worker.name] = model.state_dict()

    run_inline(job, main, timeout_s=30)
    assert dtypes == {(torch.bfloat16, torch.float32, torch.int64)}
    state = states["worker-0"]
    for name in ("first.weight", "there.weight", "last.bias"):
        assert torch.equal(state[name], state[name].bfloat16().float()), name
    mean = state["norm.running_mean"]
    assert not torch.equal(mean, mean.bfloat16().float())
    far = tj.distance(state, twin(2, "momentum"))
    assert TOLERANCE < far < 2e-2


# -- real processes ----------------------------------------------------------------------------


def run_in_processes(tmp_path: Path, optimizer: str, *flags: str) -> tuple[tj.State, bool]:
    """Run the job as processes. Return worker-0's final state, and whether it read its parameters
    directly from the server's memory."""
    out = tmp_path / "final.npz"
    settings = ("--set", f"optimizer={optimizer}", "--set", f"out={out}")
    goal = ("--rounds", tj.ROUNDS, "--quiet", "--json")
    done = run("train", JOB_FILE, *goal, *settings, *flags, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    with np.load(out) as saved:
        state = {
            name: torch.from_numpy(saved[name].copy()) for name in saved.files if name != "shared"
        }
        return state, bool(saved["shared"])


@pytest.mark.cluster
@pytest.mark.parametrize("link", ["local", "tcp"])
@pytest.mark.parametrize(("workers", "servers"), [(1, 1), (2, 3), (4, 2)])
@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_a_job_of_processes_equals_one_process(
    tmp_path: Path, optimizer: str, workers: int, servers: int, link: str
) -> None:
    flags = ["--workers", str(workers), "--servers", str(servers), "--link", link]
    state, shared = run_in_processes(tmp_path, optimizer, *flags)
    assert tj.distance(state, twin(workers, optimizer)) < TOLERANCE
    assert not shared


@pytest.mark.cluster
def test_reading_parameters_in_place_gives_the_same_result(tmp_path: Path) -> None:
    flags = ["--workers", "2", "--servers", "1", "--link", "local", "--in-place"]
    state, shared = run_in_processes(tmp_path, "momentum", *flags)
    assert tj.distance(state, twin(2, "momentum")) < TOLERANCE
    assert shared, "the parameters were not read in the server's own memory"
