"""A point-wise algorithm that writes the objective of every version, on points that are sorted by their
first feature. The algorithm itself never ends the job.

`--set algorithm=kmeans|mixture|full|fuzzy`. `--set die=N`: worker-1 kills itself after N visits of
points. Every worker that ends writes for each version that it read: its number, how many points are in
its sum, and the objective per point (null if no M-step was made, or points were missing).
"""

import json
import os
import signal
from pathlib import Path

import numpy as np

from polyrhythm.learn.pointwise.algorithm import Batch
from polyrhythm.learn.pointwise.fuzzy import FuzzyCMeansAlgorithm
from polyrhythm.learn.pointwise.kmeans import KMeansAlgorithm
from polyrhythm.learn.pointwise.m_step import MStep
from polyrhythm.learn.pointwise.mixture import GaussianMixtureAlgorithm
from polyrhythm.learn.pointwise.runner import run_pointwise
from polyrhythm.learn.pointwise.source import ArraySource

POINTS, K, FEATURES = 3_000, 8, 3
MAKES = {
    "kmeans": lambda: KMeansAlgorithm(K, tol=-1),
    "fuzzy": lambda: FuzzyCMeansAlgorithm(K, tol=-1),
    "mixture": lambda: GaussianMixtureAlgorithm(K, tol=-1),
    "full": lambda: GaussianMixtureAlgorithm(K, covariance="full", tol=-1),
}


def main(worker):
    options, rng = worker.options, np.random.default_rng(0)
    x = 2 * rng.normal(size=(K, FEATURES))[rng.integers(0, K, POINTS)]
    x += rng.normal(size=x.shape)
    x = x[np.argsort(x[:, 0])]
    algorithm = MAKES[options["algorithm"]]()
    lives = float(options["die"]) if "die" in options and worker.name == "worker-1" else np.inf
    if algorithm.starts_from_sample:
        lives += POINTS  # the sample is visited first
    visit, come, values = algorithm.update_points, MStep.on_version, []

    def update_points(batch, parameter, memory):
        nonlocal lives
        lives -= len(batch)
        if lives < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return visit(batch, parameter, memory)

    def on_version(step, version, **told):
        come(step, version, **told)
        values.append((version, float(step.tensors[0][0]), step.objective))

    algorithm.update_points, MStep.on_version = update_points, on_version
    first = algorithm.init_parameter(Batch(x), rng)
    run_pointwise(worker, algorithm, ArraySource(Batch(x)), parameter=first, batch=100, block=10)
    Path(f"{worker.name}.values").write_text(json.dumps(values))
