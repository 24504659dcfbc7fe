"""k-means, or fuzzy c-means with `--set fuzzy=yes`, on points that are sorted by their first feature:
the clusters of one worker are not those of another. The algorithm itself never ends the job.

`--set die=N`: worker-1 kills itself after N passes over its points. `--set start=N`: the seed of the
points and of the first centres. `--set data=FILE`: take the points of this file, and not random ones.
Every worker that ends writes to a file: the objective over all points at the end, and the lowest one at
an M-step with all points. Without a fault the two are nearly equal, because k-means never gets worse.
"""

import os
import signal
from pathlib import Path

import numpy as np

from polyrhythm.learn.pointwise.algorithm import Batch
from polyrhythm.learn.pointwise.fuzzy import FuzzyCMeansAlgorithm
from polyrhythm.learn.pointwise.kmeans import KMeansAlgorithm
from polyrhythm.learn.pointwise.nearest import labels_of
from polyrhythm.learn.pointwise.runner import run_pointwise
from polyrhythm.learn.pointwise.source import ArraySource

POINTS, WORKERS, K, FEATURES = 12_000, 4, 20, 4


class Mortal(KMeansAlgorithm):
    """Kills its process when it has visited `lives` points. `lowest`: the lowest objective of all
    points."""

    lives = lowest = float("inf")
    visited = points = 0

    def update_points(self, batch, parameter, memory):
        self.visited += len(batch)
        if self.visited > self.lives:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().update_points(batch, parameter, memory)

    def objective(self, statistics, parameter):
        found = super().objective(statistics, parameter)
        if statistics["count"].sum() == self.points:
            self.lowest = min(self.lowest, found / self.points)
        return found


def fuzzy_main(worker, points, rng):
    algorithm = FuzzyCMeansAlgorithm(K, tol=-1)
    first = algorithm.init_parameter(Batch(points), rng)
    source = ArraySource(Batch(points))
    fit = run_pointwise(worker, algorithm, source, parameter=first, batch=500, block=500)
    found = algorithm.update_points(Batch(points), fit.parameter, {})
    last = algorithm.objective(found, fit.parameter) / len(points)
    lowest = min(fit.objectives, default=np.inf) / len(points)
    Path(f"{worker.name}.objective").write_text(f"{last} {lowest}")


def random_points(rng):
    """Points of as many clusters as there are centres. Clusters are far apart in the first feature."""
    centers = rng.normal(size=(K, FEATURES)) * 4
    centers[:, 0] = 10 * np.arange(K)
    return centers[np.arange(POINTS) * K // POINTS] + rng.normal(size=(POINTS, FEATURES))


def main(worker):
    options = worker.options
    rng = np.random.default_rng(int(options.get("start", 0)))
    points = np.load(options["data"]) if "data" in options else random_points(rng)
    if options.get("fuzzy") == "yes":
        fuzzy_main(worker, points, rng)
        return
    algorithm = Mortal(K, tol=-1)
    algorithm.points = len(points)
    if "die" in options and worker.name == "worker-1":
        algorithm.lives = float(options["die"]) * len(points) / WORKERS
    first = algorithm.init_parameter(Batch(points), rng)
    source = ArraySource(Batch(points))
    fit = run_pointwise(worker, algorithm, source, parameter=first, batch=500, block=500)
    _, squared = labels_of(points, fit.parameter["centers"])
    Path(f"{worker.name}.objective").write_text(f"{squared.mean()} {algorithm.lowest}")
