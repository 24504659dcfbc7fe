"""Objectives and scores of our estimators and of scikit-learn's on digits, HIGGS and MovieLens."""

import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sklearn import cluster, decomposition, linear_model, mixture
from sklearn.datasets import load_digits

import polyrhythm.cluster
import polyrhythm.decomposition
import polyrhythm.linear_model
import polyrhythm.mixture
from polyrhythm.learn.data.catalogue import SETS
from polyrhythm.learn.data.places import find, places
from polyrhythm.learn.data.ratings import open_ratings
from polyrhythm.learn.data.tables import open_points

ALLOWED = 0.01
"""By how much a result may be worse than scikit-learn's, as a share of scikit-learn's result."""


@dataclass(frozen=True, slots=True)
class Compared:
    name: str
    ours: float
    theirs: float
    lower: bool
    """Whether lower is better."""

    @property
    def worse(self) -> float:
        """By how much our result is worse, as a share of scikit-learn's result; negative if ours is
        better."""
        apart = self.ours - self.theirs if self.lower else self.theirs - self.ours
        return apart / max(1e-12, abs(self.theirs))


def file_of(name: str, data_dir: Path | None = None) -> Path | None:
    """The path of the first file of a data set of the catalogue; None if the data set is not found."""
    found = find(SETS[name], places(data_dir, os.environ))
    return None if found is None else found.folder / found.form.files[0].name


def compare(data_dir: Path | None = None, *, fits: int = 4) -> Iterator[Compared]:
    """Compare all estimators. Clusterings and mixtures end in local optima, so the best of several fits
    is taken, of ours and of scikit-learn's."""
    digits = load_digits()
    yield from _points("digits", digits.data, digits.target, digits.data / 16.0, fits)
    higgs = file_of("higgs", data_dir)
    if higgs is not None:
        table = open_points(higgs, label=0 if higgs.name.startswith("HIGGS") else -1)
        batch = table.read(0, min(len(table), 50_000))
        x = (batch.x - batch.x.mean(0)) / batch.x.std(0)
        yield from _points("HIGGS", x, batch.y, np.abs(x), fits)
    movies = file_of("movielens-latest-small", data_dir)
    if movies is not None:
        ratings = open_ratings(movies).matrix
        yield _both(
            "NMF, MovieLens, norm of X - WH",
            lambda module: module.NMF(10, random_state=0).fit(ratings).reconstruction_err_,
            polyrhythm.decomposition,
            decomposition,
            lower=True,
        )


def _points(name: str, x: Any, y: Any, positive: Any, fits: int) -> Iterator[Compared]:
    yield _both(
        f"KMeans, {name}, inertia",
        lambda module: module.KMeans(10, n_init=fits, random_state=0).fit(x).inertia_,
        polyrhythm.cluster,
        cluster,
        lower=True,
    )
    for kind in ("diag", "full"):
        options = {"covariance_type": kind, "n_init": fits, "random_state": 0, "reg_covar": 1e-2}
        yield _both(
            f"GaussianMixture ({kind}), {name}, log-likelihood",
            lambda module, o=options: module.GaussianMixture(5, **o).fit(x).score(x),
            polyrhythm.mixture,
            mixture,
            lower=False,
        )
    yield _both(
        f"LogisticRegression, {name}, accuracy",
        lambda module: (
            module.LogisticRegression(max_iter=1_000).fit(positive, y).score(positive, y)
        ),
        polyrhythm.linear_model,
        linear_model,
        lower=False,
    )
    yield _both(
        f"NMF, {name}, norm of X - WH",
        lambda module: module.NMF(8, random_state=0).fit(positive).reconstruction_err_,
        polyrhythm.decomposition,
        decomposition,
        lower=True,
    )


def _both(
    name: str, score: Callable[[Any], float], ours: Any, theirs: Any, *, lower: bool
) -> Compared:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Compared(name, float(score(ours)), float(score(theirs)), lower)
