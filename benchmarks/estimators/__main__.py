"""Compares our estimators with scikit-learn's, side by side in one run.

    python -m benchmarks.estimators [--points 1000000] [--repeat 3] [--workers 2] [--only speed]
                                    [--data-dir DIR] [--check] [--json out.json]

- *speed*: a table of `--points` x 28 float32 with ten clusters. The time of a pass is the median of
  the passes after the third, without the start of processes. scikit-learn's time is the difference
  between a long and a short fit, divided by the number of iterations between them. Then both sides
  fit KMeans from the same first centres until it converges. The time of our fit does not contain the
  start of processes. It contains the time to copy the table for the processes, and the time until they
  have ended.
- *digits*: a whole fit of the 1,797 digits in this process, the median of `--repeat` fits.
- *fits*: ten fits of each estimator with two worker processes find what a fit in this process finds.
- *quality*: objectives and scores on digits, HIGGS and MovieLens, where the files are found.

Without `--workers`, our side computes in this process, with a worker for each core.
`--check` fails if a target is missed.
"""

import argparse
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from sklearn import cluster, decomposition, linear_model, mixture
from sklearn.datasets import load_digits

import polyrhythm.cluster
import polyrhythm.decomposition
import polyrhythm.linear_model
import polyrhythm.mixture
from benchmarks import report
from benchmarks.estimators import quality
from polyrhythm.estimators import base
from polyrhythm.estimators.fitting import FitPlace, Fitted, fit_points
from polyrhythm.learn.pointwise import kmeans
from polyrhythm.learn.pointwise import mixture as mixtures
from polyrhythm.learn.pointwise.algorithm import Algorithm, Batch
from polyrhythm.learn.pointwise.layout import Arrays

FEATURES, CLUSTERS = 28, 10
ALLOWED = {"KMeans pass": 1.5, "GaussianMixture (diag) pass": 1.0, "KMeans fit": 1.0}
DIGITS_TIMES, DIGITS_S = 3.0, 0.050


def made(points: int) -> np.ndarray:
    """Points around ten centres. The clusters overlap, so points keep moving between them."""
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((CLUSTERS, FEATURES), np.float32) * np.float32(0.7)
    x = rng.standard_normal((points, FEATURES), np.float32)
    for start in range(0, points, 100_000):
        part = x[start : start + 100_000]
        part += centres[rng.integers(0, CLUSTERS, len(part))]
    return x


def our_pass_s(
    algorithm: Algorithm, x: np.ndarray, first: Arrays, workers: int | None, passes: int = 12
) -> float:
    points = Batch(x)
    place = FitPlace(workers)
    found = fit_points(
        algorithm,
        points,
        place=place,
        rng=np.random.default_rng(0),
        max_passes=passes,
        parameter=first,
    )
    return statistics.median(np.diff(found.ended_s)[2:].tolist())


def their_pass_s(fit: Callable[[int], Any], few: int = 3, many: int = 11) -> float:
    times = []
    for passes in (few, many):
        began_s = time.perf_counter()
        fit(passes)
        times.append(time.perf_counter() - began_s)
    return (times[1] - times[0]) / (many - few)


def timed(fit: Callable[[], Any]) -> tuple[float, Any]:
    began_s = time.perf_counter()
    found = fit()
    return time.perf_counter() - began_s, found


@contextmanager
def watched() -> Iterator[list[Fitted]]:
    """Records the fits that estimators make in this context."""
    found: list[Fitted] = []

    def watch(*arguments: Any, **options: Any) -> Fitted:
        found.append(fit_points(*arguments, **options))
        return found[-1]

    before, base.fit_points = base.fit_points, watch
    try:
        yield found
    finally:
        base.fit_points = before


def speed(points: int, repeat: int, workers: int | None) -> list[dict[str, Any]]:
    x = made(points)
    rng = np.random.default_rng(1)
    chosen = x[rng.choice(points, CLUSTERS, replace=False)]
    first = kmeans.given_centers(chosen.astype(np.float64), Batch(x[:10_000]))
    start = mixtures.GaussianMixtureAlgorithm(CLUSTERS).init_parameter(Batch(x[:10_000]), rng)

    def their_kmeans(passes: int) -> Any:
        options: dict[str, Any] = {"n_init": 1, "tol": 0, "algorithm": "lloyd"}
        return cluster.KMeans(CLUSTERS, init=chosen, max_iter=passes, **options).fit(x)

    def their_mixture(passes: int) -> Any:
        return mixture.GaussianMixture(
            CLUSTERS,
            covariance_type="diag",
            tol=0,
            max_iter=passes,
            weights_init=start["weights"],
            means_init=start["means"],
            precisions_init=1.0 / start["covariances"],
        ).fit(x)

    def fitted(module: Any, **more: Any) -> Callable[[], Any]:
        return module.KMeans(CLUSTERS, init=chosen, n_init=1, random_state=0, **more).fit

    cases: dict[str, list[tuple[float, float]]] = {name: [] for name in ALLOWED}
    worse: list[float] = []
    starts: list[float] = []
    for number in range(repeat):
        report.say(f"speed, {number + 1} of {repeat}")
        ours = our_pass_s(kmeans.KMeansAlgorithm(CLUSTERS, tol=0.0), x, first, workers)
        cases["KMeans pass"].append((ours, their_pass_s(their_kmeans)))
        ours = our_pass_s(
            mixtures.GaussianMixtureAlgorithm(CLUSTERS, tol=0.0), x, start, workers, 8
        )
        cases["GaussianMixture (diag) pass"].append((ours, their_pass_s(their_mixture, 2, 5)))
        with watched() as fits:
            ours_s, mine = timed(lambda: fitted(polyrhythm.cluster, workers=workers)(x))
        starts.append(fits[0].start_s)
        ours_s -= fits[0].start_s
        theirs_s, theirs = timed(lambda: fitted(cluster)(x))
        cases["KMeans fit"].append((ours_s, theirs_s))
        worse.append(mine.inertia_ / theirs.inertia_ - 1.0)
    rows = []
    for name, pairs in cases.items():
        ours, theirs = (statistics.median(side) for side in zip(*pairs, strict=True))
        rows.append(
            {"name": name, "ours_s": ours, "theirs_s": theirs, "limit_s": theirs * ALLOWED[name]}
        )
    rows[-1]["inertia_worse"] = max(worse)
    rows[-1]["start_s"] = statistics.median(starts)
    return rows


def _fit_s(estimator: Any, x: Any, y: Any) -> float:
    return timed(lambda: estimator.fit(x, y))[0]


def digits(repeat: int) -> list[dict[str, Any]]:
    x, y = load_digits(return_X_y=True)
    pairs: dict[str, tuple[Callable[[Any], Any], Any, Any]] = {
        "KMeans": (lambda m: m.KMeans(10, random_state=0), polyrhythm.cluster, cluster),
        "GaussianMixture (diag)": (
            lambda m: m.GaussianMixture(10, covariance_type="diag", random_state=0),
            polyrhythm.mixture,
            mixture,
        ),
        "GaussianMixture (full)": (
            lambda m: m.GaussianMixture(10, random_state=0),
            polyrhythm.mixture,
            mixture,
        ),
        "LogisticRegression": (
            lambda m: m.LogisticRegression(),
            polyrhythm.linear_model,
            linear_model,
        ),
        "NMF": (
            lambda m: m.NMF(10, random_state=0),
            polyrhythm.decomposition,
            decomposition,
        ),
    }
    rows = []
    for name, (make, ours, theirs) in pairs.items():
        report.say(f"digits, {name}")
        sides = [make(ours), make(theirs)]
        for side in sides:
            side.fit(x, y)
        times = [[_fit_s(side, x, y) for side in sides] for _ in range(max(3, repeat))]
        mine, other = (statistics.median(side) for side in zip(*times, strict=True))
        limit_s = DIGITS_TIMES * other + DIGITS_S
        rows.append(
            {"name": f"{name}, digits", "ours_s": mine, "theirs_s": other, "limit_s": limit_s}
        )
    return rows


def fits(times: int = 10) -> list[str]:
    """Fit each estimator several times with real processes. Returns what differed from a fit in this
    process."""
    x, y = load_digits(return_X_y=True)
    cases = {
        "cluster_centers_": (polyrhythm.cluster.KMeans(10), polyrhythm.cluster.FuzzyCMeans(5)),
        "means_": (polyrhythm.mixture.GaussianMixture(5, reg_covar=0.1),),
        "coef_": (polyrhythm.linear_model.LogisticRegression(),),
        "components_": (polyrhythm.decomposition.NMF(5, max_iter=50),),
    }
    wrong = []
    for attribute, estimators in cases.items():
        for estimator in estimators:
            for seed in range(times):
                name = f"{type(estimator).__name__}, fit {seed + 1} of {times} with processes"
                report.say(name)
                if "random_state" in estimator.get_params():
                    estimator.set_params(random_state=seed)
                here = getattr(estimator.set_params(workers=None).fit(x, y), attribute)
                there = getattr(estimator.set_params(workers=2).fit(x, y), attribute)
                if not np.allclose(here, there, rtol=1e-3, atol=1e-3 * np.abs(here).max()):
                    wrong.append(name)
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--points", type=report.at_least_one, default=1_000_000)
    parser.add_argument("--repeat", type=report.at_least_one, default=3)
    parser.add_argument("--workers", type=report.at_least_one)
    parser.add_argument("--only", choices=["speed", "digits", "fits", "quality"])
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--json", type=Path)
    flags = parser.parse_args()
    warnings.simplefilter("ignore")
    rows: list[dict[str, Any]] = []
    if flags.only in (None, "speed"):
        rows += speed(flags.points, flags.repeat, flags.workers)
    if flags.only in (None, "digits"):
        rows += digits(flags.repeat)
    compared = list(quality.compare(flags.data_dir)) if flags.only in (None, "quality") else []
    missed = [row["name"] for row in rows if row["ours_s"] > row["limit_s"]]
    missed += [row["name"] for row in rows if row.get("inertia_worse", 0.0) > quality.ALLOWED]
    missed += [each.name for each in compared if each.worse > quality.ALLOWED]
    if flags.only in (None, "fits"):
        missed += fits()
    lines = [f"{report.machine()}; {flags.points:,} points", ""]
    if rows:
        lines += ["| | ours | scikit-learn | allowed |", "|---|---|---|---|"]
    lines += [
        f"| {row['name']} | {1e3 * row['ours_s']:.1f} ms | {1e3 * row['theirs_s']:.1f} ms"
        f" | {1e3 * row['limit_s']:.1f} ms |"
        for row in rows
    ]
    if compared:
        lines += ["", "| | ours | scikit-learn | worse by |", "|---|---|---|---|"]
    lines += [f"| {c.name} | {c.ours:.6g} | {c.theirs:.6g} | {c.worse:+.2%} |" for c in compared]
    result = {
        "times": rows,
        "quality": [{"name": c.name, "ours": c.ours, "theirs": c.theirs} for c in compared],
        "missed": missed,
    }
    report.give(result, "\n".join(lines), flags.json)
    if flags.check and missed:
        sys.exit(f"missed: {', '.join(missed)}")


if __name__ == "__main__":
    main()
