"""The M-step of a worker: which versions it computes parameters from."""

import numpy as np

from polyrhythm.learn.pointwise.algorithm import Batch
from polyrhythm.learn.pointwise.chunks import COUNTS
from polyrhythm.learn.pointwise.kmeans import KMeansAlgorithm
from polyrhythm.learn.pointwise.m_step import MStep


def test_a_torn_version_changes_no_parameters() -> None:
    x = np.random.default_rng(0).normal(size=(50, 3))
    algorithm = KMeansAlgorithm(4)
    first = algorithm.init_parameter(Batch(x), np.random.default_rng(0))
    found = algorithm.layout(first).flat(
        algorithm.update_points(Batch(x), first, algorithm.memory(50))
    )
    step = MStep(algorithm, first, 50, 0)
    row = step.tensors[0].numpy()
    row[0], row[COUNTS:] = 50, found
    step.version_came(1, 1, anew=False, final=False, torn=True)
    assert np.array_equal(step.parameter["centers"], first["centers"])
    assert step.unsent, "the servers must get these parameters as those of this version"
    step.version_came(2, 1, anew=False, final=False)
    assert not np.array_equal(step.parameter["centers"], first["centers"])
