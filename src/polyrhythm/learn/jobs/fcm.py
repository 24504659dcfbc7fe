"""Fuzzy C-Means on a table of points: `--set data=higgs.csv --set k=10`. The model file has the
`centers`."""

from polyrhythm.learn.jobs.point_options import number, tolerance, whole
from polyrhythm.learn.jobs.points import run, table_of
from polyrhythm.learn.pointwise.fuzzy import FuzzyCMeansAlgorithm
from polyrhythm.learn.worker import Worker

DEFAULTS = {"epochs": 100, "kind": "statistics", "options": ["data", "k", "label", "m", "tol"]}


def main(worker: Worker) -> None:
    options = worker.options
    k, m = whole(options, "k", 8), number(options, "m", 2.0)
    run(worker, FuzzyCMeansAlgorithm(k, m=m, tol=tolerance(options, 1e-4)), table_of(worker))
