"""Fuzzy C-Means on a table of points: `--set data=higgs.csv --set k=10`. The model file has the
`centers`."""

import numpy as np

from polyrhythm.learn.jobs.point_options import number, positive_integer, tolerance
from polyrhythm.learn.jobs.points import run, table_of
from polyrhythm.learn.pointwise.fuzzy import FuzzyCMeansAlgorithm, equal_degrees
from polyrhythm.learn.pointwise.runner import sample_source
from polyrhythm.learn.worker import Worker

DEFAULTS = {"epochs": 100, "kind": "statistics", "options": ["data", "k", "label", "m", "tol"]}


def main(worker: Worker) -> None:
    options = worker.options
    k, m = positive_integer(options, "k", 8), number(options, "m", 2.0)
    algorithm = FuzzyCMeansAlgorithm(k, m=m, tol=tolerance(options, 1e-4))
    source = table_of(worker)
    fit = run(worker, algorithm, source)
    sample = sample_source(source, algorithm.sample_points, np.random.default_rng(worker.seed))
    fault = equal_degrees(sample.x, fit.parameter["centers"], m)
    if fault is not None:
        worker.say(fault)
