"""The estimators follow scikit-learn's conventions, and refuse bad input with one clear line."""

import ast
import importlib
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("sklearn", minversion="1.6")

from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.estimator_checks import check_estimator

import polyrhythm.estimators.conventions as conventions
from polyrhythm.cluster import FuzzyCMeans, KMeans
from polyrhythm.decomposition import NMF
from polyrhythm.linear_model import LogisticRegression
from polyrhythm.mixture import GaussianMixture

Points = npt.NDArray[np.float64]
ALL = [KMeans(3), FuzzyCMeans(3), GaussianMixture(2), GaussianMixture(2, covariance_type="diag")]

CHECKED = [
    KMeans(3, max_iter=3),
    FuzzyCMeans(3, max_iter=3),
    GaussianMixture(2, max_iter=3),
    GaussianMixture(2, covariance_type="diag", max_iter=3),
    LogisticRegression(max_iter=3),
    NMF(2, max_iter=3),
]


@pytest.fixture(scope="module")
def digits() -> Points:
    from sklearn.datasets import load_digits

    return np.asarray(load_digits().data)


def blobs(n: int = 300, d: int = 4) -> Points:
    rng = np.random.default_rng(0)
    return rng.normal(size=(3, d))[rng.integers(0, 3, n)] * 6 + rng.normal(size=(n, d))


@pytest.mark.parametrize("estimator", CHECKED, ids=repr)
def test_check_estimator_passes(estimator: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = check_estimator(clone(estimator), on_skip=None)
    assert not [result["check_name"] for result in results if result["status"] == "failed"]


@pytest.mark.parametrize("estimator", ALL, ids=repr)
@pytest.mark.parametrize(("value", "word"), [(np.nan, "NaN"), (np.inf, "infinity")])
def test_a_value_that_is_not_finite_is_reported_with_its_row(
    estimator: Any, value: float, word: str
) -> None:
    x = blobs()
    x[17, 2] = value
    with pytest.raises(ValueError, match=f"contains {word} in row 17, column 2: remove"):
        clone(estimator).fit(x)


@pytest.mark.parametrize("estimator", ALL, ids=repr)
def test_more_clusters_than_points_are_refused(estimator: Any) -> None:
    name = "n_clusters" if "n_clusters" in estimator.get_params() else "n_components"
    with pytest.raises(ValueError, match="n_samples"):
        clone(estimator).set_params(**{name: 6}).fit(blobs(5))


@pytest.mark.parametrize("estimator", ALL, ids=repr)
def test_a_fitted_estimator_survives_joblib(estimator: Any, tmp_path: Path) -> None:
    joblib = pytest.importorskip("joblib")
    x = blobs()
    fitted = clone(estimator).set_params(random_state=0).fit(x)
    joblib.dump(fitted, tmp_path / "estimator")
    again = joblib.load(tmp_path / "estimator")
    assert np.array_equal(again.predict(x), fitted.predict(x))


@pytest.mark.parametrize("estimator", ALL, ids=repr)
def test_equal_seeds_give_equal_fits_and_verbose_shows_passes(
    estimator: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    x = blobs()
    first = clone(estimator).set_params(random_state=3, verbose=1).fit(x)
    second = clone(estimator).set_params(random_state=3).fit(x)
    assert np.array_equal(first.predict(x), second.predict(x))
    shown = capsys.readouterr().err
    assert f"{type(estimator).__name__}: pass 1, objective " in shown


def test_as_many_clusters_as_points_and_duplicated_points() -> None:
    x = blobs(6)
    assert KMeans(6, random_state=0).fit(x).inertia_ == pytest.approx(0.0, abs=1e-12)
    with pytest.warns(ConvergenceWarning, match=r"distinct clusters \(2\) found smaller"):
        found = KMeans(3, random_state=0).fit(np.repeat(x[:2], 9, axis=0))
    assert found.inertia_ == pytest.approx(0.0, abs=1e-12)
    for other in (FuzzyCMeans(3, random_state=0), GaussianMixture(3, random_state=0)):
        with pytest.warns(ConvergenceWarning, match=r"distinct points \(2\) found smaller than"):
            other.fit(np.repeat(x[:2], 9, axis=0))


@pytest.mark.parametrize("estimator", CHECKED, ids=repr)
@pytest.mark.parametrize(("dtype", "scale"), [(np.float64, 1e200), (np.float32, 1e25)])
def test_numbers_whose_squares_are_too_large_are_refused(
    estimator: Any, dtype: npt.DTypeLike, scale: float
) -> None:
    x = (np.abs(blobs()) * scale).astype(dtype)
    with pytest.raises(ValueError, match=r"values as large as .*: scale X"):
        clone(estimator).fit(x, np.arange(len(x)) % 2)


def test_a_singular_covariance_is_a_value_error() -> None:
    x = np.repeat(np.arange(6.0)[:, None], 3, axis=1)
    with pytest.raises(ValueError, match="a covariance is singular"):
        GaussianMixture(2, reg_covar=0.0, random_state=0).fit(x)


def test_points_far_from_the_origin_keep_their_clusters() -> None:
    x = blobs().astype(np.float32)
    near = KMeans(3, random_state=0).fit(x)
    far = KMeans(3, random_state=0).fit(x + np.float32(3e4))
    assert len(set(zip(near.labels_, far.labels_, strict=True))) == 3
    assert far.inertia_ == pytest.approx(near.inertia_, rel=1e-2)


@pytest.mark.parametrize(
    ("estimator", "message"),
    [
        (KMeans(0), "n_clusters is 0"),
        (KMeans(2, tol=-1.0), "tol is -1.0"),
        (KMeans(2, init="best"), "init is 'best'"),
        (KMeans(2, init=np.zeros((3, 4))), r"init has the shape \(3, 4\) and needs \(2, 4\)"),
        (KMeans(2, init=np.full((2, 4), np.nan)), "init contains NaN or infinity"),
        (KMeans(2, init=np.full((2, 4), 1e300)), "init contains values as large as 1e.300"),
        (KMeans(2, algorithm="hartigan"), "algorithm is 'hartigan': give 'lloyd' or 'elkan'"),
        (KMeans(2, workers=0), "workers is 0"),
        (KMeans(2, workers="two"), "workers is 'two': give a positive number"),
        (KMeans(2, workers=1.5), "workers is 1.5"),
        (KMeans(2, sync="foo"), "sync is 'foo': give one of 'bspb', 'bsp'"),
        (GaussianMixture(2, sync="psp"), "sync is 'psp': give one of 'bspb', 'bsp'"),
        (LogisticRegression(penalty="l1"), "penalty is 'l1': give 'l2', or None"),
        (FuzzyCMeans(2, m=1), "the fuzzifier must be above 1"),
        (GaussianMixture(2, covariance_type="tied"), "'full' or 'diag'"),
        (GaussianMixture(2, means_init=np.zeros(3)), "means_init has the shape"),
        (GaussianMixture(2, means_init=np.full((2, 4), np.nan)), "means_init contains NaN"),
        (GaussianMixture(2, weights_init=[1, 2]), r"weights_init is .*: give numbers from 0 to 1"),
        (GaussianMixture(2, weights_init=[-1, 2]), r"weights_init is .*: give numbers from 0 to 1"),
        (
            GaussianMixture(2, precisions_init=-np.ones((2, 4, 4))),
            "not symmetric, positive-definite",
        ),
        (
            GaussianMixture(2, covariance_type="diag", precisions_init=-np.ones((2, 4))),
            "a number that is not above 0",
        ),
    ],
    ids=repr,
)
def test_a_wrong_option_is_named(estimator: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        estimator.fit(blobs(), np.arange(300) % 2)


def test_logistic_regression_without_a_penalty() -> None:
    x, y = blobs(), np.random.default_rng(0).integers(0, 2, 300)
    none = LogisticRegression(penalty=None).fit(x, y)
    endless = LogisticRegression(C=np.inf).fit(x, y)
    assert np.array_equal(none.coef_, endless.coef_)


def test_partial_fit_comes_near_the_fit_of_all_points() -> None:
    x = blobs(3_000)
    whole = KMeans(3, random_state=0).fit(x)
    parts = KMeans(3, random_state=0)
    for part in np.array_split(x, 30):
        parts.partial_fit(part)
    assert -parts.score(x) == pytest.approx(whole.inertia_, rel=0.02)
    assert parts.n_steps_ == 30


def test_partial_fit_far_from_the_origin_is_that_near_it() -> None:
    x = np.round(blobs(600) * 8.0)
    fits = []
    for shift in (0.0, 1e6):
        points = (x + shift).astype(np.float32)
        model = KMeans(3, init=x[:3] + shift)
        for part in np.array_split(points, 3):
            model.partial_fit(part)
        fits.append(model.cluster_centers_ - np.float32(shift))
    assert np.allclose(*fits, atol=0.3), "float32 has steps of 0.06 at 1,000,000"


@pytest.mark.parametrize("weight", [None, np.full(300, 2.0)], ids=["plain", "weighted"])
def test_partial_fit_continues_from_the_points_of_the_fit(weight: Points | None) -> None:
    """`partial_fit` continues from the points of the last `fit`. Points that `partial_fit` got
    before that `fit` have no effect."""
    x = blobs()
    model = KMeans(3, random_state=0).partial_fit(x[:9]).fit(x, sample_weight=weight)
    before = model.cluster_centers_.copy()
    label = int(model.predict(x[:1])[0])
    count = np.count_nonzero(model.labels_ == label) * (1.0 if weight is None else 2.0)
    model.partial_fit(x[:1])
    before[label] += (x[0] - before[label]) / (count + 1.0)
    assert np.allclose(model.cluster_centers_, before)


def test_numbers_whose_products_are_too_large_get_a_cluster_that_exists() -> None:
    model = KMeans(3, random_state=0).fit(blobs().astype(np.float32))
    large = np.full((2, 4), 3e38, np.float32)
    with np.errstate(all="ignore"):
        assert set(model.predict(large)) <= {0, 1, 2}
    with pytest.raises(ValueError, match=r"values as large as .*: scale X"):
        model.partial_fit(large)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_kmeans_on_digits_is_within_one_percent_of_scikit_learns(
    digits: Points, dtype: npt.DTypeLike
) -> None:
    from sklearn.cluster import KMeans as Theirs

    x = digits.astype(dtype)
    theirs = Theirs(10, n_init=4, random_state=0).fit(x)
    ours = KMeans(10, n_init=4, random_state=0).fit(x)
    assert ours.inertia_ <= 1.01 * theirs.inertia_
    assert ours.cluster_centers_.dtype == dtype
    assert np.allclose(ours.transform(x).argmin(1), ours.labels_)


@pytest.mark.parametrize("kind", ["diag", "full"])
def test_the_mixture_on_digits_is_within_one_percent_of_scikit_learns(
    digits: Points, kind: str
) -> None:
    from sklearn.mixture import GaussianMixture as Theirs

    options = {"covariance_type": kind, "reg_covar": 1e-1, "random_state": 0, "n_init": 2}
    theirs = Theirs(10, **options).fit(digits).score(digits)
    ours = GaussianMixture(10, **options).fit(digits)
    assert ours.score(digits) >= theirs - 0.01 * abs(theirs)
    shares = ours.predict_proba(digits)
    assert np.allclose(shares.sum(1), 1.0)
    assert np.array_equal(shares.argmax(1), ours.predict(digits))


def test_a_mixture_draws_points_like_those_it_has_seen() -> None:
    x = blobs(2_000)
    found = GaussianMixture(3, random_state=0).fit(x)
    drawn, components = found.sample(4_000)
    assert drawn.shape == (4_000, 4)
    assert set(components) == {0, 1, 2}
    assert np.allclose(drawn.mean(0), x.mean(0), atol=0.5)
    assert found.bic(x) > found.aic(x)


def test_the_degrees_of_fuzzy_c_means_add_up_to_one() -> None:
    x = blobs()
    found = FuzzyCMeans(3, random_state=0).fit(x)
    assert np.allclose(found.predict_proba(x).sum(1), 1.0)
    assert found.objective_ > 0
    agree = KMeans(3, random_state=0).fit(x)
    assert len(set(zip(found.labels_, agree.labels_, strict=True))) == 3


def test_fuzzy_c_means_without_clusters_warns() -> None:
    x = np.random.default_rng(0).normal(size=(500, 12)).astype(np.float32)
    with pytest.warns(ConvergenceWarning, match="about 1/3.*give an m below 1.2"):
        FuzzyCMeans(3, random_state=0).fit(x)


def test_nothing_that_computes_comes_from_scikit_learn() -> None:
    """import-linter checks that no other module imports scikit-learn."""
    source = Path(conventions.__file__).read_text()
    taken = {
        node.module for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)
    }
    allowed = ("sklearn.base", "sklearn.exceptions", "sklearn.utils")
    assert all(module is not None and module.startswith(allowed) for module in taken)
    assert importlib.import_module("polyrhythm.cluster").KMeans is KMeans


def test_weights_that_are_too_large_are_named() -> None:
    x = np.arange(20.0).reshape(10, 2)
    for weight in (np.full(10, 1e308), np.full(10, 1e200)):
        with pytest.raises(ValueError, match="the sum of sample_weight is .*: scale the weights"):
            KMeans(2, random_state=0).fit(x, sample_weight=weight)
