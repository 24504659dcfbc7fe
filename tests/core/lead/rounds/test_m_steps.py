"""Kind statistics: M-steps are held while many points are missing from the sum, but not for ever."""

import pytest

from polyrhythm.core.lead.data.chunks import missing_points
from polyrhythm.core.lead.data.moves import How
from polyrhythm.core.lead.data.plan import DataPlan
from polyrhythm.core.lead.rounds.modes import MStepHold, SummedPoints
from polyrhythm.wire.messages import ChunkProgress
from tests.core.lead.data import plans

A, B, C = (0, 1), (1, 2), (2, 3)


def decide(hold: MStepHold, *versions: tuple[int, int]) -> list[str]:
    """The codes of all changes. Each version has the missing points, of 100, and the visited ones."""
    found = [hold.decide(SummedPoints(100, missing, visited)) for missing, visited in versions]
    return ["" if reason is None else reason.code for reason in found]


def test_the_beginning_of_a_job_is_not_held() -> None:
    hold = MStepHold()
    assert decide(hold, (100, 0), (80, 20), (40, 60), (1, 94), (60, 110)) == [""] * 5
    assert not hold.whole_only
    decide(hold, (0, 120))
    assert hold.whole_only


def test_m_steps_are_held_until_all_points_are_back() -> None:
    hold = MStepHold()
    changes = decide(hold, (0, 100), (25, 120), (10, 140), (2, 160), (1, 170), (0, 180), (0, 190))
    assert changes == ["", "m-steps-held", "", "", "", "m-steps-resumed", ""]


def test_the_reasons_have_the_numbers() -> None:
    hold = MStepHold()
    decide(hold, (0, 100))
    held = hold.decide(SummedPoints(100, 25, 120))
    assert held is not None and held.fields == {"absent": 25, "points": 100}
    assert hold.whole_only
    decide(hold, (5, 140))
    ended = hold.decide(SummedPoints(100, 0, 150))
    assert ended is not None
    assert ended.fields == {"absent": 0, "points": 100, "versions": 2, "passes": 2}


def test_a_hold_for_a_few_points_is_not_told() -> None:
    hold = MStepHold()
    assert decide(hold, (0, 100), (5, 110), (3, 120), (0, 130), (1, 140)) == [""] * 5
    assert hold.whole_only
    assert decide(hold, (6, 150), (5, 160), (0, 170)) == ["m-steps-held", "", "m-steps-resumed"]


def test_a_hold_ends_after_two_passes_and_does_not_begin_again_without_the_points() -> None:
    hold = MStepHold()
    assert decide(hold, (0, 100), (25, 120), (20, 319)) == ["", "m-steps-held", ""]
    assert hold.whole_only
    assert decide(hold, (20, 320), (25, 330), (1, 400)) == ["m-steps-without", "", ""]
    assert not hold.whole_only
    assert decide(hold, (0, 410), (6, 420)) == ["", "m-steps-held"], "the points had come back"


def test_deaths_one_after_the_other_do_not_hold_for_longer() -> None:
    hold = MStepHold()
    decide(hold, (0, 100))
    codes = decide(hold, *((25 + visited % 7, visited) for visited in range(120, 420, 20)))
    assert codes.count("m-steps-held") == codes.count("m-steps-without") == 1


def test_a_job_without_a_data_set_is_not_held() -> None:
    hold = MStepHold()
    assert [hold.decide(SummedPoints(0, 0, visited)) for visited in (0, 5)] == [None, None]


def plan_of(*members: tuple[int, int]) -> DataPlan:
    plan = plans.plan_of(60, len(members), least=10, forgets=True)
    plan.share(list(members))
    return plan


def visit(plan: DataPlan, member: tuple[int, int], passes: int, cursor: int = 0) -> None:
    plan.commit(member, tuple(ChunkProgress(each, passes, cursor) for each in plan.held_by(member)))


def test_points_are_missing_until_they_were_visited() -> None:
    plan = plan_of(A, B)
    assert missing_points(plan.chunks, [A, B]) == 60
    visit(plan, A, 0, 5)
    assert missing_points(plan.chunks, [A, B]) == 45
    visit(plan, A, 1)
    visit(plan, B, 3)
    assert missing_points(plan.chunks, [A, B]) == 0
    visit(plan, A, 2, 5)
    assert missing_points(plan.chunks, [A, B]) == 0


def test_the_points_of_a_dead_worker_are_missing_until_the_heirs_have_visited_them() -> None:
    plan = plan_of(A, B)
    visit(plan, A, 1)
    visit(plan, B, 1)
    assert missing_points(plan.chunks, [B]) == 30, "the fold deletes the row of the dead worker"
    plan.release([A])
    plan.share([B])
    assert missing_points(plan.chunks, [B]) == 30
    visit(plan, B, 1, 4)
    assert missing_points(plan.chunks, [B]) == 18, "of three chunks, each lacks six points"
    visit(plan, B, 2)
    assert missing_points(plan.chunks, [B]) == 0


def test_points_are_missing_when_their_holder_has_confirmed_that_it_subtracted_them() -> None:
    plan = plan_of(A, B)
    visit(plan, A, 1)
    visit(plan, B, 1)
    plan.share([A, B, C])
    assert missing_points(plan.chunks, [A, B, C]) == 0
    plan.take_changed()
    plan.on_confirmed(A, plan.lease(A).number)
    assert plan.take_changed() == {C}
    assert missing_points(plan.chunks, [A, B, C]) == 10
    visit(plan, C, 2)
    assert missing_points(plan.chunks, [A, B, C]) == 0


@pytest.mark.parametrize("arrived", [True, False])
def test_points_that_move_with_their_memory_are_not_missing(arrived: bool) -> None:
    plan = plan_of(A, B)
    visit(plan, A, 1)
    visit(plan, B, 1)
    plan.begin_moves([(plan.held_by(A)[0], A, B)], How.SENT, delivery=1)
    if arrived:
        plan.on_arrived(next(iter(plan.moves)))
        plan.on_confirmed(A, plan.lease(A).number)
    assert missing_points(plan.chunks, [A, B]) == 0
