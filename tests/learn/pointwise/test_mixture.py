"""Gaussian mixtures against brute force, and against scikit-learn where it is installed."""

from typing import Literal

import numpy as np
import numpy.typing as npt
import pytest

from polyrhythm.errors import UsageError
from polyrhythm.learn.pointwise.algorithm import Batch
from polyrhythm.learn.pointwise.layout import Arrays
from polyrhythm.learn.pointwise.local import fit_local
from polyrhythm.learn.pointwise.mixture import (
    Density,
    GaussianMixtureAlgorithm,
    shares,
    shares_and_entropy,
)

Kind = Literal["diag", "full"]


def made(n: int = 500, d: int = 3, seed: int = 0) -> npt.NDArray[np.float64]:
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(3, d)) * 5
    return centres[rng.integers(0, 3, n)] + rng.normal(size=(n, d)) * [1.0, 2.0, 0.5][:d]


def log_densities(x: npt.NDArray[np.float64], parameter: Arrays) -> npt.NDArray[np.float64]:
    rows = []
    for weight, mean, covariance in zip(
        parameter["weights"], parameter["means"], parameter["covariances"], strict=True
    ):
        full = covariance if covariance.ndim == 2 else np.diag(covariance)
        apart = x - mean
        inner = np.einsum("nd,de,ne->n", apart, np.linalg.inv(full), apart)
        _, logdet = np.linalg.slogdet(2 * np.pi * full)
        rows.append(np.log(weight) - 0.5 * (inner + logdet))
    return np.stack(rows)


@pytest.mark.parametrize("kind", ["diag", "full"])
def test_densities_are_those_of_the_formula(kind: Kind) -> None:
    x = made()
    parameter = GaussianMixtureAlgorithm(3, covariance=kind).init_parameter(
        Batch(x), np.random.default_rng(0)
    )
    density = Density(parameter, np.float64)
    assert np.allclose(density.joint(density.features(x)), log_densities(x, parameter))


@pytest.mark.parametrize("kind", ["diag", "full"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_pass_is_one_step_of_expectation_maximisation(kind: Kind, dtype: npt.DTypeLike) -> None:
    x = made(9_000) + 20.0
    algorithm = GaussianMixtureAlgorithm(3, covariance=kind, threads=2)
    old = algorithm.init_parameter(Batch(x[:300]), np.random.default_rng(0))
    new = algorithm.update_parameter(algorithm.update_points(Batch(x.astype(dtype)), old, {}), old)
    share, loglik = shares(log_densities(x, old))
    count = share.sum(1)
    means = share @ x / count[:, None]
    near = 1e-3 if dtype == np.float32 else 1e-8
    assert np.allclose(new["weights"], count / len(x), rtol=near)
    assert np.allclose(new["means"], means, rtol=near)
    for k in range(3):
        apart = x - means[k]
        full = (apart * share[k][:, None]).T @ apart / count[k] + 1e-6 * np.eye(3)
        wanted = full if kind == "full" else np.diag(full)
        assert np.allclose(new["covariances"][k], wanted, rtol=10 * near, atol=10 * near)
    statistics = algorithm.update_points(Batch(x.astype(dtype)), old, {})
    assert algorithm.objective(statistics, old) == pytest.approx(-loglik.sum(), rel=1e-4)
    assert algorithm.objective(statistics, new) == pytest.approx(
        -free(share, log_densities(x, new)).sum(), rel=1e-4
    )


def free(share: npt.NDArray[np.float64], logs: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """F of each point by FSP's Eq. 2: E[log p(z, x)] + H(Q)."""
    found: npt.NDArray[np.float64] = (share * (logs - np.log(np.maximum(share, 1e-300)))).sum(0)
    return found


@pytest.mark.parametrize("kind", ["diag", "full"])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_objective_is_that_of_equation_2(kind: Kind, weighted: bool) -> None:
    """Points were visited under different parameters, and each counts with the probabilities of its last
    visit."""
    x = made() + 100.0
    weight = np.random.default_rng(2).random(len(x)) if weighted else None
    algorithm = GaussianMixtureAlgorithm(3, covariance=kind)
    one = algorithm.init_parameter(Batch(x), np.random.default_rng(0))
    points = Batch(x, weight=weight)
    other = algorithm.update_parameter(algorithm.update_points(points, one, {}), one)
    halves = [(slice(0, 200), one), (slice(200, 500), other)]
    found = [algorithm.update_points(points.part(rows), at, {}) for rows, at in halves]
    total = {name: found[0][name] + found[1][name] for name in found[0]}
    share = np.hstack([shares(log_densities(x[rows], at))[0] for rows, at in halves])
    for parameter in (one, other, algorithm.update_parameter(total, other)):
        expected = free(share, log_densities(x, parameter))
        expected = -(expected if weight is None else weight * expected).sum()
        assert algorithm.objective(total, parameter) == pytest.approx(expected, rel=1e-9)


def test_a_probability_of_zero_adds_no_entropy() -> None:
    logs = np.array([[-np.inf, -1.0], [-2.0, -1.0]])
    share, entropy = shares_and_entropy(logs, None)
    assert np.array_equal(share, [[0.0, 0.5], [1.0, 0.5]])
    assert entropy == pytest.approx(np.log(2.0))


@pytest.mark.parametrize("kind", ["diag", "full"])
def test_the_likelihood_grows_with_every_pass(kind: Kind) -> None:
    found = fit_local(
        GaussianMixtureAlgorithm(3, covariance=kind, tol=1e-5),
        Batch(made()),
        rng=np.random.default_rng(0),
        max_passes=200,
    )
    assert found.terminated
    assert (np.diff(found.objectives) <= 1e-6).all()


def test_a_component_without_points_keeps_its_place() -> None:
    algorithm = GaussianMixtureAlgorithm(2)
    old = algorithm.init_parameter(Batch(made()), np.random.default_rng(0))
    statistics = algorithm.layout(old).zeros()
    statistics["count"][0] = 4.0
    statistics["square"][0] = 4.0
    new = algorithm.update_parameter(statistics, old)
    assert np.array_equal(new["means"][1], old["means"][1])
    assert np.array_equal(new["covariances"][1], old["covariances"][1])
    assert new["weights"][0] == pytest.approx(1.0)


@pytest.mark.parametrize("kind", ["diag", "full"])
def test_a_singular_covariance_is_one_clear_line(kind: Kind) -> None:
    x = np.repeat(np.arange(4.0)[:, None], 3, axis=1)
    algorithm = GaussianMixtureAlgorithm(2, covariance=kind, regularisation=0.0)
    with pytest.raises(UsageError, match="a covariance is singular.*larger reg_covar"):
        fit_local(algorithm, Batch(x), rng=np.random.default_rng(0), max_passes=50)


def test_weights_count_as_repeated_points() -> None:
    x = made(200)
    times = np.random.default_rng(1).integers(1, 4, len(x))
    algorithm = GaussianMixtureAlgorithm(3)
    old = algorithm.init_parameter(Batch(x), np.random.default_rng(0))
    weighed = algorithm.update_points(Batch(x, weight=times.astype(float)), old, {})
    repeated = algorithm.update_points(Batch(np.repeat(x, times, axis=0)), old, {})
    for name, array in repeated.items():
        assert np.allclose(weighed[name], array)


@pytest.mark.parametrize("kind", ["diag", "full"])
def test_the_result_is_scikit_learns_from_the_same_start(kind: Kind) -> None:
    mixture = pytest.importorskip("sklearn.mixture")
    x = made(2_000)
    algorithm = GaussianMixtureAlgorithm(3, covariance=kind, tol=1e-6)
    first = algorithm.init_parameter(Batch(x), np.random.default_rng(0))
    ours = fit_local(
        algorithm, Batch(x), rng=np.random.default_rng(0), max_passes=200, parameter=first
    )
    precisions = (
        1.0 / first["covariances"] if kind == "diag" else np.linalg.inv(first["covariances"])
    )
    theirs = mixture.GaussianMixture(
        3,
        covariance_type=kind,
        tol=1e-6,
        max_iter=200,
        weights_init=first["weights"],
        means_init=first["means"],
        precisions_init=precisions,
    ).fit(x)
    assert ours.passes == theirs.n_iter_
    assert -ours.objectives[-1] / len(x) == pytest.approx(theirs.score(x), rel=1e-4)
    assert np.allclose(ours.parameter["means"], theirs.means_, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("kind", ["diag", "full"])
def test_float32_is_as_exact_as_float64_where_a_column_has_few_values(
    kind: Kind,
) -> None:
    """In a column with few distinct values the components become narrow."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2_000, 3)) + 3.0
    x[:, 2] = rng.choice([0.0, 1.087, 2.173, 31.7], 2_000)
    x = x.astype(np.float32).astype(np.float64)
    fits = [
        fit_local(
            GaussianMixtureAlgorithm(3, covariance=kind, tol=0.0),
            Batch(x.astype(dtype)),
            rng=np.random.default_rng(1),
            max_passes=30,
        )
        for dtype in (np.float32, np.float64)
    ]
    assert fits[0].objectives[-1] == pytest.approx(fits[1].objectives[-1], rel=1e-3)
    assert np.allclose(fits[0].parameter["means"], fits[1].parameter["means"], rtol=1e-2)
