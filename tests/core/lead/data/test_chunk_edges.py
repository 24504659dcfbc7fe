"""Chunks are cut where row groups of a file begin."""

from itertools import groupby, pairwise

from hypothesis import given
from hypothesis import strategies as st

from polyrhythm.core.lead.data.chunks import MOST_GROUPS, announced, chunk_edges, dealt
from tests.core.lead.data.plans import plan_of

edges = st.lists(st.integers(-5, 1_100), max_size=60)


@given(edges, st.integers(1, 64), st.integers(1, 40), st.integers(1, 8))
def test_chunks_cover_all_points_whatever_a_worker_announces(
    groups: list[int], count: int, least: int, workers: int
) -> None:
    found = chunk_edges(1_000, min(count, 1_000 // least), least, workers, groups)
    assert found[0] == 0 and found[-1] == 1_000
    assert all(last - first >= least for first, last in pairwise(found))


@given(st.integers(1, 8), st.integers(4, 30))
def test_many_row_groups_are_never_divided(workers: int, each: int) -> None:
    groups = range(each, 10_000, each)
    plan = plan_of(10_000, workers, 0, None, groups=groups)
    assert {chunk.first for chunk in plan.chunks} <= {0, *groups}
    plan.check()
    assert len(plan.chunks) >= min(16 * workers, len(groups) + 1) / 2


def test_few_row_groups_are_divided_at_their_edges_too() -> None:
    plan = plan_of(900, 4, 0, None, groups=[300, 310])
    first = {chunk.first for chunk in plan.chunks}
    assert {300, 310} <= first
    assert len(first) >= 60


def test_of_very_many_row_groups_neighbours_are_announced_together() -> None:
    found = announced(range(0, 100_000, 2))
    assert len(found) <= MOST_GROUPS
    assert set(found) <= set(range(2, 100_000, 2))
    assert announced([0]) == ()


def test_chunks_of_statistics_are_shared_in_an_order_that_depends_on_the_seed() -> None:
    firsts = range(0, 1_000, 10)
    order = dealt(firsts, (), 0)
    assert sorted(order) == [*range(100)]
    assert order == dealt(firsts, (), 0) != dealt(firsts, (), 1)
    for quarter in range(4):
        found = order[25 * quarter : 25 * quarter + 25]
        assert min(found) < 25 and max(found) >= 75, "every member gets points of the whole file"


def test_the_chunks_of_a_row_group_are_shared_one_after_the_other() -> None:
    """Each of 8 row groups is divided into 5 chunks, and 4 members share them."""
    order = dealt(range(0, 400, 10), range(50, 400, 50), 3)
    groups = [index // 5 for index in order]
    assert [group for group, _ in groupby(groups)] != [*range(8)]
    assert len([*groupby(groups)]) == 8, "the chunks of a row group are neighbours"
    assert all(len({*groups[10 * n : 10 * n + 10]}) == 2 for n in range(4))


def test_members_that_share_statistics_get_points_of_the_whole_data_set() -> None:
    members = [(worker, 1) for worker in range(4)]
    plan = plan_of(4_000, 4, 0, None, permuted=True)
    plan.share(members)
    plan.check()
    late = (9, 1)
    plan.share([*members, late])
    for member in members:
        plan.on_confirmed(member, plan.numbers[member])
    for member in (*members, late):
        firsts = [chunk.first for chunk in plan.lease(member).chunks]
        assert firsts == sorted(firsts), "chunks are read in the order of the file"
        assert min(firsts) < 1_500 and max(firsts) > 2_500, (member, firsts)
    assert sum(len(plan.lease(member).chunks) for member in (*members, late)) == 64
    plain = plan_of(4_000, 4, 0, None)
    plain.share(members)
    assert [chunk.chunk for chunk in plain.lease(members[1]).chunks] == [*range(16, 32)]
