"""FSP, Theorem 2: "EM computations monotonously increase the objective function value F(Q, theta)".

Here the objective is -F, so no visit and no M-step may make it larger, whichever points were visited
since the last M-step.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from polyrhythm.learn.pointwise.algorithm import Algorithm, Batch
from polyrhythm.learn.pointwise.fuzzy import FuzzyCMeansAlgorithm
from polyrhythm.learn.pointwise.kmeans import KMeansAlgorithm
from polyrhythm.learn.pointwise.layout import Array
from polyrhythm.learn.pointwise.mixture import GaussianMixtureAlgorithm

K, BLOCKS, ROUNDS = 6, 24, 150
MAKES: dict[str, Callable[[], Algorithm]] = {
    "kmeans": lambda: KMeansAlgorithm(K),
    "fuzzy": lambda: FuzzyCMeansAlgorithm(K),
    "fuzzy-1.3": lambda: FuzzyCMeansAlgorithm(K, m=1.3),
    "diagonal": lambda: GaussianMixtureAlgorithm(K),
    "full": lambda: GaussianMixtureAlgorithm(K, covariance="full"),
}


def clusters() -> npt.NDArray[np.float64]:
    """Points of clusters that overlap, sorted by their first feature."""
    rng = np.random.default_rng(1)
    x = 2 * rng.normal(size=(K, 3))[rng.integers(0, K, 1_200)] + rng.normal(size=(1_200, 3))
    return np.asarray(x[np.argsort(x[:, 0])])


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", MAKES)
def test_no_visit_and_no_m_step_makes_the_objective_larger(
    name: str, dtype: npt.DTypeLike, weighted: bool
) -> None:
    x, rng = clusters().astype(dtype), np.random.default_rng(0)
    weight = rng.random(len(x)) + 0.1 if weighted else None
    algorithm = MAKES[name]()
    points, parameter = Batch(x, weight=weight), algorithm.init_parameter(Batch(x), rng)
    layout, memory = algorithm.layout(parameter), algorithm.memory(len(x))
    last: list[Array] = [np.zeros(layout.size)] * BLOCKS
    size = len(x) // BLOCKS

    def visit(block: int) -> None:
        rows = slice(block * size, (block + 1) * size)
        own = {name: array[rows] for name, array in memory.items()}
        found = layout.flat(algorithm.update_points(points.part(rows), parameter, own))
        last[block] = last[block] + found if memory else found

    def objective() -> float:
        value = algorithm.objective(layout.views(np.sum(last, axis=0)), parameter)
        assert value is not None
        return value

    for block in range(BLOCKS):
        visit(block)
    values = [objective()]
    for _ in range(ROUNDS):
        statistics = layout.views(np.sum(last, axis=0))
        parameter = algorithm.update_parameter(statistics, parameter)
        values.append(objective())
        for block in rng.choice(BLOCKS, rng.integers(1, 5), replace=False):
            visit(block)
        values.append(objective())
    allowed = (1e-6 if dtype == np.float32 else 1e-10) * abs(values[0])
    assert np.diff(values).max() <= allowed
    assert values[0] - values[-1] > 0.01 * abs(values[0]), "something was learned"
