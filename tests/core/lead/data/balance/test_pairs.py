"""Super-workers, and Eq. 9 of FSP in its linear form, compared with a search for its solution."""

import random

import pytest

from polyrhythm.core.lead.data.balance.decision import (
    Pace,
    SuperWorker,
    decide,
    group,
    pair,
    points_by_passes,
    visits_by_finish,
)


def workers(first: int, count: int) -> tuple[tuple[int, int], ...]:
    return tuple((first + at, 1) for at in range(count))


def random_pair(rng: random.Random) -> tuple[SuperWorker, SuperWorker, float]:
    """A slow and a fast super-worker. The slow one is predicted to be behind after the returned
    time."""
    while True:
        one = SuperWorker(workers(0, rng.randint(1, 8)), rng.randint(20, 500), 0, 0, 0, 0)
        slow = SuperWorker(one.keys, one.points, rng.uniform(1, 20), 0, rng.uniform(0, 3), 0)
        many = workers(8, rng.randint(1, 8))
        fast = SuperWorker(
            many, rng.randint(20, 500), rng.uniform(0.2, 5), 0, slow.passes + rng.uniform(0, 3), 0
        )
        tau_s = rng.uniform(50, 5000)
        if slow.predicted(tau_s) < fast.predicted(tau_s):
            return slow, fast, tau_s


def difference(slow: SuperWorker, fast: SuperWorker, tau_s: float, moved: float) -> float:
    """How many passes the slow workers are behind after this time, if each of them gives `moved`
    points away."""
    beta = len(slow.keys) / len(fast.keys)
    lost_s = (fast.passes - slow.passes) * beta * moved * fast.seconds
    there = fast.passes + (tau_s - lost_s) / ((fast.points + beta * moved) * fast.seconds)
    return there - slow.passes - tau_s / ((slow.points - moved) * slow.seconds)


def test_eq_9_agrees_with_a_search_on_1000_random_pairs() -> None:
    rng, enough = random.Random(9), 0
    for _ in range(1000):
        slow, fast, tau_s = random_pair(rng)
        beta = len(slow.keys) / len(fast.keys)
        found = points_by_passes(slow, fast, tau_s)
        tried = [at / 4 for at in range(4 * int(slow.points))]
        best = min(tried, key=lambda moved: abs(difference(slow, fast, tau_s, moved)))
        lost_s = (fast.passes - slow.passes) * beta * best * fast.seconds
        if abs(lost_s - tau_s) < 0.05 * tau_s:
            # near the limit between the two cases, the search is too coarse to tell which case
            # applies
            continue
        if lost_s < tau_s:
            enough += 1
            assert found == pytest.approx(best, abs=0.25)
        else:
            best = min(
                tried,
                key=lambda moved: abs(
                    (slow.points - moved) * slow.seconds - beta * moved * fast.seconds
                ),
            )
            assert found == pytest.approx(best, abs=0.25)
    assert 300 < enough < 980


def test_visits_by_finish_lets_both_finish_at_the_same_time() -> None:
    rng = random.Random(4)
    for _ in range(200):
        slow = SuperWorker(workers(0, rng.randint(1, 4)), 100, rng.uniform(1, 9), 0, 0, 100)
        fast = SuperWorker(workers(4, rng.randint(1, 4)), 100, 1.0, 0, 0, rng.uniform(0, 100))
        beta, moved = len(slow.keys) / len(fast.keys), visits_by_finish(slow, fast)
        slow_s = (slow.left - moved) * slow.seconds
        assert slow_s == pytest.approx((fast.left + beta * moved) * fast.seconds)


def test_workers_within_10_percent_form_a_super_worker() -> None:
    paces = [
        Pace((0, 1), 100, 1.0, 0, 2.0),
        Pace((1, 1), 105, 1.05, 0, 2.1),
        Pace((2, 1), 100, 1.2, 0, 2.0),
        Pace((3, 1), 100, 1.0, 0, 2.6),
        Pace((4, 1), 50, 1.0, 0, 2.0),
    ]
    groups = {each.keys for each in group(paces)}
    assert groups == {((0, 1), (1, 1)), ((2, 1),), ((3, 1),), ((4, 1),)}
    assert {each.keys for each in group(reversed(paces))} == groups


def test_the_slowest_is_paired_with_the_fastest_and_the_middle_is_left() -> None:
    ranked = [SuperWorker(((at, 1),), 1, 1, 0, at, 0) for at in range(5)]
    found = [(slow.keys[0][0], fast.keys[0][0]) for slow, fast in pair(ranked)]
    assert found == [(0, 4), (1, 3)]


def paces(
    *seconds: float, error: float = 0.0, passes: float = 1.0, left: float | None = None
) -> list[Pace]:
    return [Pace((at, 1), 1000, each, error, passes, left) for at, each in enumerate(seconds)]


def test_nothing_moves_between_equal_workers() -> None:
    decided = decide(paces(1.0, 1.05, 0.98, 1.0), None, 40, 10)
    assert decided.moves == ()
    assert decided.reason.code == "balance-alike"


def test_nothing_moves_where_the_speeds_are_not_known_well() -> None:
    decided = decide(paces(1.0, 1.0, 1.0, 1.5, error=0.3), None, 40, 10)
    assert decided.moves == ()
    assert decided.reason.code == "balance-uncertain"


def test_nothing_moves_where_the_job_ends_before_passes_differ() -> None:
    decided = decide(paces(1.0, 1.0, 1.0, 4.0), 500.0, 40, 10)
    assert decided.moves == ()
    assert decided.reason.code == "balance-even"


def test_a_slow_worker_gives_points_to_all_fast_ones() -> None:
    (move,) = decide(paces(1.0, 1.0, 1.0, 4.0), None, 40, 10).moves
    assert (move.sources, move.targets) == (((3, 1),), ((0, 1), (1, 1), (2, 1)))
    # the slow worker, with N - x points at 4 s each, then takes as long as a fast one with N + x/3
    # points at 1 s each
    assert move.points == pytest.approx(3000 / (4 + 1 / 3))
    assert (move.reason.code, move.reason.fields["times"]) == ("balance-passes", 4.0)


def test_in_the_last_pass_all_finish_at_the_same_time() -> None:
    (move,) = decide(paces(1.0, 1.0, 1.0, 4.0, passes=0, left=1000), None, 40, 10).moves
    assert move.ends
    assert move.reason.code == "balance-finish"
    assert (1000 - move.points) * 4 == pytest.approx(1000 + move.points / 3)
    # the workers finish less than two rounds apart, so a move would come too late
    assert decide(paces(1.0, 4.0, passes=0.99, left=10), None, 1, 20).moves == ()


def test_workers_whose_speeds_differ_by_less_than_their_errors_form_one_group() -> None:
    """If workers form a group, points go to all of them, and not only to the one whose measured speed is
    the highest by chance."""
    uncertain = [Pace((n, 1), 100, 1.0 + 0.2 * n, 0.3, 1.0) for n in range(3)]
    certain = [Pace((n, 1), 100, 1.0 + 0.2 * n, 0.05, 1.0) for n in range(3)]
    assert [each.keys for each in group(uncertain)] == [((0, 1), (1, 1), (2, 1))]
    assert len(group(certain)) == 3
