"""Chunks partition the points, are shared evenly and rarely moved, and count each visit once."""

from collections import Counter
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from polyrhythm.core.data.plan import Plan
from polyrhythm.wire.messages import Progress

groups = st.sets(st.integers(0, 6), max_size=5).map(sorted)


def most_that_can_stay(held: Counter[int], members: list[int], chunks: int) -> int:
    """The twin: try every choice of who holds one more than the rest."""
    few, extras = divmod(chunks, len(members))
    return max(
        sum(min(held[member], few + (member in fuller)) for member in members)
        for fuller in combinations(members, extras)
    )


@given(st.integers(1, 500), st.integers(0, 6))
def test_chunks_partition_the_points(points, workers) -> None:
    plan = Plan(points, workers, 0, None)
    plan.check()
    numbers = [n for chunk in plan.chunks for n in range(chunk.first, chunk.last)]
    assert numbers == list(range(points))
    assert all(chunk.points for chunk in plan.chunks)


@given(st.integers(1, 300), st.lists(groups, min_size=1, max_size=6))
def test_shares_are_even_and_move_as_few_as_that_allows(points, changes) -> None:
    plan = Plan(points, 3, 0, None)
    for members in changes:
        before = [chunk.holder for chunk in plan.chunks]
        changed = plan.share(members)
        after = [chunk.holder for chunk in plan.chunks]
        if not members:
            assert set(after) == {None}
            continue
        load = Counter(after)
        loads = [load[member] for member in members]
        assert set(after) <= set(members)
        assert max(loads) - min(loads) <= 1
        stayed = sum(one == other for one, other in zip(before, after, strict=True))
        assert stayed == most_that_can_stay(Counter(before), members, len(plan.chunks))
        moved = [pair for pair in zip(before, after, strict=True) if pair[0] != pair[1]]
        touched = {member for pair in moved for member in pair} & set(members)
        assert changed == touched
        leased = [lease.chunk for member in members for lease in plan.lease(member).chunks]
        assert sorted(leased) == list(range(len(plan.chunks)))


@given(st.integers(1, 60), st.data())
def test_each_point_of_a_pass_is_counted_exactly_once(points, data) -> None:
    """Workers go through their leases, repeat themselves, and speak of chunks they lost."""
    plan = Plan(points, 1, 0, None)
    members = [0, 1, 2]
    plan.share(members)
    counted = 0
    said: list[tuple[int, Progress]] = []
    for _ in range(data.draw(st.integers(1, 25))):
        kind = data.draw(st.sampled_from(["visit", "repeat", "share"]))
        if kind == "share":
            members = data.draw(st.sets(st.integers(0, 4), min_size=1, max_size=3).map(sorted))
            plan.share(members)
        elif kind == "repeat" and said:
            worker, progress = data.draw(st.sampled_from(said))
            before = [(chunk.passes, chunk.cursor) for chunk in plan.chunks]
            again = plan.commit(worker, (progress,))
            if again == 0:
                assert before == [(chunk.passes, chunk.cursor) for chunk in plan.chunks]
            counted += again
        else:
            worker = data.draw(st.sampled_from(members))
            leases = plan.lease(worker).chunks
            if not leases:
                continue
            lease = data.draw(st.sampled_from(leases))
            size = lease.last - lease.first
            passes, cursor = divmod(
                lease.passes * size + lease.cursor + data.draw(st.integers(1, 2 * size)), size
            )
            progress = Progress(lease.chunk, passes, cursor)
            said.append((worker, progress))
            counted += plan.commit(worker, (progress,))
        plan.check()
    assert counted == sum(chunk.passes * chunk.points + chunk.cursor for chunk in plan.chunks)


@given(st.integers(1, 40), st.integers(1, 3))
def test_the_goal_is_every_point_so_many_times(points, epochs) -> None:
    plan = Plan(points, 1, 0, epochs)
    plan.share([0])
    for lease in plan.lease(0).chunks:
        assert not plan.done
        plan.commit(0, (Progress(lease.chunk, epochs, 0),))
    assert plan.done
    assert plan.passes == epochs


@given(st.integers(1, 40))
def test_progress_on_what_is_not_held_is_void(points) -> None:
    plan = Plan(points, 1, 0, None)
    plan.share([0])
    assert plan.commit(1, (Progress(0, 1, 0),)) == 0
    assert plan.commit(0, (Progress(len(plan.chunks), 1, 0), Progress(-1, 1, 0))) == 0
    assert plan.passes == 0
