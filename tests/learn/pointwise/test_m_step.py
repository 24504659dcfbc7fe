"""The M-step of a worker: which versions it computes parameters from, and when it asks the algorithm
whether the parameters are final."""

import numpy as np
import pytest

from polyrhythm.learn.pointwise.algorithm import Arrays, Batch
from polyrhythm.learn.pointwise.chunks import COUNTS
from polyrhythm.learn.pointwise.fuzzy import FuzzyCMeansAlgorithm
from polyrhythm.learn.pointwise.kmeans import KMeansAlgorithm
from polyrhythm.learn.pointwise.layout import Array
from polyrhythm.learn.pointwise.m_step import CONVERGED, HALTED, MStep

POINTS = 50


def visited(algorithm: KMeansAlgorithm) -> tuple[Arrays, Array]:
    """First parameters, and the statistics of points that were visited with them."""
    x = np.random.default_rng(0).normal(size=(POINTS, 3))
    first = algorithm.init_parameter(Batch(x), np.random.default_rng(0))
    found = algorithm.update_points(Batch(x), first, algorithm.memory(POINTS))
    return first, algorithm.layout(first).flat(found)


def test_a_torn_version_changes_no_parameters() -> None:
    algorithm = KMeansAlgorithm(4)
    first, found = visited(algorithm)
    step = MStep(algorithm, first, POINTS, 0)
    row = step.tensors[0].numpy()
    row[0], row[COUNTS:] = POINTS, found
    step.on_version(1, joined=False, final=False, torn=True)
    assert np.array_equal(step.parameter["centers"], first["centers"])
    assert step.unsent, "the servers must get these parameters as those of this version"
    step.on_version(2, joined=False, final=False)
    assert not np.array_equal(step.parameter["centers"], first["centers"])


def test_a_version_that_lacks_points_changes_no_parameters_and_has_no_objective() -> None:
    algorithm = KMeansAlgorithm(4)
    first, found = visited(algorithm)
    step = MStep(algorithm, first, POINTS, 0)
    row = step.tensors[0].numpy()
    row[0], row[COUNTS:] = POINTS, found
    step.on_version(1, joined=False, final=False, whole_only=True)
    before = step.parameter["centers"].copy()
    assert not np.array_equal(before, first["centers"]), "the sum is whole"
    assert step.objective is not None
    row[0], row[COUNTS:] = POINTS - 20, found / 2
    step.on_version(2, joined=False, final=False, whole_only=True)
    assert np.array_equal(step.parameter["centers"], before)
    assert step.objective is None, "a target must not compare it with that of the last version"
    assert step.unsent, "the servers must get these parameters as those of this version"
    joined = MStep(algorithm, first, POINTS, 0)
    joined.tensors[0][:] = step.tensors[0]
    joined.on_version(2, joined=True, final=False, whole_only=True)
    assert np.array_equal(joined.parameter["centers"], first["centers"]), "those of the servers"


def test_a_centre_without_points_moves_only_if_every_point_is_in_the_sum() -> None:
    algorithm = KMeansAlgorithm(2)
    x = np.random.default_rng(0).normal(size=(POINTS, 2))
    centers = np.array([[0.0, 0.0], [99.0, 0.0]])
    first = {"centers": centers, "variance": np.ones(()), "offset": np.zeros(2)}
    found = algorithm.update_points(Batch(x), first, algorithm.memory(POINTS))
    step = MStep(algorithm, first, POINTS, 0)
    row = step.tensors[0].numpy()
    row[0], row[COUNTS:] = POINTS - 1, algorithm.layout(first).flat(found)
    step.on_version(1, joined=False, final=False)
    mean, other = step.parameter["centers"]
    assert np.allclose(mean, x.mean(0)) and np.array_equal(other, [99.0, 0.0])
    row[0] = POINTS
    step.on_version(2, joined=False, final=False)
    mean, other = step.parameter["centers"]
    assert np.allclose(mean, x.mean(0)) and 0 < np.linalg.norm(other - mean) < 1


def test_votes_to_halt_end_the_job_only_if_every_point_has_voted() -> None:
    algorithm = KMeansAlgorithm(4)
    first, found = visited(algorithm)
    step = MStep(algorithm, first, POINTS, 0)
    row = step.tensors[0].numpy()
    ends = []
    for version, voted in enumerate((POINTS - 10, POINTS)):
        # all points that were visited so far have voted
        row[0], row[1], row[COUNTS:] = voted, voted, found
        step.on_version(version, joined=False, final=False)
        ends.append(step.terminated)
    assert ends == ["", HALTED]


@pytest.mark.parametrize("rounds", [True, False])
def test_parameters_are_final_only_if_every_point_was_visited_with_them(rounds: bool) -> None:
    algorithm = KMeansAlgorithm(4, tol=0.0)
    first, found = visited(algorithm)
    step = MStep(algorithm, first, POINTS, 0, rounds=rounds)
    row = step.tensors[0].numpy()
    row[0], row[COUNTS:] = POINTS, found
    # without rounds, points of the next generation may have been visited before the check
    between = 1 if rounds else 2
    ends = []
    for version, generations in enumerate((0, 1, 1.5, 1.98, 2)):
        row[2] = between * generations * POINTS
        step.on_version(version, joined=version == 0, final=False)
        ends.append(step.terminated)
    assert ends == ["", "", "", "", CONVERGED]


def test_a_worker_that_joins_within_a_generation_checks_the_end_a_generation_later() -> None:
    algorithm = KMeansAlgorithm(4, tol=0.0)
    first, found = visited(algorithm)
    step = MStep(algorithm, first, POINTS, 0)
    row = step.tensors[0].numpy()
    row[0], row[COUNTS:] = POINTS, found
    ends = []
    for version, generations in enumerate((6.5, 7, 7.5, 8, 8.5, 9)):
        row[2] = generations * POINTS
        step.on_version(version, joined=version == 0, final=False)
        ends.append(step.terminated)
    # at 8, the parameters are compared with the first ones; at 7, half of the points are older
    assert ends == ["", "", "", "", "", CONVERGED]


def test_the_generation_under_way_does_not_fall_when_points_are_missing_from_the_sum() -> None:
    algorithm = KMeansAlgorithm(4)
    first, found = visited(algorithm)
    step = MStep(algorithm, first, POINTS, 0)
    row = step.tensors[0].numpy()
    row[0], row[2], row[COUNTS:] = POINTS, 60.5 * POINTS, found
    step.on_version(1, joined=True, final=False)
    assert step.generation == 61
    row[0], row[2] = POINTS - 2, 60.5 * (POINTS - 2)
    step.on_version(2, joined=False, final=False)
    assert step.generation == 61, "the next visits still count for this generation"


def test_expected_statistics_stand_for_points_that_were_not_visited_yet() -> None:
    """A quarter of the points, all from one end of the data, moves the centres of fuzzy c-means by a
    part of the way to the best ones, and not all of them to that end."""
    algorithm = FuzzyCMeansAlgorithm(4)
    x = np.sort(np.random.default_rng(0).normal(size=(POINTS, 1)), axis=0)
    first = algorithm.init_parameter(Batch(x), np.random.default_rng(0))
    expected = algorithm.update_points(Batch(x), first, {})
    best = algorithm.update_parameter(expected, first)
    step = MStep(algorithm, first, POINTS, 0, expected=expected)
    row = step.tensors[0].numpy()
    part = algorithm.update_points(Batch(x[:13]), first, {})
    rest = algorithm.update_points(Batch(x[13:]), first, {})
    row[0] = row[2] = 13
    row[COUNTS:] = algorithm.layout(first).flat(part)
    step.on_version(1, joined=False, final=False)
    total = {name: part[name] + (POINTS - 13) / POINTS * expected[name] for name in part}
    wanted = algorithm.update_parameter(total, first)["centers"]
    assert np.allclose(step.parameter["centers"], wanted)
    assert step.objective is None, "it is not a sum over all points"
    row[0] = row[2] = POINTS
    row[COUNTS:] = algorithm.layout(first).flat({name: part[name] + rest[name] for name in part})
    step.on_version(2, joined=False, final=False)
    assert np.allclose(step.parameter["centers"], best["centers"]), (
        "nothing stands for visited points"
    )


def test_expected_statistics_are_used_in_the_first_pass_only() -> None:
    algorithm = FuzzyCMeansAlgorithm(2)
    x = np.random.default_rng(0).normal(size=(POINTS, 2))
    first = algorithm.init_parameter(Batch(x), np.random.default_rng(0))
    found = algorithm.update_points(Batch(x), first, {})
    half = algorithm.update_points(Batch(x[:25]), first, {})
    step = MStep(algorithm, first, POINTS, 0, expected=found)
    row = step.tensors[0].numpy()
    row[0], row[2], row[COUNTS:] = 25, 3 * 25, algorithm.layout(first).flat(half)
    step.on_version(9, joined=True, final=False)  # a hold has ended without the missing points
    wanted = algorithm.update_parameter(half, first)["centers"]
    assert np.allclose(step.parameter["centers"], wanted)
