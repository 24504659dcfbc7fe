"""LogisticRegression and NMF are compared with the estimators of scikit-learn, and refuse bad input."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("sklearn", minversion="1.6")

from scipy import sparse
from sklearn import decomposition, linear_model
from sklearn.datasets import load_digits

from polyrhythm.decomposition import NMF
from polyrhythm.linear_model import LogisticRegression

Points = npt.NDArray[Any]


@pytest.fixture(scope="module")
def digits() -> tuple[Points, Points]:
    found = load_digits()
    return found.data / 16.0, found.target


@pytest.mark.parametrize("classes", [2, 10])
@pytest.mark.parametrize("given", ["array", "float32", "sparse"])
def test_logistic_regression_finds_scikit_learns_coefficients(
    digits: tuple[Points, Points], classes: int, given: str
) -> None:
    x, y = digits[0], digits[1] % classes
    if given == "sparse":
        x = sparse.csr_matrix(x)
    elif given == "float32":
        x = x.astype(np.float32)
    theirs = linear_model.LogisticRegression(max_iter=1_000).fit(x, y)
    ours = LogisticRegression(max_iter=1_000).fit(x, y)
    near = 0.05 * np.abs(theirs.coef_).max()
    assert np.allclose(ours.coef_, theirs.coef_, atol=near)
    assert ours.score(x, y) == pytest.approx(theirs.score(x, y), abs=0.005)
    shares = ours.predict_proba(x)
    assert np.allclose(shares.sum(1), 1.0, atol=1e-5)
    assert np.abs(shares - theirs.predict_proba(x)).max() < 0.05


def test_weights_of_classes_and_points_count_as_in_scikit_learn(
    digits: tuple[Points, Points],
) -> None:
    x, y = digits[0][:400], digits[1][:400] % 3
    weight = np.random.default_rng(0).random(400)
    options = {"class_weight": "balanced", "max_iter": 1_000, "C": 0.5}
    theirs = linear_model.LogisticRegression(**options).fit(x, y, sample_weight=weight)
    ours = LogisticRegression(**options).fit(x, y, sample_weight=weight)
    assert np.allclose(ours.coef_, theirs.coef_, atol=0.02)


def test_partial_fit_learns_and_refuses_labels_outside_the_classes(
    digits: tuple[Points, Points],
) -> None:
    x, y = digits
    found = LogisticRegression()
    for start in range(0, 1_500, 50):
        found.partial_fit(x[start : start + 50], y[start : start + 50], classes=range(10))
    assert found.score(x[1_500:], y[1_500:]) > 0.8
    with pytest.raises(ValueError, match=r"y contains \[12\], and the classes are \[0, 1"):
        found.partial_fit(x[:2], [3, 12])
    with pytest.raises(ValueError, match="classes must be passed on the first call"):
        LogisticRegression().partial_fit(x, y)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"C": 0.0}, "C is 0.0"),
        ({"solver": "saga"}, "solver='lbfgs' with an L2 penalty"),
        ({"l1_ratio": 0.5}, "solver='lbfgs' with an L2 penalty"),
        ({"sync": "fsp"}, "gradients of all points at the same coefficients"),
    ],
)
def test_a_wrong_option_is_named(
    digits: tuple[Points, Points], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        LogisticRegression(**options).fit(*digits)


@pytest.mark.filterwarnings("ignore:Maximum number of iterations")
@pytest.mark.parametrize("k", [5, 9])
@pytest.mark.parametrize("as_sparse", [False, True])
def test_nmf_on_digits_is_within_one_percent_of_scikit_learns(
    digits: tuple[Points, Points], k: int, as_sparse: bool
) -> None:
    x = sparse.csr_matrix(digits[0]) if as_sparse else digits[0]
    options = {"max_iter": 200, "random_state": 0}
    theirs = decomposition.NMF(k, **options).fit(x)
    ours = NMF(k, **options)
    w = ours.fit_transform(x)
    assert ours.reconstruction_err_ <= 1.01 * theirs.reconstruction_err_
    assert (w >= 0).all()
    assert (ours.components_ >= 0).all()
    apart = np.linalg.norm(digits[0] - w @ ours.components_)
    assert apart == pytest.approx(ours.reconstruction_err_, rel=1e-6)
    assert np.allclose(ours.inverse_transform(w), w @ ours.components_)


@pytest.mark.filterwarnings("ignore:Maximum number of iterations")
def test_the_penalties_of_nmf_are_scikit_learns(digits: tuple[Points, Points]) -> None:
    x = digits[0][:300]
    options = {"alpha_W": 0.002, "alpha_H": 0.001, "l1_ratio": 0.5, "max_iter": 2_000, "tol": 1e-6}

    def objective(w: Points, h: Points) -> float:
        of_w, of_h = x.shape[1] * 0.002, len(x) * 0.001
        fit = 0.5 * ((x - w @ h) ** 2).sum() + 0.5 * (of_w * w.sum() + of_h * h.sum())
        return float(fit + 0.25 * (of_w * (w**2).sum() + of_h * (h**2).sum()))

    theirs = decomposition.NMF(6, **options)
    ours = NMF(6, **options)
    best = objective(theirs.fit_transform(x), theirs.components_)
    assert objective(ours.fit_transform(x), ours.components_) <= 1.01 * best


@pytest.mark.filterwarnings("ignore:Maximum number of iterations")
def test_only_observed_ratings_count() -> None:
    """A table of rank two is reconstructed from half of its numbers. If the other half counted as
    zeros, the result would be wrong."""
    rng = np.random.default_rng(0)
    table = rng.random((60, 2)) @ rng.random((2, 40)) + 0.1
    seen = rng.random(table.shape) < 0.5
    x = sparse.csr_matrix(np.where(seen, table, 0.0))
    options = {"max_iter": 300, "tol": 1e-6, "random_state": 0}
    found = NMF(3, observed_only=True, **options)
    made = found.fit_transform(x) @ found.components_
    assert np.sqrt(((made - table)[~seen] ** 2).mean()) < 0.1 * table.std()
    plain = NMF(3, max_iter=30, random_state=0)
    spoiled = plain.fit_transform(x) @ plain.components_
    assert np.sqrt(((spoiled - table)[~seen] ** 2).mean()) > table.std()


def test_a_negative_rating_is_named_and_an_empty_row_is_fitted() -> None:
    table = sparse.random(30, 20, 0.3, random_state=0).toarray()
    table[4] = 0.0
    x = sparse.csr_matrix(table)
    for only in (False, True):
        w = NMF(3, observed_only=only, random_state=0, tol=1e-3, max_iter=500).fit_transform(x)
        assert (w[4] == 0.0).all()
    table[7, 3] = -2.0
    for bad in (table, sparse.csr_matrix(table)):
        with pytest.raises(ValueError, match="Negative values in data .* row 7, column 3 is -2"):
            NMF(3).fit(bad)
    with pytest.raises(ValueError, match="observed_only needs a sparse X"):
        NMF(3, observed_only=True).fit(np.ones((4, 4)))
