"""FSP §3.3: the synchronous interval. Each test quotes the sentence that it checks."""

from itertools import pairwise

import pytest

from polyrhythm.core.sync.gain import Line, best_interval
from polyrhythm.core.sync.interval import AutoInterval, BinaryInterval, Measured, Terms

MS = 10**6
PASS_NS = 1600 * MS
BATCH_NS = 40 * MS
WARM_UP, MEASURING = 5, 4 * (4 + 2) + 4 + 1
"""Rounds of the search: first to 40 ms, then parts of four and of two rounds in turn."""


def run(
    interval: AutoInterval | BinaryInterval, rates: dict[int, float], rounds: int
) -> list[Terms]:
    """The objective falls by `rates[interval in ms]` per second of work; barriers take 10 ms."""
    objective, told = 1000.0, []
    for _ in range(rounds):
        terms = interval.next()
        told.append(terms)
        read = objective if terms.probe else None
        objective -= rates.get(terms.interval_ns // MS, 1.0) * terms.interval_ns / 1e9
        batches = terms.interval_ns / BATCH_NS
        interval.closed(
            Measured(terms.interval_ns, 10 * MS, read, 1 * MS, PASS_NS, batches=batches)
        )
    return told


def test_eq_7() -> None:
    """ "maximize the optimization gain w.r.t. f in the valid training time": T - phi T / (eta + phi)
    is T eta / (eta + phi), and T is the same for all."""
    line, phi, total = Line(-0.7, 2.0), 0.05, 30.0
    for eta in (0.01, 0.3, 2.0):
        valid = total - phi * total / (eta + phi)
        assert total * line.gain(eta, phi) == pytest.approx(valid * (-0.7 * eta + 2.0))
    eta = best_interval(-0.7, 2.0, phi)
    assert eta is not None
    assert line.gain(eta, phi) > max(line.gain(eta * 0.9, phi), line.gain(eta * 1.1, phi))


@pytest.mark.parametrize("phi", [0.002, 0.02, 0.3])
@pytest.mark.parametrize(("a", "b"), [(-2.0, 1.0), (-0.3, 4.0), (-40.0, 5.0)])
def test_eta_star_against_brute_force(a: float, b: float, phi: float) -> None:
    """ "we can compute an optimal interval": no other one of a hundred thousand gains more."""
    eta = best_interval(a, b, phi)
    assert eta is not None
    zero = -b / a  # beyond it nothing is gained any more
    tried = max(
        (zero * at / 100_000 for at in range(1, 100_000)), key=lambda x: Line(a, b).gain(x, phi)
    )
    assert eta == pytest.approx(tried, rel=0.01, abs=2 * zero / 100_000)
    assert Line(a, b).gain(eta, phi) >= Line(a, b).gain(tried, phi)


def test_quality_and_quantity() -> None:
    """ "hit a "sweet spot" between quality and quantity": dearer barriers ask for longer intervals,
    a stronger need for fresh parameters for shorter ones."""
    by_barrier = [best_interval(-1, 1, phi) or 0 for phi in (0.001, 0.01, 0.1, 1)]
    by_need = [best_interval(-need, 1, 0.1) or 0 for need in (4, 2, 1, 0.5)]
    assert by_barrier == sorted(by_barrier)
    assert by_need == sorted(by_need)


def test_two_points_of_the_line() -> None:
    """ "which requires two points (...) with different interval attempts for estimation": eta and
    "eta_{i+1} = 2 eta_i", but without the paper's rollback."""
    told = run(AutoInterval(), {}, rounds=WARM_UP + MEASURING)
    assert {terms.interval_ns for terms in told[WARM_UP:]} == {40 * MS, 80 * MS}


def test_the_objective_is_gained_in_both_measurements_for_the_same_time() -> None:
    """ "the training quality during the valid elapsed time (...) = 2 eta": parts at eta and at 2 eta
    have the same time of work."""
    told = run(AutoInterval(), {}, rounds=WARM_UP + MEASURING)[WARM_UP:]
    ends = [at for at, terms in enumerate(told) if terms.probe]
    work = {sum(terms.interval_ns for terms in told[start:end]) for start, end in pairwise(ends)}
    assert work == {4 * 40 * MS}


def test_stages() -> None:
    """ "once such a delay is detected, we should enter into the next stage and recompute another
    eta*" """
    interval = AutoInterval()
    run(interval, {40: 3.0, 80: 2.0}, rounds=WARM_UP + MEASURING)
    first = interval.next().interval_ns
    delayed = run(interval, {}, rounds=1000)
    lengths = [terms.interval_ns / first for terms in delayed]
    over = lengths.index(2.0)
    assert set(lengths[:over]) == {1.0}
    assert lengths[over - 4 : over + 6] == [1, 1, 1, 1, 2, 2, 1, 1, 1, 1]


def test_recursive_binary_searching() -> None:
    """ "eta = eta / lambda takes effect if the change (...) w.r.t. eta after some iteration, is
    smaller than (that) w.r.t. eta / 2, which is accumulated across the strictly subsequent lambda
    iterations", "recursively continued until the result is reversed" """
    interval = BinaryInterval()
    told = run(interval, {1600: 1.0, 800: 2.0, 400: 3.0, 200: 2.0, 100: 9.0}, rounds=9)
    lengths_ms = [terms.interval_ns // MS for terms in told]
    assert lengths_ms == [200, 1600, 800, 800, 400, 400, 200, 200, 100]
    assert interval.next().interval_ns == 400 * MS


def test_binary_is_fixed_afterwards() -> None:
    """ "Hence, we also fix eta unless the environment changes." """
    interval = BinaryInterval()
    run(interval, {1600: 1.0, 800: 2.0, 400: 1.0}, rounds=7)
    later = run(interval, {}, rounds=50)
    assert set(later) == {Terms(800 * MS, probe=False)}
