"""BSPV doubles the batch as long as each doubling makes the objective fall faster per second."""

from collections.abc import Callable

import pytest

from polyrhythm.core.machine import Reason
from polyrhythm.core.sync.barrier.batched import WHOLE, BatchSize, MeasuredBatch
from polyrhythm.observe.reasons import in_words

POINT_NS, BARRIER_NS = 100_000, 20_000_000


def train(
    sizes: BatchSize, quality: Callable[[int], float], most: int, rounds: int = 100
) -> tuple[list[int], list[Reason]]:
    """Train with an objective that falls by `quality(points)` in each round. Returns the batch
    sizes of all rounds and the reasons for changes."""
    objective, told, reasons = 100.0, [], []
    for _ in range(rounds):
        terms = sizes.next()
        assert terms.points is not None
        told.append(terms.points)
        read = objective if terms.probe else None
        objective -= quality(terms.points)
        elapsed_ns = terms.points * POINT_NS + BARRIER_NS
        reason = sizes.on_closed(MeasuredBatch(elapsed_ns, read, most))
        if reason is not None:
            assert in_words(reason)
            reasons.append(reason)
    return told, reasons


def test_the_search_stops_at_the_best_size_and_keeps_it() -> None:
    def quality(points: int) -> float:
        return points**0.5 / 1000

    def per_second(points: int) -> float:
        return quality(points) / (points * POINT_NS + BARRIER_NS)

    tried = [32, 64, 128, 256, 512]
    best = max(tried, key=per_second)
    told, reasons = train(BatchSize.begin(), quality, most=10**6)
    assert told[-1] == best == 256
    assert told[:20] == [points for points in tried for _ in range(4)]
    assert reasons[-1].code == "batch-chosen"
    assert reasons[-1].fields["gain"] == pytest.approx(per_second(best) * 1e9)
    assert all(points == best for points in told[22:])


def test_the_search_ends_when_a_batch_has_all_points() -> None:
    told, reasons = train(BatchSize.begin(), lambda points: points / 1e4, most=100)
    assert sorted(set(told)) == [32, 64, 100]
    assert told[-1] == 100
    assert reasons[-1].fields["points"] == 100


def test_workers_with_few_points_do_not_lower_the_first_size() -> None:
    told, _ = train(BatchSize.begin(64), lambda points: points / 1e4, most=10)
    assert set(told) == {64}


def test_a_larger_batch_that_gains_nothing_is_not_chosen() -> None:
    told, _ = train(BatchSize.begin(), lambda _points: 0.0, most=10**6)
    assert told[-1] == 32


def test_the_first_size_is_kept_if_it_is_the_best() -> None:
    told, _ = train(BatchSize.begin(), lambda _points: 0.01, most=10**6)
    assert told[-1] == 32


@pytest.mark.parametrize("missing", [None, float("nan")])
def test_without_an_objective_the_size_is_kept(missing: float | None) -> None:
    sizes = BatchSize.begin()
    reason = sizes.on_closed(MeasuredBatch(1, missing, 1000))
    assert reason is not None and reason.code == "batch-blind"
    assert sizes.next().points == 32 and not sizes.next().probe
    assert sizes.on_closed(MeasuredBatch(1, missing, 1000)) is None


def test_whole_batches_need_no_objective() -> None:
    assert WHOLE.points is None and not WHOLE.probe
