"""A batch with more rows than a block of the computation has the statistics of its parts."""

from typing import Any

import numpy as np
import pytest

from polyrhythm.learn.pointwise.algorithm import Algorithm, Batch
from polyrhythm.learn.pointwise.blocks import block_rows, blocks
from polyrhythm.learn.pointwise.factors import NMFAlgorithm
from polyrhythm.learn.pointwise.fuzzy import FuzzyCMeansAlgorithm
from polyrhythm.learn.pointwise.kmeans import KMeansAlgorithm
from polyrhythm.learn.pointwise.logistic import LogisticRegressionAlgorithm
from polyrhythm.learn.pointwise.mixture import GaussianMixtureAlgorithm

ROWS, PART = 40_000, 500
"""No algorithm has blocks of more than 8,192 rows."""


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (KMeansAlgorithm, {"k": 3}),
        (FuzzyCMeansAlgorithm, {"k": 3}),
        (FuzzyCMeansAlgorithm, {"k": 3, "m": 1.5}),
        (GaussianMixtureAlgorithm, {"k": 3}),
        (GaussianMixtureAlgorithm, {"k": 3, "covariance": "full"}),
        (NMFAlgorithm, {"k": 3}),
        (LogisticRegressionAlgorithm, {"classes": 2}),
        (LogisticRegressionAlgorithm, {"classes": 3}),
    ],
)
def test_the_statistics_of_many_points_are_the_sums_of_those_of_few(
    kind: type[Algorithm], options: dict[str, Any], dtype: Any, threads: int
) -> None:
    rng = np.random.default_rng(0)
    x = np.abs(rng.normal(size=(ROWS, 4)) + np.arange(ROWS)[:, None] / ROWS).astype(dtype)
    points = Batch(x, rng.integers(0, options.get("classes", 2), ROWS), rng.random(ROWS))
    several, single = kind(threads=threads, **options), kind(**options)
    parameter = several.init_parameter(points.part(slice(0, ROWS, 40)), rng)
    many, few = several.memory(ROWS), single.memory(ROWS)
    layout = several.layout(parameter)
    for _ in range(2):  # the second visit finds what the first one has remembered
        total = np.zeros(layout.size)
        for first in range(0, ROWS, PART):
            rows = slice(first, first + PART)
            inside = {name: array[rows] for name, array in few.items()}
            total += layout.flat(single.update_points(points.part(rows), parameter, inside))
        found = layout.flat(several.update_points(points, parameter, many))
        assert np.allclose(found, total, rtol=1e-3, atol=1e-3 * np.abs(total).max())
        name = next(iter(parameter))
        parameter = {**parameter, name: parameter[name] + 0.1}
    for name, array in many.items():
        if name != "bound":
            assert np.allclose(array, few[name], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("first", "last", "rows"), [(0, 1, 8), (5, 21, 8), (3, 40, 6)])
def test_blocks_cover_every_row_once(first: int, last: int, rows: int) -> None:
    found = [*blocks(first, last, rows)]
    assert [row for block in found for row in range(block.start, block.stop)] == [
        *range(first, last)
    ]
    assert max(block.stop - block.start for block in found) <= rows
    assert block_rows(1) == 8_192 and block_rows(10**9) == 64
