"""KMeans and Fuzzy C-Means against brute force, and against scikit-learn where it is installed."""

import tracemalloc
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from polyrhythm.errors import UsageError
from polyrhythm.learn.pointwise.algorithm import Batch
from polyrhythm.learn.pointwise.drift import Drift
from polyrhythm.learn.pointwise.fuzzy import (
    FuzzyCMeansAlgorithm,
    degrees,
    equal_degrees,
    largest_fuzzifier,
)
from polyrhythm.learn.pointwise.kmeans import KMeansAlgorithm, given_centers, plus_plus
from polyrhythm.learn.pointwise.layout import Arrays
from polyrhythm.learn.pointwise.local import fit_local
from polyrhythm.learn.pointwise.nearest import (
    Nearest,
    distance_rows,
    labels_of,
    lowest,
    rank_of,
    scratch_of,
)

DTYPES = [np.float32, np.float64]


def at(centers: npt.NDArray[np.float64]) -> Arrays:
    """The parameters with these centres, and without an offset."""
    return {"centers": centers, "variance": np.ones(()), "offset": np.zeros(centers.shape[1])}


def blobs(n: int = 600, d: int = 5, k: int = 4, seed: int = 0) -> npt.NDArray[np.float64]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(k, d))[rng.integers(0, k, n)] * 4 + rng.normal(size=(n, d))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("threads", [1, 2])
def test_the_statistics_of_kmeans_are_the_sums_of_the_clusters(
    dtype: npt.DTypeLike, threads: int
) -> None:
    x = blobs(40_000).astype(dtype)
    algorithm = KMeansAlgorithm(7, threads=threads)
    rng = np.random.default_rng(0)
    parameter = algorithm.init_parameter(Batch(x[:500]), rng)
    memory = algorithm.memory(len(x))
    total = algorithm.layout(parameter).zeros()
    for _ in range(4):
        change = algorithm.update_points(Batch(x), parameter, memory)
        for name, array in change.items():
            total[name] += array
        apart = x[:, None].astype(np.float64) - parameter["centers"]
        label = (apart**2).sum(2).argmin(1)
        assert (label == memory["label"]).mean() > 0.999
        label = memory["label"]
        for cluster in range(7):
            inside = x[label == cluster].astype(np.float64)
            assert np.allclose(total["sum"][cluster], inside.sum(0))
            assert np.isclose(total["square"][cluster], (inside**2).sum())
            assert total["count"][cluster] == len(inside)
        parameter = algorithm.update_parameter(total, parameter)
        brute = ((x - parameter["centers"][label]) ** 2).sum(dtype=np.float64)
        assert np.isclose(algorithm.objective(total, parameter), brute, rtol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", [KMeansAlgorithm, FuzzyCMeansAlgorithm])
def test_points_far_from_the_origin_are_fitted_like_points_near_it(
    kind: type[KMeansAlgorithm | FuzzyCMeansAlgorithm], dtype: npt.DTypeLike
) -> None:
    x = np.round(blobs(20_000) * 8.0)  # whole numbers, so that float32 has all digits
    far = np.array([3e6, -2e6, 1e6, 0.0, 4e6])
    fits = []
    for points, shift in ((x, np.zeros(5)), (x + far, far)):
        algorithm = kind(4, tol=0.0)
        first = algorithm.init_parameter(Batch(points), np.random.default_rng(0))
        assert np.array_equal(first["offset"].astype(np.float32), first["offset"])
        assert first["offset"].any() == shift.any()
        first["centers"] = x[:4] + shift
        fits.append(
            fit_local(
                algorithm,
                Batch(points.astype(dtype)),
                rng=np.random.default_rng(0),
                max_passes=8,
                parameter=first,
            )
        )
    near, away = fits
    assert np.allclose(away.parameter["centers"] - far, near.parameter["centers"], atol=1e-3)
    assert away.objectives == pytest.approx(near.objectives, rel=1e-4)


def test_a_centre_far_from_the_origin_divides_the_widest_cluster() -> None:
    x = np.concatenate([blobs(300, k=1), blobs(300, k=1, seed=3) + 50.0]) + 1e7
    algorithm = KMeansAlgorithm(3)
    first = given_centers(np.stack([x[0], x[0] - 1e4, x[0] - 2e4]), Batch(x))
    assert first["offset"].all()
    found = fit_local(
        algorithm, Batch(x), rng=np.random.default_rng(0), max_passes=50, parameter=first
    )
    assert set(found.memory["label"]) == {0, 1, 2}
    apart = x - found.parameter["centers"][found.memory["label"]]
    assert found.objectives[-1] == pytest.approx(float((apart**2).sum()))


def test_points_that_stay_in_their_cluster_change_nothing() -> None:
    x = blobs()
    algorithm = KMeansAlgorithm(4)
    found = fit_local(algorithm, Batch(x), rng=np.random.default_rng(0), max_passes=100)
    assert found.terminated
    change = algorithm.update_points(Batch(x), found.parameter, found.memory)
    change = algorithm.update_points(Batch(x), found.parameter, found.memory)
    assert all((array == 0.0).all() for array in change.values())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4, 1e17])
@pytest.mark.parametrize("k", [1, 2, 9])
def test_points_that_are_left_out_would_not_have_moved(
    dtype: npt.DTypeLike, scale: float, k: int
) -> None:
    x = (blobs(6_000, k=3) * scale).astype(dtype)
    x = np.concatenate([x, x[:50]])
    skipping, visiting = KMeansAlgorithm(k), KMeansAlgorithm(k)
    memory, other = skipping.memory(len(x)), visiting.memory(len(x))
    parameter = at(x[:k].astype(np.float64))
    total = skipping.layout(parameter).zeros()
    left_out = 0
    for number in range(30):
        other["bound"][:] = -np.inf
        visiting.update_points(Batch(x), parameter, other)
        limit = skipping._drift.to(parameter["centers"]).limit[memory["label"]]
        left_out += np.count_nonzero(memory["bound"] > limit)
        change = skipping.update_points(Batch(x), parameter, memory)
        assert np.array_equal(memory["label"], other["label"])
        for name, array in change.items():
            total[name] += array
        parameter = skipping.update_parameter(total, parameter)
        if number == 20:  # parameters may jump
            parameter["centers"] = parameter["centers"][::-1] * 3.0
    assert (left_out > len(x)) == (scale < 1e15)


@pytest.mark.parametrize("joining", [False, True])
def test_points_that_change_their_cluster_are_looked_at_again(joining: bool) -> None:
    """Some centres move far, so that many points change their cluster, and the other centres stay.
    Then all centres move a little. `joining`: new points come after centres have moved far; a visit
    with new points sets no bounds."""
    moved = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(120, 2)) * 4.0
        centers = rng.normal(size=(5, 2)) * 4.0
        algorithm = KMeansAlgorithm(5)
        memory = algorithm.memory(len(x))
        before = memory["label"].copy()
        count = 60 if joining else len(x)
        for number in range(12):
            if joining and number % 3 == 2:
                count += 15
            part = {name: array[:count] for name, array in memory.items()}
            parameter = at(centers)
            algorithm.update_points(Batch(x[:count]), parameter, part)
            nearest = ((x[:count, None] - centers) ** 2).sum(2).argmin(1)
            assert np.array_equal(part["label"], nearest), (seed, number)
            moved += np.count_nonzero((before != memory["label"]) & (before >= 0))
            before = memory["label"].copy()
            far = rng.random(5) < 0.5 if number % 3 == 1 else np.zeros(5, bool)
            step = rng.normal(size=(5, 2))
            centers = centers + np.where(far[:, None], 3.0, 0.1) * step
    assert moved > 5_000


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("threads", [1, 2])
def test_points_of_every_block_are_looked_at_again(threads: int, weighted: bool) -> None:
    """A visit of 20,000 points has three blocks. In some visits most points of a block move, in others
    few, and in the last ones few points are looked at."""
    rng = np.random.default_rng(0)
    x, centers = rng.normal(size=(20_000, 2)) * 4.0, rng.normal(size=(5, 2)) * 4.0
    weight = rng.random(len(x)) if weighted else None
    algorithm = KMeansAlgorithm(5, threads=threads)
    memory = algorithm.memory(len(x))
    total = algorithm.layout(at(centers)).zeros()
    for number in range(14):
        change = algorithm.update_points(Batch(x, None, weight), at(centers), memory)
        for name, array in change.items():
            total[name] += array
        nearest = ((x[:, None] - centers) ** 2).sum(2).argmin(1)
        assert np.array_equal(memory["label"], nearest), number
        weighed = np.ones(len(x)) if weight is None else weight
        for cluster in range(5):
            inside = nearest == cluster
            assert total["points"][cluster] == np.count_nonzero(inside)
            assert np.isclose(total["count"][cluster], weighed[inside].sum())
            assert np.allclose(total["sum"][cluster], weighed[inside] @ x[inside])
        far = rng.random(5) < 0.5 if number % 3 == 1 and number < 10 else np.zeros(5, bool)
        step = rng.normal(size=(5, 2))
        centers = centers + np.where(far[:, None], 3.0, 0.02) * step
    assert np.allclose(memory["square"], (x * x).sum(1))


@pytest.mark.parametrize("threads", [1, 2])
def test_a_bound_of_another_cluster_is_forgotten_in_every_block(threads: int) -> None:
    """The first two centres move to and fro, and the third does not, so the drift of the first one is
    twice as large. Then the points of the first centre go to the third one, and back. A bound that
    they kept would be that of the first centre. Points of the second centre are left out."""
    rng = np.random.default_rng(0)
    home = np.array([[0.0, 0.0], [0.0, 500.0], [12.0, 0.0]])
    x = home[rng.integers(0, 3, 30_000)] + rng.normal(size=(30_000, 2))
    algorithm = KMeansAlgorithm(3, threads=threads)
    memory = algorithm.memory(len(x))
    swing = np.array([[1.5], [1.5], [0.0]])
    away, back = home.copy(), home.copy()
    away[0, 0], back[2, 0] = -40.0, 52.0
    for centers in (*[home + swing, home - swing] * 50, home, home + 1e-3, away, back):
        algorithm.update_points(Batch(x), at(centers), memory)
    nearest = ((x[:, None] - back) ** 2).sum(2).argmin(1)
    assert np.array_equal(memory["label"], nearest)


def test_bounds_end_when_a_centre_leaves_the_radius_for_which_they_were_computed() -> None:
    drift, centers = Drift(), np.array([[-1.0, 0.0], [1.0, 0.0]])
    before = drift.to(centers)
    best, second = np.array([-3.0]), np.array([5.0])  # |c|^2 - 2 x.c of the point (-2, 0)
    bound = before.bound(best, second, np.array([4.0]), np.zeros(1, np.int32), 3.0)
    assert bound > before.limit[0] + 1.5
    assert bound > drift.to(np.array([[-1.0, 0.0], [1.01, 0.0]])).limit[0]
    assert bound < drift.to(np.array([[-1.0, 0.0], [2.01, 0.0]])).limit[0], "it is too far out"


def test_a_look_at_few_points_does_not_copy_all_of_them() -> None:
    x = blobs(20_000)[:, 1:]
    algorithm = KMeansAlgorithm(4)
    memory = algorithm.memory(len(x))
    parameter = algorithm.init_parameter(Batch(x[:500]), np.random.default_rng(0))
    for _ in range(2):
        algorithm.update_points(Batch(x), parameter, memory)
    memory["bound"][:10] = -np.inf
    tracemalloc.start()
    try:
        algorithm.update_points(Batch(x), parameter, memory)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < x.nbytes / 2


def test_many_clusters_need_little_memory_in_a_visit() -> None:
    """All distances of 2,000 points to 10,000 centres at once would take 80 MB of memory, and a
    block may have 8,192 points. So a visit must compute the distances in parts."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2_000, 2)).astype(np.float32)
    algorithm = KMeansAlgorithm(10_000)
    memory = algorithm.memory(len(x))
    tracemalloc.start()
    try:
        for _ in range(2):  # nearly all points move in the second visit
            parameter = at(rng.normal(size=(10_000, 2)))
            algorithm.update_points(Batch(x), parameter, memory)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 64e6


def test_blocks_are_large_with_few_clusters_and_a_thread_keeps_no_large_arrays() -> None:
    assert distance_rows(28, 10, np.float32) == 8_192
    assert distance_rows(28, 10_000, np.float32) == 209
    assert distance_rows(28, 10_000, np.float64) == 104
    small = scratch_of(10, 8_192, np.float32)
    assert scratch_of(1_000_000, 64, np.float32).distance.nbytes == 256_000_000
    assert scratch_of(10, 8_192, np.float32) is small


@pytest.mark.parametrize("weight", [None, np.linspace(0.5, 2.0, 600)])
def test_new_points_and_counted_points_may_be_visited_together(
    weight: npt.NDArray[np.float64] | None,
) -> None:
    x = blobs()
    algorithm = KMeansAlgorithm(4)
    memory = algorithm.memory(len(x))
    parameter = at(x[:4].copy())
    part = {name: array[200:400] for name, array in memory.items()}
    total = algorithm.update_points(Batch(x, None, weight).part(slice(200, 400)), parameter, part)
    parameter = at(x[4:8].copy())
    change = algorithm.update_points(Batch(x, None, weight), parameter, memory)
    weighed = np.ones(len(x)) if weight is None else weight
    for cluster in range(4):
        inside = memory["label"] == cluster
        count = total["count"][cluster] + change["count"][cluster]
        assert np.isclose(count, weighed[inside].sum())
        added = total["sum"][cluster] + change["sum"][cluster]
        assert np.allclose(added, (x * weighed[:, None])[inside].sum(0))
    assert np.allclose(memory["square"], (x * x).sum(1))


def test_weights_count_as_repeated_points() -> None:
    x = blobs(200)
    times = np.random.default_rng(1).integers(1, 4, len(x))
    first = at(x[:3].astype(np.float64))
    weighed = fit_local(
        KMeansAlgorithm(3),
        Batch(x, weight=times.astype(float)),
        rng=np.random.default_rng(0),
        max_passes=50,
        parameter=first,
    )
    repeated = fit_local(
        KMeansAlgorithm(3),
        Batch(np.repeat(x, times, axis=0)),
        rng=np.random.default_rng(0),
        max_passes=50,
        parameter=first,
    )
    assert np.allclose(weighed.parameter["centers"], repeated.parameter["centers"])


def test_a_cluster_without_points_divides_the_widest_one() -> None:
    x = np.concatenate([blobs(300, k=1), blobs(300, k=1, seed=3) + 50.0])
    far = np.full((1, x.shape[1]), 1e4)
    first = at(np.concatenate([x[:1], far, far + 1.0]))
    found = fit_local(
        KMeansAlgorithm(3), Batch(x), rng=np.random.default_rng(0), max_passes=50, parameter=first
    )
    assert set(found.memory["label"]) == {0, 1, 2}


def emptied(weight: npt.NDArray[np.float64]) -> tuple[KMeansAlgorithm, Arrays, Arrays]:
    """A cluster of which all points have moved to another one: the algorithm, the sum of all changes,
    and the parameters at the last visit."""
    x = blobs(300, k=1)
    algorithm = KMeansAlgorithm(2)
    near, far = x.mean(0), np.full(x.shape[1], 1e3)
    memory = algorithm.memory(len(x))
    parameter = at(np.stack([far, near]))
    total = algorithm.layout(parameter).zeros()
    for centers in ([far, near], [near, far], [near, far]):
        parameter = {**parameter, "centers": np.stack(centers)}
        for part in (slice(first, first + 30) for first in range(0, 300, 30)):
            inside = {name: array[part] for name, array in memory.items()}
            change = algorithm.update_points(Batch(x[part], None, weight[part]), parameter, inside)
            for name, array in change.items():
                total[name] += array
    return algorithm, total, parameter


def test_a_rounding_error_is_no_point() -> None:
    """The weights of points that leave a cluster seldom add up to exactly what they had added."""
    algorithm, total, old = emptied(np.random.default_rng(0).random(300))
    assert 0.0 < abs(total["count"][1]) < 1e-9, "this test needs a rounding error"
    assert total["points"].tolist() == [300.0, 0.0]
    new = algorithm.update_parameter(total, old)
    assert np.array_equal(new["centers"][1], old["centers"][1])
    repaired = algorithm.repair(total, new)["centers"]
    assert np.linalg.norm(repaired[1] - repaired[0]) < 1.0, (
        "the only cluster with points is divided"
    )


def test_a_cluster_whose_points_weigh_nothing_has_no_points() -> None:
    algorithm, total, old = emptied(np.zeros(300))
    assert total["points"].tolist() == [0.0, 0.0]
    new = algorithm.repair(total, algorithm.update_parameter(total, old))
    assert np.array_equal(new["centers"], old["centers"])


def test_a_weight_that_is_lost_in_rounding_moves_no_centre() -> None:
    """The only point that is left weighs less than the rounding errors of the points that were there."""
    weight = np.random.default_rng(0).random(300)
    algorithm, total, old = emptied(weight)
    total["points"][1] = 1.0
    new = algorithm.repair(total, algorithm.update_parameter(total, old))
    assert np.array_equal(new["centers"][1], old["centers"][1])


def test_equal_points_with_more_clusters_than_values_end() -> None:
    x = np.repeat(np.array([[0.0, 1.0], [2.0, 3.0]]), 5, axis=0)
    found = fit_local(KMeansAlgorithm(4), Batch(x), rng=np.random.default_rng(0), max_passes=50)
    assert found.terminated
    assert found.objectives[-1] == 0.0


def test_as_many_clusters_as_points_leave_no_distance() -> None:
    x = blobs(9)
    found = fit_local(KMeansAlgorithm(9), Batch(x), rng=np.random.default_rng(0), max_passes=50)
    assert found.objectives[-1] == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("algorithm", [KMeansAlgorithm(5), FuzzyCMeansAlgorithm(5)])
def test_more_clusters_than_points_are_refused(
    algorithm: KMeansAlgorithm | FuzzyCMeansAlgorithm,
) -> None:
    with pytest.raises(UsageError, match="k is 5, and there are only 4 points"):
        algorithm.init_parameter(Batch(blobs(4)), np.random.default_rng(0))


def test_plus_plus_finds_clusters_that_lie_far_apart() -> None:
    x = np.repeat(np.eye(6) * 100.0, 20, axis=0) + blobs(120, d=6, k=1)
    centers = plus_plus(x, 6, np.random.default_rng(0))
    assert len(set(labels_of(x, centers)[0])) == 6
    assert len({int(center.argmax()) for center in centers}) == 6


def test_labels_and_distances_are_those_of_brute_force() -> None:
    x = blobs(20_000)
    centers = x[:9]
    labels, squared = labels_of(x, centers, threads=2)
    apart = ((x[:, None] - centers) ** 2).sum(2)
    assert np.array_equal(labels, apart.argmin(1))
    assert np.allclose(squared, apart.min(1))


@pytest.mark.parametrize("m", [1.5, 2.0, 3.0])
def test_the_degrees_of_fuzzy_c_means_are_those_of_its_formula(m: float) -> None:
    x = blobs(100)
    centers = blobs(3, seed=5)
    _, degree = degrees(x, centers, m)
    d = np.sqrt(((x[:, None] - centers) ** 2).sum(2))
    brute = 1.0 / ((d[:, :, None] / d[:, None, :]) ** (2.0 / (m - 1.0))).sum(2)
    assert np.allclose(degree, brute.T)
    _, on_centre = degrees(centers, centers, m)
    assert np.allclose(on_centre, np.eye(3), atol=1e-4)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_objective_of_fuzzy_c_means_falls_and_equals_brute_force(
    dtype: npt.DTypeLike,
) -> None:
    x = blobs(3_000).astype(dtype)
    found = fit_local(
        FuzzyCMeansAlgorithm(4), Batch(x), rng=np.random.default_rng(0), max_passes=60
    )
    assert found.terminated
    falls = np.diff(found.objectives)
    assert (falls <= 1e-6 * found.objectives[0]).all()
    assert found.objectives[-1] == pytest.approx(fuzzy_sum(x, found.parameter["centers"]), rel=1e-3)


def fuzzy_sum(
    x: npt.NDArray[Any], centers: npt.NDArray[np.float64], visited: Any = None, m: float = 2.0
) -> float:
    """The objective of fuzzy c-means if the points were visited with the centres `visited`."""
    x = x.astype(np.float64)
    _, degree = degrees(x, centers if visited is None else visited, m)
    return float((degree**m * ((x - centers[:, None]) ** 2).sum(2)).sum())


@pytest.mark.parametrize("m", [1.4, 2.0])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_objective_of_fuzzy_c_means_has_the_degrees_of_the_last_visits(
    m: float, weighted: bool
) -> None:
    x = blobs(600)
    weight = np.random.default_rng(2).integers(1, 4, len(x)) if weighted else None
    algorithm = FuzzyCMeansAlgorithm(4, m=m)
    points = Batch(x, weight=weight)
    one = algorithm.init_parameter(Batch(x), np.random.default_rng(0))
    other = algorithm.update_parameter(algorithm.update_points(points, one, {}), one)
    halves = [(slice(0, 200), one), (slice(200, 600), other)]
    found = [algorithm.update_points(points.part(rows), at, {}) for rows, at in halves]
    total = {name: found[0][name] + found[1][name] for name in found[0]}
    for parameter in (one, other, algorithm.update_parameter(total, other)):
        expected = 0.0
        for rows, at in halves:
            repeated = x[rows] if weight is None else np.repeat(x[rows], weight[rows], axis=0)
            expected += fuzzy_sum(repeated, parameter["centers"], at["centers"], m)
        assert algorithm.objective(total, parameter) == pytest.approx(expected, rel=1e-9)


def test_points_that_belong_to_all_clusters_alike_are_reported() -> None:
    """In 12 features without clusters, all centres of fuzzy c-means with m = 2 move to the mean. The
    same points have clusters with a smaller m."""
    x = np.random.default_rng(0).normal(size=(2_000, 12))
    x[:, 0] *= 2.0
    for m, expected in ((2.0, "each of the 3 clusters to a degree of about 1/3"), (1.2, None)):
        found = fit_local(
            FuzzyCMeansAlgorithm(3, m=m), Batch(x), rng=np.random.default_rng(0), max_passes=200
        )
        said = equal_degrees(x, found.parameter["centers"], m)
        assert (said is None) if expected is None else (said is not None and expected in said)
        assert said is None or "give an m below 1.8" in said
    assert equal_degrees(blobs(), blobs()[:4], 2.0) is None
    assert equal_degrees(np.ones((9, 2)), np.ones((3, 2)), 2.0) is None, "there is only one point"


@pytest.mark.parametrize("d", [5, 40])
def test_beyond_the_largest_fuzzifier_the_centres_meet(d: int) -> None:
    x = np.random.default_rng(0).normal(size=(3_000, d))
    x[:, 0] *= 1.5
    limit = largest_fuzzifier(x - x.mean(0))
    rng = np.random.default_rng(1)
    nearly_equal = x.mean(0) + 1e-3 * rng.normal(size=(3, d))
    for m, grows in ((1.0 + 0.9 * (limit - 1.0), True), (1.0 + 1.1 * (limit - 1.0), False)):
        first = {
            "centers": nearly_equal,
            "variance": np.zeros(()),
            "offset": np.zeros(d),
        }
        found = fit_local(
            FuzzyCMeansAlgorithm(3, m=m), Batch(x), rng=rng, max_passes=20, parameter=first
        )
        spread = np.ptp(found.parameter["centers"], axis=0)[0]
        assert (spread > np.ptp(nearly_equal, axis=0)[0]) == grows


def test_kmeans_on_digits_is_as_good_as_scikit_learns() -> None:
    datasets = pytest.importorskip("sklearn.datasets")
    cluster = pytest.importorskip("sklearn.cluster")
    x = datasets.load_digits().data
    theirs = cluster.KMeans(10, init=x[:10], n_init=1, max_iter=300, tol=0.0).fit(x)
    first = at(x[:10].copy())
    ours = fit_local(
        KMeansAlgorithm(10, tol=0.0),
        Batch(x),
        rng=np.random.default_rng(0),
        max_passes=300,
        parameter=first,
    )
    assert ours.objectives[-1] == pytest.approx(theirs.inertia_, rel=1e-6)
    assert np.array_equal(ours.memory["label"], theirs.labels_)


@pytest.mark.parametrize("k", [1, 2, 127, 128, 300])
def test_of_equally_near_centres_the_first_is_found(k: int) -> None:
    distance = np.random.default_rng(k).integers(0, 5, (k, 1_000)).astype(np.float32)
    found = lowest(distance, distance.min(0), rank_of(k))
    assert np.array_equal(found, distance.argmin(0))


def test_the_second_nearest_centre_is_known_for_points_that_have_moved_too() -> None:
    generator = np.random.default_rng(4)
    x, centers = generator.normal(size=(50, 3)), generator.normal(size=(4, 3))
    scratch = scratch_of(4, len(x), x.dtype)
    nearest = Nearest(centers, x.dtype)
    distance = np.sort((centers * centers).sum(1)[:, None] - 2 * centers @ x.T, axis=0)
    for old in (None, nearest.label(x, scratch), np.zeros(len(x), np.int32)):
        found = nearest.moved(x, old, scratch)
        if old is not None:
            np.testing.assert_allclose(found.second(scratch), distance[1], atol=1e-12)
