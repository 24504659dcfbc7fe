"""Which chunks a slow worker gives away, and when `--migrate auto` moves leases."""

import pytest

from polyrhythm.core.lead.data.balance.balancing import HeldChunk, choose, choose_moves
from polyrhythm.core.lead.data.moves import How
from polyrhythm.core.migration import migration_of
from polyrhythm.core.sync.registry import traits_of
from polyrhythm.wire.messages import JobSpec
from tests.core.lead.data.plans import plan_of

HELD = [
    HeldChunk(0, 10, 3, 0, visited=7),
    HeldChunk(1, 10, 3, 0, visited=9),
    HeldChunk(2, 10, 2, 4, visited=10),
    HeldChunk(3, 10, 2, 0, visited=2),
    HeldChunk(4, 10, 2, 0, visited=3),
]
"""In pass 2, chunks 0 and 1 are visited, in this order, and chunk 2 is being visited."""


def test_the_chunks_that_were_visited_last_go_first() -> None:
    assert choose(HELD, 10, None, ends=False) == [1]
    assert choose(HELD, 24, None, ends=False) == [1, 0]
    assert choose(HELD, 26, None, ends=False) == [1, 0, 4]


def test_the_open_chunk_stays() -> None:
    assert choose(HELD, 1000, None, ends=False) == [1, 0, 4, 3]
    assert choose(HELD[:2], 1000, None, ends=False) == [1]


def test_chunks_that_are_done_stay() -> None:
    assert choose(HELD, 15, 3, ends=True) == [4, 3]
    assert choose(HELD, 40, 5, ends=True) == [1, 0]


def test_a_moved_chunk_changes_hands_when_its_holder_has_confirmed() -> None:
    slow, fast = (0, 1), (1, 2)
    plan = plan_of(1000, 2, 0, None, fewest=100)
    plan.share([slow, fast])
    plan.take_changed()
    assert len(plan.chunks) == 100
    wanted = choose_moves(plan, [slow], [fast], 100, ends=False)
    assert len(wanted) == 10
    plan.begin_moves(wanted, How.LEASE)
    assert plan.take_changed() == {slow}
    plan.check()
    assert len(plan.lease(slow).chunks) == 40
    assert len(plan.lease(fast).chunks) == 50
    assert plan.held_points([slow, fast])[fast].points == 600
    plan.on_confirmed(slow, plan.lease(slow).number - 1)
    assert plan.take_changed() == set()
    plan.on_confirmed(slow, plan.lease(slow).number)
    assert plan.take_changed() == {fast}
    assert len(plan.lease(fast).chunks) == 60
    plan.check()


@pytest.mark.parametrize(
    ("sync", "kind", "moves"),
    [("fsp", "local", "lease"), ("fsp", "statistics", "full"), ("bsp", "statistics", "off")],
)
def test_auto_moves_points_under_fsp_only(sync: str, kind: str, moves: str) -> None:
    job = JobSpec(job="j", sync=sync, kind=kind, migrate="auto")
    assert migration_of(job, traits_of(sync)) == moves


def test_chunks_with_a_copy_at_the_target_move_first_and_to_that_target() -> None:
    slow, fast, other = (0, 1), (1, 2), (2, 3)
    plan = plan_of(300, 3, 0, None, fewest=30)
    plan.share([slow, fast, other])
    held = [chunk.chunk for chunk in plan.lease(slow).chunks]
    copies = {other: {held[-1], held[-2]}}
    size = plan.chunks[0].points
    wanted = choose_moves(plan, [slow], [fast, other], 3 * size, ends=False, copies=copies)
    assert [target for _, _, target in wanted] == [other, other, fast]
    assert {chunk for chunk, _, _ in wanted[:2]} == copies[other]
