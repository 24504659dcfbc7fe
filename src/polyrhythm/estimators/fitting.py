"""How an estimator fits: it runs a job of kind statistics in this process or in new processes, or
joins a running job as a worker. *All three ways use the same machines and the same worker loop.*"""

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from polyrhythm.core.sync.registry import traits_of
from polyrhythm.engines.exits import signal_again
from polyrhythm.engines.inline import run_inline
from polyrhythm.errors import Interrupted, JobFailed, UsageError
from polyrhythm.io.limits import usable_cores
from polyrhythm.learn.pointwise.algorithm import Algorithm, Batch
from polyrhythm.learn.pointwise.blocks import one_blas_thread
from polyrhythm.learn.pointwise.layout import Arrays
from polyrhythm.learn.pointwise.local import sample_of
from polyrhythm.learn.pointwise.runner import BATCH, run_pointwise
from polyrhythm.learn.pointwise.source import ArraySource
from polyrhythm.learn.worker import Worker
from polyrhythm.runtime.options import NodeOptions
from polyrhythm.wire.messages import JobSpec

AfterPass = Callable[[int, float | None], None]
_FEW_POINTS = 20_000
"""With fewer points than this, a second worker in this process would cost more time than it
saves."""
_CHUNK_POINTS = 8_192
"""Chunks have at least this many points, because the algorithm is called once for each chunk."""
_CHUNKS_EACH = 4
_STEP_POINTS = 131_072
"""About how many points a worker visits at a time, if there are many. Chunks are large, because
each visit of a chunk is a call that takes time, and because chunks move only if a worker dies. But
a worker has at least `_CHUNKS_EACH` chunks and at most 16, so its chunks may also be larger than
this."""
WHOLE_PASSES = "bspb"
"""The policy in which a round is one pass over all points."""
_HEARTBEAT_S = 20.0
_LONGEST_S = 1e7


@dataclass(frozen=True, slots=True)
class FitPlace:
    """Where a fit runs. `workers`: None for this process, otherwise the number of worker processes.
    `address`: the job that this process joins as a worker."""

    workers: int | None = None
    sync: str = WHOLE_PASSES
    address: str | None = None
    estimator: str = "this fit"
    """The name of the estimator, for messages."""


@dataclass(slots=True)
class Fitted:
    """The result of a fit."""

    parameter: Arrays
    passes: int
    terminated: bool
    """Whether the algorithm has ended the fit. False: the fit has reached its number of passes."""
    objectives: list[float]
    """The objective after each pass."""
    ended_s: list[float] = field(default_factory=list)
    """The time at the end of each pass, by the clock of `time.perf_counter`."""
    began_s: float = 0.0
    """When the first worker began, by the clock of `time.perf_counter`."""
    start_s: float = 0.0
    """How long it took until the processes of the job had started."""


def fit_points(
    algorithm: Algorithm,
    points: Batch,
    *,
    place: FitPlace,
    rng: np.random.Generator,
    max_passes: int,
    parameter: Arrays | None = None,
    after_pass: AfterPass | None = None,
) -> Fitted:
    """Run an algorithm on these points. `parameter`: the initial parameters; None: `init_parameter`
    computes them."""
    with one_blas_thread():
        if parameter is None:
            sample = sample_of(points, algorithm.sample_points, rng)
            parameter = algorithm.init_parameter(sample, rng)
        fit = _FitWorker(algorithm, points, parameter, after_pass)
        if place.address is not None:
            return _joined(fit, place, max_passes)
        workers = place.workers or (usable_cores() if len(points) >= _FEW_POINTS else 1)
        fit.batch, least = _steps(len(points), workers, place.sync)
        if place.workers is None:
            return _inline(fit, workers, least, place.sync, max_passes)
    return _processes(fit, workers, least, place.sync, max_passes, quiet=after_pass is None)


def _steps(points: int, workers: int, sync: str) -> tuple[int, int]:
    """How many points a worker visits at a time, and the fewest points of a chunk. With bspb the
    first number does not change when a worker contributes: after a pass."""
    each = points // workers
    large = min(_STEP_POINTS, each // _CHUNKS_EACH)
    if sync == WHOLE_PASSES and large > BATCH:
        return large, large
    return BATCH, max(1, min(_CHUNK_POINTS, each))


@dataclass(slots=True)
class _FitWorker:
    """The function that every worker of the job runs."""

    algorithm: Algorithm
    points: Batch
    parameter: Arrays
    after_pass: AfterPass | None
    batch: int = BATCH
    """How many points a worker visits at a time, unless the sync policy wants fewer."""
    speaker: str = "worker-0"
    """The worker that calls `after_pass`."""

    def on(self, worker: Worker) -> Fitted:
        ended_s: list[float] = []
        began_s = time.perf_counter()

        def after_pass(passes: int, objective: float | None) -> None:
            ended_s.append(time.perf_counter())
            if self.after_pass is not None and worker.name == self.speaker:
                self.after_pass(passes, objective)

        source = ArraySource(self.points)
        with one_blas_thread():
            found = run_pointwise(
                worker,
                self.algorithm,
                source,
                parameter=self.parameter,
                after_pass=after_pass,
                batch=self.batch,
            )
        return Fitted(
            found.parameter, found.passes, found.terminated, found.objectives, ended_s, began_s
        )


def _inline(fit: _FitWorker, workers: int, least: int, sync: str, max_passes: int) -> Fitted:
    """Fit in this process, with one worker, or one per core if there are many points. numpy
    releases the lock of the interpreter while it computes."""
    results: dict[str, Fitted] = {}

    def main(worker: Worker) -> None:
        results[worker.name] = fit.on(worker)

    job = JobSpec(
        job=fit.algorithm.name,
        kind="statistics",
        sync=sync,
        workers=workers,
        epochs=max_passes,
        min_batch=least,
        timer="off",
        heartbeat_s=_HEARTBEAT_S,
    )
    with _own_interval():
        run_inline(job, main, options=NodeOptions(check=False), timeout_s=_LONGEST_S)
    return results["worker-0"]


@contextmanager
def _own_interval() -> Iterator[None]:
    """Restore Python's interval between thread switches at the end, because nodes change it."""
    before = sys.getswitchinterval()
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def _joined(fit: _FitWorker, place: FitPlace, max_passes: int) -> Fitted:
    """Fit as a worker of the job at this address. Every worker of the job needs the same points."""
    from polyrhythm.api.connecting import connect

    assert place.address is not None
    with connect(place.address, quiet=fit.after_pass is None) as worker:
        job = worker.inside[1]
        faults = unfit(job, fit.algorithm, place.sync, max_passes)
        if not faults:
            fit.speaker = worker.name
            return fit.on(worker)
    # the worker has left without a failure: the job goes on, and may have other workers that fit it
    raise UsageError(
        f"{place.estimator} cannot join the job at {place.address}: {'; '.join(faults)}. Serve it with"
        f" {in_python(job.workers, max_passes)}, which is the command"
        f" `{in_shell(job.workers, max_passes)}`"
    )


def unfit(job: JobSpec, algorithm: Algorithm, sync: str, max_passes: int) -> list[str]:
    """Why a running job would not give the same model as a fit in this process; empty if it would.
    `sync`: the policy of the estimator. `max_passes`: after how many passes the fit ends."""
    faults = []
    if job.kind != "statistics":
        faults.append(f"its kind is {job.kind}, and estimators contribute statistics")
    if algorithm.same_parameters and job.sync != WHOLE_PASSES:
        faults.append(
            f"its policy is {job.sync}, and this algorithm needs the statistics of all points for the"
            f" same parameters, so it needs {WHOLE_PASSES}"
        )
    elif not traits_of(job.sync).rounds and job.sync != sync:
        faults.append(
            f"its policy is {job.sync}, under which the fit may diverge (sync={job.sync!r} joins"
            f" it anyway)"
        )
    if job.epochs is None:
        faults.append(f"it has no number of passes, and this fit ends after {max_passes}")
    elif job.epochs != max_passes:
        faults.append(f"it ends after {job.epochs} passes, and this fit after {max_passes}")
    others = {
        "rounds": job.rounds is not None,
        "target": bool(job.targets),
        "target_change": job.target_change is not None,
    }
    found = [name for name, given in others.items() if given]
    if found:
        faults.append(f"it has another goal ({', '.join(found)}): an estimator ends by its own tol")
    return faults


def in_python(workers: int, max_passes: int) -> str:
    """The call that serves a job for an estimator."""
    return f'pr.serve(workers={workers}, kind="statistics", sync="{WHOLE_PASSES}", epochs={max_passes})'


def in_shell(workers: int, max_passes: int) -> str:
    """The command that serves a job for an estimator."""
    return (
        f"polyrhythm serve --workers {workers} --kind statistics --sync {WHOLE_PASSES} --epochs"
        f" {max_passes}"
    )


def _processes(
    fit: _FitWorker, workers: int, least: int, sync: str, max_passes: int, *, quiet: bool
) -> Fitted:
    """Fit with worker processes on this machine. The processes map the points from a file."""
    from polyrhythm.api.training import train

    signal = 0
    with tempfile.TemporaryDirectory(prefix="polyrhythm-fit-") as name:
        folder = Path(name)
        kept = _keep(fit.points, folder)
        algorithm, parameter, batch = fit.algorithm, fit.parameter, fit.batch

        def main(worker: Worker) -> None:
            from polyrhythm.errors import UsageError
            from polyrhythm.estimators.fitting import _FitWorker, _load, _save

            try:
                found = _FitWorker(algorithm, _load(kept), parameter, None, batch).on(worker)
            except UsageError as error:
                (folder / f"{worker.name}.error").write_text(str(error))
                raise
            _save(found, folder / worker.name)

        called_s = time.perf_counter()
        try:
            result = train(
                main,
                kind="statistics",
                sync=sync,
                workers=workers,
                servers=1,
                epochs=max_passes,
                min_batch=least,
                timer="off",
                threads=1,
                runs_dir=str(folder / "runs"),
                quiet=quiet,
            )
            if not result.stopped:
                return _result_in(folder, called_s)
            signal = result.signal
        except Interrupted as interrupted:
            signal = interrupted.result.signal
        except JobFailed as failed:
            # the worker has written its error to a file: raise that error, like a fit in this
            # process
            for path in sorted(folder.glob("*.error")):
                raise UsageError(path.read_text()) from failed
            raise
    # the files of the fit are deleted by now, so the signal may end the process
    if signal:
        signal_again(signal, "the fit")
    raise JobFailed("the fit was stopped on request before its end, so there is no model")


def _result_in(folder: Path, called_s: float) -> Fitted:
    """The result of a fit that has ended: all workers have written the same."""
    for path in sorted(folder.glob("worker-*.npz")):
        found = _saved(path)
        found.start_s = max(0.0, found.began_s - called_s)
        return found
    raise JobFailed("no worker has written a result")


def _keep(points: Batch, folder: Path) -> dict[str, Any]:
    """Write the arrays of the points to files, and return where they are. An array that is already
    mapped from a file is not written again."""
    kept: dict[str, Any] = {}
    x = points.x
    arrays = {"y": points.y, "weight": points.weight}
    if isinstance(x, np.ndarray):
        arrays["x"] = x
    else:
        arrays |= {"data": x.data, "indices": x.indices, "indptr": x.indptr}
        kept["shape"] = x.shape
    for name, array in arrays.items():
        if array is not None:
            kept[name] = _mapped(array)
            if kept[name] is None:
                kept[name] = str(folder / f"{name}.npy")
                np.save(kept[name], array)
    return kept


def _mapped(array: npt.NDArray[Any]) -> tuple[str, str, int, tuple[int, ...]] | None:
    """The file, the type, the offset and the shape of an array that is mapped from a file; None if
    the array is not mapped, or not contiguous, or if its file was deleted."""
    whole: Any = array
    # the last base may be any object with a buffer: a tensor, a memoryview, bytes, a buffer of Arrow
    while isinstance(whole, np.ndarray) and not isinstance(whole, np.memmap):
        whole = whole.base
    if not isinstance(whole, np.memmap) or not array.flags.c_contiguous or whole.mode == "c":
        return None
    if not whole.filename or not Path(whole.filename).exists():
        return None
    while isinstance(whole.base, np.memmap):
        whole = whole.base
    offset = whole.offset + array.ctypes.data - whole.ctypes.data
    return str(whole.filename), array.dtype.str, offset, array.shape


def _load(kept: dict[str, Any]) -> Batch:
    arrays = {name: _map(place) for name, place in kept.items() if name != "shape"}
    x: Any = arrays.get("x")
    if x is None:
        from scipy import sparse

        parts = (np.asarray(arrays[name]) for name in ("data", "indices", "indptr"))
        x = sparse.csr_matrix(tuple(parts), shape=kept["shape"])
    return Batch(x, arrays.get("y"), arrays.get("weight"))


def _map(place: Any) -> npt.NDArray[Any]:
    if isinstance(place, str):
        found: npt.NDArray[Any] = np.load(place, mmap_mode="r")
        return found
    path, dtype, offset, shape = place
    return np.memmap(path, dtype, "r", offset, shape)


def _save(found: Fitted, path: Path) -> None:
    numbers = json.dumps(
        [found.passes, found.terminated, found.objectives, found.ended_s, found.began_s]
    )
    np.savez(path, numbers=np.array(numbers), **found.parameter)  # type: ignore[arg-type]


def _saved(path: Path) -> Fitted:
    with np.load(path) as arrays:
        passes, terminated, objectives, ended_s, began_s = json.loads(str(arrays["numbers"]))
        parameter = {name: arrays[name] for name in arrays.files if name != "numbers"}
    return Fitted(parameter, passes, terminated, objectives, ended_s, began_s)
