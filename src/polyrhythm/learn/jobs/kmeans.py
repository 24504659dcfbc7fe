"""KMeans on a table of points: `--set data=higgs.csv --set k=10`. The model file has the `centers`."""

from polyrhythm.learn.jobs.point_options import positive_integer, tolerance
from polyrhythm.learn.jobs.points import run, table_of
from polyrhythm.learn.pointwise.kmeans import KMeansAlgorithm
from polyrhythm.learn.worker import Worker

DEFAULTS = {"epochs": 100, "kind": "statistics", "options": ["data", "k", "label", "tol"]}


def main(worker: Worker) -> None:
    options = worker.options
    algorithm = KMeansAlgorithm(positive_integer(options, "k", 8), tol=tolerance(options, 1e-4))
    run(worker, algorithm, table_of(worker))
