"""Logistic regression and NMF by statistics, against brute force."""

import numpy as np
import numpy.typing as npt
import pytest

from polyrhythm.errors import UsageError
from polyrhythm.learn.pointwise.algorithm import Batch
from polyrhythm.learn.pointwise.factors import NMFAlgorithm
from polyrhythm.learn.pointwise.local import fit_local
from polyrhythm.learn.pointwise.logistic import LogisticRegressionAlgorithm

Points = npt.NDArray[np.float64]


def labelled(classes: int, n: int = 400, d: int = 4) -> tuple[Points, npt.NDArray[np.int64]]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, d))
    scores = x @ rng.normal(size=(d, classes)) + rng.normal(size=(n, classes))
    return x, scores.argmax(1)


@pytest.mark.parametrize("classes", [2, 4])
def test_the_gradient_is_the_derivative_of_the_loss(classes: int) -> None:
    x, y = labelled(classes)
    algorithm = LogisticRegressionAlgorithm(classes, penalty=0.1, threads=2)
    place = np.random.default_rng(1).normal(size=(algorithm.rows, 5))

    def at(where: Points) -> tuple[float, Points]:
        statistics = algorithm.update_points(Batch(x, y), algorithm.begin(where), {})
        return algorithm.loss_and_gradient(statistics, where)

    _, gradient = at(place)
    for index in np.ndindex(*place.shape):
        step = np.zeros_like(place)
        step[index] = 1e-6
        slope = (at(place + step)[0] - at(place - step)[0]) / 2e-6
        assert gradient.reshape(place.shape)[index] == pytest.approx(slope, abs=1e-5)


@pytest.mark.parametrize("classes", [2, 4])
def test_the_search_ends_where_the_gradient_vanishes(classes: int) -> None:
    x, y = labelled(classes)
    algorithm = LogisticRegressionAlgorithm(classes, penalty=0.01, tol=1e-6)
    found = fit_local(algorithm, Batch(x, y), rng=np.random.default_rng(0), max_passes=300)
    assert found.terminated
    assert np.abs(found.parameter["gradient"]).max() <= 1e-6
    assert np.array_equal(found.parameter["coef"], found.parameter["place"])
    accepted = np.minimum.accumulate(found.objectives)
    assert found.objectives[-1] == accepted[-1]


def test_a_search_that_continues_from_its_parameters_takes_the_same_steps() -> None:
    x, y = labelled(3)
    algorithm = LogisticRegressionAlgorithm(3, penalty=0.01)
    rng = np.random.default_rng(0)
    whole = fit_local(algorithm, Batch(x, y), rng=rng, max_passes=12)
    half = fit_local(algorithm, Batch(x, y), rng=rng, max_passes=6)
    rest = fit_local(algorithm, Batch(x, y), rng=rng, max_passes=6, parameter=half.parameter)
    assert np.array_equal(whole.parameter["coef"], rest.parameter["coef"])


def test_points_without_labels_are_refused() -> None:
    with pytest.raises(UsageError, match="needs a label for each point"):
        fit_local(
            LogisticRegressionAlgorithm(2),
            Batch(np.ones((3, 2))),
            rng=np.random.default_rng(0),
            max_passes=1,
        )


@pytest.mark.parametrize("observed_only", [False, True])
def test_the_statistics_of_nmf_are_those_of_brute_force(observed_only: bool) -> None:
    sparse = pytest.importorskip("scipy.sparse")
    x = sparse.random(50, 12, 0.4, random_state=0, format="csr")
    algorithm = NMFAlgorithm(3, observed_only=observed_only, l1=(0.01, 0.02), l2=(0.03, 0.04))
    parameter = algorithm.init_parameter(Batch(x), np.random.default_rng(0))
    memory = algorithm.memory(50)
    layout = algorithm.layout(parameter)
    total = np.zeros(layout.size)
    last = np.inf
    for _ in range(6):
        for part in (slice(0, 20), slice(20, 50)):
            inside = {name: array[part] for name, array in memory.items()}
            total += layout.flat(algorithm.update_points(Batch(x[part]), parameter, inside))
        statistics = layout.views(total)
        parameter = algorithm.update_parameter(statistics, parameter)
        w, h = memory["w"], parameter["components"]
        apart = x.toarray() - w @ h
        if observed_only:
            apart = apart[x.toarray() != 0]
        wanted = 0.5 * (apart**2).sum() + 0.01 * w.sum() + 0.02 * h.sum()
        wanted += 0.015 * (w**2).sum() + 0.02 * (h**2).sum()
        objective = algorithm.objective(statistics, parameter)
        assert objective == pytest.approx(wanted)
        assert objective <= last
        last = objective
    assert float(statistics["points"]) == 50


def test_ratings_that_are_not_sparse_cannot_be_observed_only() -> None:
    with pytest.raises(UsageError, match="give a scipy CSR matrix"):
        fit_local(
            NMFAlgorithm(2, observed_only=True),
            Batch(np.ones((4, 3))),
            rng=np.random.default_rng(0),
            max_passes=1,
        )
