"""A Gaussian mixture of a table of points: `--set data=higgs.csv --set k=10 --set covariance=full`. The
model file has `weights`, `means` and `covariances`."""

from polyrhythm.learn.jobs.point_options import positive_integer, tolerance
from polyrhythm.learn.jobs.points import run, table_of
from polyrhythm.learn.pointwise.mixture import GaussianMixtureAlgorithm
from polyrhythm.learn.worker import Worker

DEFAULTS = {
    "epochs": 100,
    "kind": "statistics",
    "options": ["data", "k", "label", "covariance", "tol"],
}


def main(worker: Worker) -> None:
    options = worker.options
    algorithm = GaussianMixtureAlgorithm(
        positive_integer(options, "k", 8),
        covariance="full" if options.get("covariance") == "full" else "diag",
        tol=tolerance(options, 1e-3),
    )
    run(worker, algorithm, table_of(worker))
