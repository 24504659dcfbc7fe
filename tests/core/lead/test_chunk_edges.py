"""Chunks are cut where row groups of a file begin."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from polyrhythm.core.lead.chunk_edges import MOST_GROUPS, announced, chunk_edges
from polyrhythm.core.lead.data import DataPlan

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
    plan = DataPlan(10_000, workers, 0, None, groups=groups)
    assert {chunk.first for chunk in plan.chunks} <= {0, *groups}
    plan.check()
    assert len(plan.chunks) >= min(16 * workers, len(groups) + 1) / 2


def test_few_row_groups_are_divided_at_their_edges_too() -> None:
    plan = DataPlan(900, 4, 0, None, groups=[300, 310])
    first = {chunk.first for chunk in plan.chunks}
    assert {300, 310} <= first
    assert len(first) >= 60


def test_of_very_many_row_groups_neighbours_are_announced_together() -> None:
    found = announced(range(0, 100_000, 2))
    assert len(found) <= MOST_GROUPS
    assert set(found) <= set(range(2, 100_000, 2))
    assert announced([0]) == ()
