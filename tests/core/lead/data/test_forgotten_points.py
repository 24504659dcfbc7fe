"""Kind statistics: chunks whose points no member remembers begin their last pass again."""

import operator

import pytest

from polyrhythm.core.lead.data.moves import JOB_ENDS, How
from polyrhythm.core.lead.data.plan import DataPlan
from polyrhythm.core.worker.remembered import Remembered
from polyrhythm.wire.messages import ChunkProgress
from tests.core.lead.data import plans

A, B = (0, 1), (1, 2)
EPOCHS = 3


def plan_of(passes: int, cursor: int, *, forgets: bool = True) -> DataPlan:
    """Worker A has two chunks of 10 points, and has reached this position in both."""
    plan = plans.plan_of(20, 1, 0, EPOCHS, least=10, forgets=forgets)
    plan.share([A])
    visit(plan, passes, cursor)
    return plan


def visit(plan: DataPlan, passes: int, cursor: int) -> None:
    plan.commit(A, tuple(ChunkProgress(chunk, passes, cursor) for chunk in range(2)))
    plan.check()


def positions(plan: DataPlan) -> list[tuple[int, int]]:
    plan.check()
    return [(chunk.passes, chunk.cursor) for chunk in plan.chunks]


def leased(plan: DataPlan) -> list[int]:
    return [each.chunk for each in plan.lease(A).chunks]


@pytest.mark.parametrize("end", ["the heir dies", "the chunks are shared anew"])
def test_a_chunk_stays_with_a_holder_that_was_asked_to_give_it_up(end: str) -> None:
    """The worker's last visits are in flight, and the worker may have forgotten the points after
    these visits."""
    plan = plan_of(2, 5)
    plan.take_changed()
    plan.share([A, B])
    assert plan.take_changed() == {A}
    (moved,) = plan.moves
    asked = plan.lease(A).number
    if end == "the heir dies":
        plan.release([B])
    plan.share([A])
    assert leased(plan) == [1 - moved]
    visit(plan, 3, 0)
    assert positions(plan)[1 - moved] == (3, 0) and positions(plan)[moved] == (2, 5)
    plan.take_changed()
    plan.on_confirmed(A, asked)
    assert plan.take_changed() == {A}
    assert positions(plan)[moved] == (2, 0) and not plan.done
    assert leased(plan) == [0, 1] and not plan.moves


def test_a_contribution_under_two_leases_does_not_finish_a_chunk_that_it_subtracts() -> None:
    """The lease that takes the chunk away arrives between the last visit of the chunk and the
    contribution: a round was folded without this worker, because the timer of the round had expired. If
    the visit counted, the job could end with a sum in which the points of the chunk are missing."""
    plan = plan_of(2, 5)
    worker = Remembered[int](lambda: 0, operator.add, operator.sub)
    worker.take(plan.lease(A))
    for chunk in range(2):
        worker.on_visited(chunk, 10)
    assert worker.collect() == 20, "the sum contains all points"
    first = plan.lease(A).number
    for chunk in range(2):
        worker.on_visited(chunk, 0)
    plan.share([A, B])
    (moved,) = plan.moves
    assert worker.take(plan.lease(A)) == {moved}
    assert worker.collect() == -10, "the contribution reports visits that it subtracts"
    visit(plan, 3, 0)
    plan.take_changed()
    plan.on_confirmed(A, first)
    assert not plan.take_changed() and not plan.done
    plan.on_confirmed(A, plan.lease(A).number)
    assert plan.take_changed() == {B}
    assert positions(plan)[moved] == (2, 0)
    plan.commit(B, (ChunkProgress(moved, 3, 0),))
    assert plan.done


def test_a_contribution_over_two_passes_counts_up_to_the_begin_of_the_last_pass() -> None:
    """If the whole contribution did not count, the next holder would visit points again that were
    visited in the pass before the last."""
    plan = plan_of(1, 5)
    plan.share([A, B])
    (moved,) = plan.moves
    assert plan.commit(A, (ChunkProgress(moved, 3, 0),)) == 5
    assert positions(plan)[moved] == (2, 0)
    plan.take_changed()
    plan.on_confirmed(A, plan.lease(A).number)
    assert plan.take_changed() == {B}
    assert positions(plan)[moved] == (2, 0)


def test_the_last_visits_of_a_chunk_that_is_sent_with_its_memory_count() -> None:
    plan = plan_of(2, 5)
    plan.begin_moves([(0, A, B)], How.SENT, delivery=1)
    visit(plan, 3, 0)
    assert positions(plan) == [(3, 0), (3, 0)]


def test_a_holder_dies_after_its_heir() -> None:
    plan = plan_of(2, 5)
    plan.share([A, B])
    plan.release([B])
    plan.release([A])
    assert positions(plan) == [(2, 0), (2, 0)]
    assert [chunk.holder for chunk in plan.chunks] == [None, None] and not plan.moves


def test_both_die_after_the_points_have_arrived() -> None:
    plan = plan_of(3, 0)
    plan.begin_moves([(0, A, B)], How.SENT, delivery=1)
    plan.on_arrived(0)
    plan.lose([A, B])
    assert positions(plan) == [(2, 0), (2, 0)]
    plan.release([A, B])
    assert [chunk.holder for chunk in plan.chunks] == [None, None] and not plan.moves


def test_a_chunk_whose_points_have_not_arrived_stays_where_it_is_remembered() -> None:
    plan = plan_of(2, 5)
    plan.begin_moves([(0, A, B)], How.SENT, delivery=1)
    plan.take_changed()
    plan.take_back([0], JOB_ENDS)
    assert plan.take_changed() == {A}
    assert positions(plan) == [(2, 5), (2, 5)] and leased(plan) == [0, 1]


def test_a_chunk_that_is_taken_back_when_its_points_have_arrived_begins_again() -> None:
    plan = plan_of(2, 5)
    plan.begin_moves([(0, A, B)], How.SENT, delivery=1)
    plan.take_changed()
    plan.on_arrived(0)
    assert plan.take_changed() == {A}
    asked = plan.lease(A).number
    plan.take_back([0], JOB_ENDS)
    assert leased(plan) == [1]
    plan.take_changed()
    plan.on_confirmed(A, asked)
    assert plan.take_changed() == {A}
    assert positions(plan) == [(2, 0), (2, 5)] and leased(plan) == [0, 1]


def test_a_chunk_that_moves_with_its_memory_keeps_its_position() -> None:
    plan = plan_of(2, 5)
    plan.begin_moves([(0, A, B)], How.SENT, delivery=1)
    plan.on_arrived(0)
    plan.take_changed()
    plan.on_confirmed(A, plan.lease(A).number)
    assert plan.take_changed() == {B}
    assert positions(plan) == [(2, 5), (2, 5)]


@pytest.mark.parametrize(("passes", "after"), [(1, (1, 5)), (2, (2, 0))])
def test_only_the_last_pass_begins_again(passes: int, after: tuple[int, int]) -> None:
    plan = plan_of(passes, 5)
    plan.lose([A])
    assert positions(plan) == [after, after]


def test_without_memory_no_chunk_begins_again() -> None:
    plan = plan_of(2, 5, forgets=False)
    plan.share([A, B])
    plan.release([B])
    plan.release([A])
    assert positions(plan) == [(2, 5), (2, 5)]


def test_a_version_has_only_the_passes_of_the_contributions_in_it() -> None:
    plan = plan_of(2, 5)
    plan.commit(A, (ChunkProgress(0, 3, 0),))
    plan.commit(A, (ChunkProgress(1, 2, 8),), ahead=True)
    plan.commit(A, (ChunkProgress(1, 3, 0),), ahead=True)
    assert (plan.passes, plan.folded_passes) == (3, 2)
    plan.settle()
    assert plan.folded_passes == 3


def test_a_version_has_no_pass_over_a_chunk_that_was_forgotten_during_its_fold() -> None:
    plan = plan_of(3, 0)
    plan.lose([A])
    assert plan.folded_passes == 2
