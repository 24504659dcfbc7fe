"""Cadence: when a worker contributes and how many points its steps have, for each policy."""

import pytest
from msgspec.structs import replace

from polyrhythm.core.effects import Resume
from polyrhythm.core.sync.registry import POLICIES
from polyrhythm.core.worker.cadence import (
    ByClock,
    ByCount,
    ByPoints,
    ByPrediction,
    Due,
    NextSteps,
    Standing,
    after_step,
    choose_cadence,
    decide,
)
from polyrhythm.wire.messages import JobSpec

MS = 10**6
TERMS = Resume(0, stop=False)
CADENCES = {
    "bsp": ByCount,
    "ssp": ByCount,
    "ssp-restart": ByCount,
    "asp": ByCount,
    "psp": ByPrediction,
    "bspb": ByPoints,
    "bspv": ByPoints,
    "bspg": ByPoints,
    "fsp": ByClock,
}


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_has_a_cadence(name: str) -> None:
    sync = f"{name}:2" if POLICIES[name].argument else name
    assert type(choose_cadence(JobSpec(job="", sync=sync))) is CADENCES[name]


def test_a_worker_contributes_after_each_step_or_after_its_local_steps() -> None:
    each = choose_cadence(JobSpec(job="", sync="bsp"))
    fourth = choose_cadence(JobSpec(job="", sync="asp", kind="local", local_steps=4))
    for cadence in (each, fourth):
        cadence.begin(10, 2)
    assert each.due(Standing(steps=1), TERMS) is Due.YES
    assert each.next_steps(Standing(), TERMS) == NextSteps(10, 10)
    assert fourth.due(Standing(steps=3), TERMS) is Due.NO
    assert fourth.due(Standing(steps=4), TERMS) is Due.YES
    assert fourth.next_steps(Standing(steps=1), TERMS) == NextSteps(30, 10)


def test_under_psp_a_worker_takes_the_predicted_steps_and_waits_for_its_last_contribution() -> None:
    cadence, terms = choose_cadence(JobSpec(job="", sync="psp")), replace(TERMS, steps=3)
    cadence.begin(10, 2)
    assert cadence.due(Standing(steps=2), terms) is Due.NO
    assert cadence.due(Standing(steps=3), terms) is Due.YES
    assert cadence.due(Standing(steps=5, in_flight=True), terms) is Due.NO
    assert cadence.next_steps(Standing(steps=1), terms) == NextSteps(20, 10)
    assert cadence.next_steps(Standing(steps=5, in_flight=True), terms) == NextSteps(30, 10)
    assert cadence.looks(in_flight=True) and not cadence.looks(in_flight=False)


def test_under_bspb_a_worker_contributes_when_it_has_visited_its_whole_lease() -> None:
    cadence, terms = choose_cadence(JobSpec(job="", sync="bspb")), replace(TERMS, points=-1)
    cadence.begin(10, 2)
    assert cadence.due(Standing(points=34, everything=35), terms) is Due.NO
    assert cadence.due(Standing(points=35, everything=35), terms) is Due.YES
    assert cadence.next_steps(Standing(points=10, everything=35), terms) == NextSteps(25, 10)
    assert cadence.next_points(Standing(points=30, everything=35), terms) == 5


def test_under_bspv_the_last_batch_of_a_round_has_only_the_missing_points() -> None:
    cadence, terms = choose_cadence(JobSpec(job="", sync="bspv")), replace(TERMS, points=21)
    cadence.begin(10, 2)
    assert cadence.next_points(Standing(everything=100), terms) == 10
    assert cadence.next_points(Standing(points=10, everything=100), terms) == 11, "not 10 and 1"
    assert cadence.due(Standing(points=21, everything=100), terms) is Due.YES
    assert cadence.due(Standing(points=15, everything=15), terms) is Due.YES, "it has no more"


def test_under_fsp_the_interval_ends_at_most_half_a_micro_batch_early() -> None:
    cadence = choose_cadence(JobSpec(job="", sync="fsp", kind="statistics"))
    cadence.begin(64, 2)
    assert cadence.due(Standing(left_ns=1), TERMS) is Due.NO, "the cost of a step is unknown"
    for _ in range(2):
        cadence.on_measured(8, 8 * MS)  # a point takes 1 ms, so a micro-batch takes 8 ms
    assert cadence.due(Standing(left_ns=5 * MS), TERMS) is Due.NO
    assert cadence.due(Standing(left_ns=4 * MS), TERMS) is Due.YES
    assert cadence.due_in_ns(100 * MS) == 96 * MS


def test_under_fsp_the_rest_of_the_interval_is_divided_into_equal_micro_batches() -> None:
    cadence = choose_cadence(JobSpec(job="", sync="fsp", kind="statistics"))
    cadence.begin(64, 2)
    for _ in range(2):
        cadence.on_measured(8, 8 * MS)
    assert cadence.next_steps(Standing(left_ns=80 * MS), TERMS) == NextSteps(80, 8)
    lease = Standing(left_ns=80 * MS, points=80, everything=100)
    assert cadence.next_steps(lease, TERMS) == NextSteps(24, 8), "20 points of its lease are left"


def test_under_fsp_gradients_are_computed_over_batches_of_the_users_size() -> None:
    cadence = choose_cadence(JobSpec(job="", sync="fsp", kind="gradient"))
    cadence.begin(64, 2)
    for _ in range(2):
        cadence.on_measured(64, 8 * MS)
    assert cadence.next_steps(Standing(left_ns=32 * MS), TERMS) == NextSteps(4 * 64, 64)


def test_under_fsp_a_worker_that_has_visited_its_lease_asks_for_the_barrier() -> None:
    cadence = choose_cadence(JobSpec(job="", sync="fsp", kind="gradient"))
    cadence.begin(64, 2)
    visited = Standing(left_ns=10**9, points=100, everything=100)
    assert cadence.due(visited, TERMS) is Due.PASSED_ALL


def test_under_fsp_a_shortened_local_step_counts_by_its_points() -> None:
    cadence = choose_cadence(JobSpec(job="", sync="fsp", kind="local"))
    cadence.begin(64, 2)
    assert cadence.share(16) == 0.25
    assert cadence.share(65) == 1.0


@pytest.mark.parametrize("sync", ["bsp", "ssp:2", "asp", "psp", "bspb", "bspv", "fsp"])
def test_a_worker_that_is_told_to_leave_contributes_at_once(sync: str) -> None:
    cadence = choose_cadence(JobSpec(job="", sync=sync, kind="local", local_steps=9))
    terms = replace(TERMS, steps=9, points=99)
    flying = Standing(1, 10, 1000, in_flight=True, left_ns=10**9)
    assert decide(cadence, flying, terms, asked=True, called=False) is Due.YES
    landed = replace(flying, in_flight=False)
    assert decide(cadence, landed, terms, asked=False, called=True) is Due.YES
    assert decide(cadence, landed, terms, asked=False, called=False) is Due.NO


# -- batches that are loaded ahead -----------------------------------------------------------------


def planned(sync: str, terms: Resume, batches: int, everything: float) -> list[int]:
    """Return the sizes of the next batches, each planned before any of them is visited."""
    cadence = choose_cadence(JobSpec(job="", sync=sync))
    cadence.begin(10, 2)
    sizes: list[int] = []
    for _ in range(batches):
        standing = Standing(everything=everything)
        for points in sizes:
            standing = after_step(cadence, standing, terms, points)
        sizes.append(cadence.next_points(standing, terms))
    return sizes


def test_batches_are_planned_beyond_the_end_of_a_round() -> None:
    assert planned("bsp", TERMS, 3, 100) == [10, 10, 10]
    assert planned("bspv", replace(TERMS, points=25), 6, 100) == [10, 10, 5, 10, 10, 5]
    assert planned("bspb", replace(TERMS, points=-1), 5, 34) == [10, 10, 10, 4, 10]


def test_a_batch_that_was_planned_for_another_number_of_points_does_not_fit() -> None:
    cadence = ByPoints()
    cadence.begin(10, 2)
    terms = replace(TERMS, points=25)
    assert cadence.is_still_usable(10, Standing(points=10, everything=100), terms)
    assert not cadence.is_still_usable(10, Standing(points=20, everything=100), terms)


def test_a_micro_batch_that_would_end_long_after_the_interval_does_not_fit() -> None:
    """A point takes one millisecond, and a usual micro-batch takes eight milliseconds."""
    cadence = ByClock("statistics")
    cadence.begin(100, 2)
    assert cadence.is_still_usable(100, Standing(left_ns=MS), TERMS), "nothing is measured yet"
    for points in (8, 4, 12, 8, 6):
        cadence.on_measured(points, points * MS)
    assert cadence.takes_ns(8) == pytest.approx(8 * MS, rel=0.01)
    assert cadence.is_still_usable(10, Standing(left_ns=5 * MS), TERMS)
    assert not cadence.is_still_usable(20, Standing(left_ns=5 * MS), TERMS)


def test_micro_batches_are_planned_beyond_the_end_of_an_interval() -> None:
    cadence = ByClock("statistics")
    cadence.begin(100, 2)
    for points in (8, 4, 12, 8, 6):
        cadence.on_measured(points, points * MS)
    terms = replace(TERMS, interval_ns=40 * MS)
    standing = after_step(cadence, Standing(1, 8, 100, left_ns=20 * MS), terms, 8)
    assert (standing.steps, standing.points) == (2, 16)
    assert standing.left_ns == pytest.approx(12 * MS, rel=0.01)
    assert after_step(cadence, standing, terms, 8) == Standing(0, 0, 100, left_ns=40 * MS)
