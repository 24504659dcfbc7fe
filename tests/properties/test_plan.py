"""Chunks partition the points, are shared evenly, and move rarely. Every point of a pass is visited
exactly once, even if workers join and leave."""

from collections import Counter, deque
from dataclasses import dataclass, field
from itertools import combinations

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from polyrhythm.core.lead.data.chunks import Holder
from polyrhythm.wire.messages import ChunkProgress, Leased
from tests.core.lead.data.plans import plan_of

groups = st.sets(st.integers(0, 6), max_size=5).map(lambda found: [(w, 1) for w in sorted(found)])


def most_that_can_stay(due: Counter[Holder | None], members: list[Holder], chunks: int) -> int:
    """The largest number of chunks that can stay with their workers. Brute force: try every choice
    of the workers that hold one chunk more than the others."""
    few, extras = divmod(chunks, len(members))
    return max(
        sum(min(due[member], few + (member in fuller)) for member in members)
        for fuller in combinations(members, extras)
    )


@given(st.integers(1, 500), st.integers(0, 6))
def test_chunks_partition_the_points(points, workers) -> None:
    plan = plan_of(points, workers, 0, None)
    plan.check()
    numbers = [n for chunk in plan.chunks for n in range(chunk.first, chunk.last)]
    assert numbers == list(range(points))
    assert all(chunk.points for chunk in plan.chunks)


@given(st.integers(1, 300), st.lists(groups, min_size=1, max_size=6))
def test_shares_are_even_and_as_few_chunks_move_as_possible(points, changes) -> None:
    plan = plan_of(points, 3, 0, None)
    for members in changes:
        plan.release({chunk.holder for chunk in plan.chunks if chunk.holder} - set(members))
        before = [plan.due(index) for index in range(len(plan.chunks))]
        plan.share(members)
        plan.check()
        after = [plan.due(index) for index in range(len(plan.chunks))]
        if not members:
            assert set(after) == {None}
            continue
        loads = [Counter(after)[member] for member in members]
        assert set(after) <= set(members)
        assert max(loads) - min(loads) <= 1
        stayed = sum(one == other for one, other in zip(before, after, strict=True))
        assert stayed == most_that_can_stay(Counter(before), members, len(plan.chunks))
        for member in members:
            plan.on_confirmed(member, plan.lease(member).number)
        assert not plan.moves
        leased = [lease.chunk for member in members for lease in plan.lease(member).chunks]
        assert sorted(leased) == list(range(len(plan.chunks)))


@given(st.integers(1, 40), st.integers(1, 3))
def test_the_goal_is_reached_when_every_point_was_visited_in_each_epoch(points, epochs) -> None:
    plan = plan_of(points, 1, 0, epochs)
    plan.share([(0, 1)])
    for lease in plan.lease((0, 1)).chunks:
        assert not plan.done
        plan.commit((0, 1), (ChunkProgress(lease.chunk, epochs, 0),))
    assert plan.done
    assert plan.passes == epochs


@given(st.integers(1, 40))
def test_progress_on_chunks_that_a_worker_does_not_hold_is_ignored(points) -> None:
    plan = plan_of(points, 1, 0, None)
    plan.share([(0, 1)])
    assert plan.commit((1, 1), (ChunkProgress(0, 1, 0),)) == 0
    assert plan.commit((0, 2), (ChunkProgress(0, 1, 0),)) == 0, "another incarnation"
    assert (
        plan.commit((0, 1), (ChunkProgress(len(plan.chunks), 1, 0), ChunkProgress(-1, 1, 0))) == 0
    )
    assert plan.passes == 0


# -- churn ---------------------------------------------------------------------------------------


@dataclass
class Visitor:
    """A worker as the data plan sees it: leases reach it late, and it does not know which of its
    contributions were counted."""

    key: Holder
    letters: deque[Leased] = field(default_factory=deque)
    lease: Leased | None = None
    been: dict[int, int] = field(default_factory=dict)
    sent: deque[tuple[int, ChunkProgress, set[tuple[int, int]]]] = field(default_factory=deque)


class Churn(RuleBasedStateMachine):
    """Workers join, leave and visit points at random. `counted_at_send` and `moved_at_once` each
    switch off one rule."""

    counted_at_send = False
    moved_at_once = False

    def __init__(self) -> None:
        super().__init__()
        self.plan = plan_of(60, 1, 0, None)
        self.visitors: dict[Holder, Visitor] = {}
        self.gone: dict[Holder, Visitor] = {}
        self.visited: Counter[tuple[int, int]] = Counter()
        self.incarnations = 0
        self.join(0)

    def send_leases(self) -> None:
        for holder in self.plan.take_changed() & self.visitors.keys():
            self.visitors[holder].letters.append(self.plan.lease(holder))

    @rule(worker=st.integers(0, 3))
    def join(self, worker: int) -> None:
        if all(key[0] != worker for key in self.visitors):
            self.incarnations += 1
            key = (worker, self.incarnations)
            self.visitors[key] = Visitor(key)
            self.share()

    @rule(data=st.data())
    def die(self, data) -> None:
        if len(self.visitors) > 1:
            key = data.draw(st.sampled_from(sorted(self.visitors)))
            visitor = self.gone[key] = self.visitors.pop(key)
            for _ in range(data.draw(st.integers(0, len(visitor.sent)))):
                visitor.sent.pop()

    @rule()
    def every_server_knows(self) -> None:
        """Count all contributions of dead workers, then share their chunks among the living."""
        for visitor in self.gone.values():
            while visitor.sent:
                self.count(visitor)
        self.plan.release(self.gone)
        self.gone.clear()
        self.send_leases()
        self.share()

    def share(self) -> None:
        members = sorted(self.visitors)
        self.plan.share(members)
        if self.moved_at_once:
            for member in members:
                self.plan.on_confirmed(member, 10**9)
        self.send_leases()

    @rule(data=st.data(), points=st.integers(1, 9), letters=st.integers(0, 2))
    def visit(self, data, points: int, letters: int) -> None:
        visitor = self.visitors[data.draw(st.sampled_from(sorted(self.visitors)))]
        for _ in range(min(letters, len(visitor.letters))):
            visitor.lease = visitor.letters.popleft()
        if visitor.lease is None or not visitor.lease.chunks or len(visitor.sent) == 2:
            return
        chunk = data.draw(st.sampled_from(visitor.lease.chunks))
        size = chunk.last - chunk.first
        begin = max(visitor.been.get(chunk.chunk, 0), chunk.passes * size + chunk.cursor)
        visitor.been[chunk.chunk] = begin + points
        passes, cursor = divmod(begin + points, size)
        places = {(chunk.chunk, at) for at in range(begin, begin + points)}
        visitor.sent.append(
            (visitor.lease.number, ChunkProgress(chunk.chunk, passes, cursor), places)
        )
        if self.counted_at_send:
            self.plan.commit(visitor.key, (visitor.sent[-1][1],))

    @rule(data=st.data())
    def arrive(self, data) -> None:
        visitor = self.visitors[data.draw(st.sampled_from(sorted(self.visitors)))]
        if visitor.sent:
            number = visitor.sent[0][0]
            self.count(visitor)
            self.plan.on_confirmed(visitor.key, number)
            self.send_leases()

    def count(self, visitor: Visitor) -> None:
        _, progress, places = visitor.sent.popleft()
        self.plan.commit(visitor.key, (progress,))
        self.visited.update(places)

    @invariant()
    def every_point_exactly_once(self) -> None:
        self.plan.check()
        twice = [place for place, times in self.visited.items() if times > 1]
        assert not twice, f"visited twice: {twice}"
        counted = {
            (number, at)
            for number, chunk in enumerate(self.plan.chunks)
            for at in range(chunk.passes * chunk.points + chunk.cursor)
        }
        assert counted == set(self.visited), "the counted points differ from the visited points"


SEARCH = settings(stateful_step_count=40)
HUNT = settings(
    SEARCH, max_examples=500, phases=[Phase.generate], report_multiple_bugs=False, print_blob=False
)


def test_every_point_is_visited_exactly_once_under_churn() -> None:
    run_state_machine_as_test(Churn, settings=SEARCH)


@pytest.mark.parametrize("rule_off", ["counted_at_send", "moved_at_once"])
def test_points_are_lost_or_doubled_with_a_rule_switched_off(rule_off) -> None:
    mutant = type("Mutant", (Churn,), {rule_off: True})
    with pytest.raises(AssertionError, match="twice|differ from the visited points"):
        run_state_machine_as_test(mutant, settings=HUNT)
