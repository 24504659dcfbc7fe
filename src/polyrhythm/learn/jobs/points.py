"""The common part of the jobs whose algorithm is written point by point."""

from polyrhythm.errors import UsageError
from polyrhythm.learn.data.tables import open_points
from polyrhythm.learn.jobs.point_options import DATA, label
from polyrhythm.learn.pointwise.algorithm import Algorithm
from polyrhythm.learn.pointwise.blocks import one_blas_thread
from polyrhythm.learn.pointwise.runner import Fit, run_pointwise
from polyrhythm.learn.pointwise.source import Source
from polyrhythm.learn.worker import Worker


def table_of(worker: Worker) -> Source:
    """The table of `--set data`. The column that `--set label` names is not a feature."""
    return open_points(worker.options[DATA], label=label(worker.options))


def run(worker: Worker, algorithm: Algorithm, source: Source) -> Fit:
    """Run an algorithm until the job ends. The result is in the job's model file too."""
    if not len(source):
        raise UsageError(f"{worker.options[DATA]} has no points")
    with one_blas_thread():
        return run_pointwise(worker, algorithm, source)
