"""Workers finish a pass together: which of its remaining visits move to another worker."""

from dataclasses import replace

from polyrhythm.core.lead.balance.decision import finish_pass
from polyrhythm.core.lead.balance.gifts import gifts as gifts_of
from polyrhythm.core.lead.balance.pairs import Pace
from polyrhythm.core.lead.data import DataPlan
from polyrhythm.wire.messages import ChunkProgress

CHUNK, ROUND_S = 100.0, 0.1
FAST = Pace((0, 1), 4_000, 0.001, 0.0, 3.5, left=1_000)
SLOW = Pace((1, 1), 1_000, 0.004, 0.0, 3.5, left=500)


def test_the_worker_that_would_finish_last_gives_visits_away() -> None:
    """The slow worker needs 2 s for the rest of its pass, the fast one 1 s. If 200 visits moved,
    both would need 1.2 s. The slow worker gives a few visits more away."""
    (move,) = finish_pass([FAST, SLOW], CHUNK, ROUND_S).moves
    assert (move.sources, move.targets) == ((SLOW.key,), (FAST.key,))
    assert 200 <= move.points <= 200 + CHUNK / 2
    assert move.this_pass and move.ends
    assert move.reason.code == "balance-pass"


def test_a_worker_that_has_finished_takes_visits_of_a_slower_and_of_an_equal_one() -> None:
    done = replace(FAST, key=(2, 1), left=0)
    for late in (SLOW, FAST):
        (move,) = finish_pass([late, done], CHUNK, ROUND_S).moves
        assert move.targets == (done.key,)


def test_nothing_moves_if_the_times_differ_by_less_than_a_chunk() -> None:
    assert not finish_pass([FAST, replace(SLOW, left=260)], CHUNK, ROUND_S).moves


def test_nothing_moves_if_the_difference_is_uncertain() -> None:
    # with 500 points left, the remaining time has a standard error of 1 s
    unsure = replace(SLOW, error=0.002)
    assert not finish_pass([FAST, unsure], CHUNK, ROUND_S).moves


def test_nothing_moves_if_the_pass_is_over_before_a_move() -> None:
    assert not finish_pass([replace(FAST, left=0), replace(SLOW, left=49)], CHUNK, ROUND_S).moves


def test_only_chunks_that_are_due_in_this_pass_move() -> None:
    """Worker A holds 8 chunks. It has visited 3 of them in this pass and is visiting the fourth."""
    plan = DataPlan(160, 1, 0, None)
    a, b = (0, 1), (1, 1)
    plan.share([a, b])
    mine = [chunk.chunk for chunk in plan.lease(a).chunks]
    plan.commit(
        a, (*(ChunkProgress(each, 1, 0) for each in mine[:3]), ChunkProgress(mine[3], 0, 4))
    )
    for chunk in plan.lease(b).chunks:
        plan.commit(b, (ChunkProgress(chunk.chunk, 1, 0),))
    assert plan.left_of_pass([a, b]) == {a: 10 * 4 + 6, b: 0}
    gifts = gifts_of(plan, [a], [b], 20, ends=True, this_pass=True)
    assert {index for index, _, _ in gifts} <= set(mine[4:]) and len(gifts) == 2
