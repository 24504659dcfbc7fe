"""Workers finish a pass together: which of the remaining visits of the pass move to another
worker."""

from msgspec.structs import replace

from polyrhythm.core.lead.data.balance.balancing import choose_moves, with_left
from polyrhythm.core.lead.data.balance.decision import Balance, Pace, finish_pass
from polyrhythm.wire.messages import ChunkProgress
from tests.core.lead.data.plans import plan_of

CHUNK, ROUND_S = 100.0, 0.1
FAST = Pace((0, 1), 4_000, 0.001, 0.0, 3.5, left=1_000, left_next=5_000)
SLOW = Pace((1, 1), 1_000, 0.004, 0.0, 3.5, left=500, left_next=1_500)
OTHER = replace(FAST, key=(2, 1))


def decided(*paces: Pace) -> Balance:
    return finish_pass(paces, CHUNK, ROUND_S)


def late(pace: Pace, visits: float, visits_next: float | None = None) -> Pace:
    """The same worker with `visits` more visits to make in this pass, and `visits_next` more by the
    end of the next pass."""
    more = visits if visits_next is None else visits_next
    assert pace.left is not None
    return replace(pace, left=pace.left + visits, left_next=pace.left_next + more)


def test_the_worker_that_would_finish_last_gives_visits_away() -> None:
    """The slow worker needs 2 s for the rest of its pass, and the fast one 1 s. If two chunks moved,
    both would finish this pass at the same time. But the slow worker would finish the next pass a
    second early, because it has two chunks fewer then."""
    (move,) = decided(FAST, SLOW).moves
    assert (move.sources, move.targets) == ((SLOW.key,), (FAST.key,))
    assert move.points == CHUNK
    assert move.this_pass and move.ends
    assert move.reason.code == "balance-pass"


def test_in_the_last_pass_no_later_pass_counts() -> None:
    """As above, but no pass follows: then two chunks move, and both workers finish at the same
    time."""
    last = [replace(pace, left_next=pace.left or 0.0) for pace in (FAST, SLOW)]
    (move,) = decided(*last).moves
    assert move.points == 2 * CHUNK


def test_a_worker_that_has_finished_takes_visits_of_a_slower_and_of_an_equal_one() -> None:
    done = replace(OTHER, left=0, left_next=4_000)
    for one in (SLOW, FAST):
        (move,) = decided(one, done).moves
        assert move.targets == (done.key,)


def test_a_slow_worker_may_finish_early_by_a_chunk_of_its_own() -> None:
    """The slow worker needs 0.4 s for a chunk. Until it has visited a chunk in the next pass, no
    two points differ by two visits. But while the slow worker is a little late, the fast worker
    already visits several chunks of the next pass."""
    assert not decided(FAST, late(SLOW, 250 - 500 - 99)).moves
    (move,) = decided(FAST, late(SLOW, 250 - 500 - 199)).moves
    assert (move.sources, move.points) == ((FAST.key,), CHUNK)
    assert not decided(FAST, late(SLOW, 250 - 500 + 25)).moves
    (move,) = decided(FAST, late(SLOW, 250 - 500 + 75)).moves
    assert (move.sources, move.points) == ((SLOW.key,), CHUNK)


def test_a_move_must_shorten_the_time_in_which_visits_differ_by_half_a_round() -> None:
    """A chunk takes 0.1 s. If a worker finishes both passes 0.19 s after the other one, visits differ
    by two for 0.18 s. After a move, the worker would finish the next pass 0.21 s before the other
    one, and visits would differ by two for 0.11 s."""
    assert not decided(FAST, late(OTHER, 180)).moves
    (move,) = decided(FAST, late(OTHER, 190)).moves
    assert (move.sources, move.points) == ((OTHER.key,), CHUNK)


def test_nothing_moves_if_the_chunk_would_have_to_come_back() -> None:
    """The worker that is late in this pass has fewer points. So it would finish the next pass
    early."""
    assert decided(FAST, late(OTHER, 190, 190)).moves
    assert not decided(FAST, late(OTHER, 190, -10)).moves


def test_another_worker_takes_the_chunks_that_may_not_move_to_the_first_one() -> None:
    paces = [SLOW, FAST, replace(OTHER, left=900, left_next=4_900)]
    (move,) = finish_pass(paces, CHUNK, ROUND_S, lambda source, target: target != OTHER.key).moves
    assert (move.sources, move.targets) == ((SLOW.key,), (FAST.key,))
    assert not finish_pass(paces, CHUNK, ROUND_S, lambda source, target: False).moves


def test_nothing_moves_if_the_difference_is_uncertain() -> None:
    # with 500 points left, the remaining time has a standard error of 1 s
    unsure = replace(SLOW, error=0.002)
    assert not decided(FAST, unsure).moves


def test_nothing_moves_if_the_pass_is_over_before_a_move() -> None:
    assert not decided(replace(FAST, left=0), replace(SLOW, left=49)).moves


def test_only_chunks_that_are_due_in_this_pass_move() -> None:
    """Worker A holds 8 chunks. It has visited 3 of them in this pass and is visiting the fourth."""
    plan = plan_of(160, 1, 0, None)
    a, b = (0, 1), (1, 1)
    plan.share([a, b])
    mine = [chunk.chunk for chunk in plan.lease(a).chunks]
    plan.commit(
        a, (*(ChunkProgress(each, 1, 0) for each in mine[:3]), ChunkProgress(mine[3], 0, 4))
    )
    for chunk in plan.lease(b).chunks:
        plan.commit(b, (ChunkProgress(chunk.chunk, 1, 0),))
    paces = with_left([replace(FAST, key=a), replace(FAST, key=b)], plan, [a, b])
    assert [(pace.left, pace.left_next) for pace in paces] == [(46, 126), (0, 80)]
    wanted = choose_moves(plan, [a], [b], 20, ends=True, this_pass=True)
    assert {index for index, _, _ in wanted} <= set(mine[4:]) and len(wanted) == 2
