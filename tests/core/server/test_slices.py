"""The rules of the slices that a server holds: what is taken, what it completes, and what moves.

The runtime judges a slice, changes its memory, and records the change, while it holds only the lock
of that slice. So the tests also let routes and members change between the two calls."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrhythm.core.events import Contributed, StateAdopted, StepCopied
from polyrhythm.core.server.slices import (
    MOST_PARTIAL,
    HeldSlices,
    OnArrivalSlices,
    RoundsSlices,
    Verdict,
    refusal_of,
)
from polyrhythm.wire.messages import (
    Contribution,
    Copy,
    MemberSpec,
    Route,
    Row,
    Seed,
    SliceStep,
    Stamp,
    State,
)

SLICES = 3
ALONE = (Route(0),) * SLICES
STEP = SliceStep(1.0)


def members(of: dict[int, int]) -> list[MemberSpec]:
    return [MemberSpec(worker, incarnation, f"w{worker}") for worker, incarnation in of.items()]


def part(
    worker: int, incarnation: int, sequence: int, slice_: int = 0, **fields: Any
) -> Contribution:
    return Contribution(
        worker=worker,
        incarnation=incarnation,
        sequence=sequence,
        slice=slice_,
        **{"slices": SLICES, "routing": 1, **fields},
    )


def give(slices: HeldSlices[Any], message: Contribution) -> Contributed | None:
    assert slices.judge(message) is Verdict.NEW
    return slices.add(message)


def one_copy(*replicas: int, primary: int = 0, since: int = 0) -> tuple[Route, ...]:
    return (Route(primary, replicas, (), since),)


# -- contributions ---------------------------------------------------------------------------------


@st.composite
def deliveries(draw) -> list[tuple[int, int, int]]:
    """A list of (worker, sequence, slice). The contributions of a worker come in ascending sequence, and
    any earlier slice may arrive again."""
    waiting = {
        worker: [
            (worker, sequence, slice_)
            for sequence in range(1, draw(st.integers(1, 4)) + 1)
            for slice_ in draw(st.permutations(range(SLICES)))
        ]
        for worker in range(draw(st.integers(1, 3)))
    }
    order: list[tuple[int, int, int]] = []
    while any(waiting.values()):
        worker = draw(st.sampled_from([worker for worker, rest in waiting.items() if rest]))
        order.append(waiting[worker].pop(0))
        if draw(st.booleans()):
            order.append(draw(st.sampled_from(order)))
    return order


def check_once(order: list[tuple[int, int, int]]) -> None:
    slices = RoundsSlices(0, ALONE, 1)
    workers = {worker for worker, _, _ in order}
    slices.enlist(members({worker: worker + 10 for worker in workers}))
    added, complete = Counter(), Counter()
    for step, (worker, sequence, slice_) in enumerate(order):
        message = part(worker, worker + 10, sequence, slice_)
        if slices.judge(message) is Verdict.NEW:
            added[worker, sequence, slice_] += 1
            if slices.add(message) is not None:
                complete[worker, sequence] += 1
        if step % 5 == 4:
            slices.fold(slices.round)
    assert added == Counter(set(order)), "added more than once"
    assert complete == Counter({(worker, sequence) for worker, sequence, _ in order})


@given(deliveries())
def test_every_slice_is_added_exactly_once(order) -> None:
    check_once(order)


def test_slices_are_added_twice_if_duplicates_are_not_detected(monkeypatch) -> None:
    order = [(0, 1, slice_) for slice_ in range(SLICES)] * 2
    check_once(order)
    monkeypatch.setattr(HeldSlices, "judge", lambda self, *arguments: Verdict.NEW)
    with pytest.raises(AssertionError, match="more than once"):
        check_once(order)


def test_contributions_of_workers_outside_the_view_are_ignored() -> None:
    slices = RoundsSlices(0, ALONE, 1)
    assert slices.judge(part(0, 1, 1)) is Verdict.STRANGER
    slices.enlist(members({0: 2}))
    assert slices.judge(part(0, 1, 1)) is Verdict.STRANGER
    assert slices.judge(part(0, 2, 1)) is Verdict.NEW


def test_a_slice_that_moved_is_ignored_and_one_that_was_never_here_is_refused() -> None:
    slices = OnArrivalSlices(0, (Route(0), Route(1, (0,))), 2)
    slices.enlist(members({0: 1}))
    for slice_ in (1, 2):  # of one this server has a copy, the other does not exist
        earlier, present = (part(0, 1, 1, slice_, routing=routing) for routing in (1, 2))
        assert slices.judge(earlier) is Verdict.MOVED
        assert slices.judge(present) is Verdict.NOT_HELD
        assert refusal_of(Verdict.MOVED, earlier) is None
        found = refusal_of(Verdict.NOT_HELD, present)
        assert found == f"the peer sent slice {slice_}, which is not held here"


def test_nothing_is_new_after_the_freeze() -> None:
    slices = OnArrivalSlices(0, ALONE, 1)
    slices.enlist(members({0: 1}))
    slices.freeze()
    assert slices.judge(part(0, 1, 1)) is Verdict.FROZEN


def test_a_contribution_counts_in_the_round_of_its_last_slice_and_names_the_version_it_read() -> (
    None
):
    """The contribution was computed for round 3, from version 2. A fold came between its slices, so
    it counts in round 4."""
    slices = RoundsSlices(0, (Route(0),) * 2, 1)
    slices.enlist(members({0: 1}))
    slices.fold(2)
    first, last = (part(0, 1, 5, slice_, round=3, pull=7, pulled=6) for slice_ in range(2))
    assert give(slices, first) is None
    slices.fold(3)
    found = give(slices, last)
    assert found == Contributed(0, 1, 5, round=4, pull=7, pulled=6, version=2)


def test_a_worker_that_joins_again_does_not_continue_its_old_contributions() -> None:
    """The first incarnation died after it had sent one of two slices. A slice of the second
    incarnation does not complete that contribution."""
    slices = RoundsSlices(0, (Route(0),) * 2, 1)
    slices.enlist(members({0: 1}))
    assert give(slices, part(0, 1, 1, 0)) is None
    slices.enlist(members({0: 2}))
    assert give(slices, part(0, 2, 1, 0)) is None
    assert give(slices, part(0, 2, 1, 1)) is not None


def test_a_worker_may_be_evicted_while_its_slice_is_added() -> None:
    """The slice was judged before and is in the aggregate: the ledger must say so. The next member
    list forgets that the contribution is incomplete."""
    slices = RoundsSlices(0, ALONE, 1)
    slices.enlist(members({0: 1}))
    message = part(0, 1, 1)
    assert slices.judge(message) is Verdict.NEW
    slices.enlist(members({1: 2}))
    assert slices.add(message) is None
    assert slices.has_contributed(0, 1, 0)
    slices.enlist(members({0: 1}))
    assert slices.judge(message) is Verdict.REPEATED
    slices.enlist(members({1: 2}))
    assert slices.partial == 0


def test_partial_contributions_of_a_member_are_bounded_and_take_no_room_of_others() -> None:
    slices = RoundsSlices(0, ALONE, 1)
    slices.enlist(members({0: 1, 1: 1}))
    assert give(slices, part(0, 1, 1, 0)) is None
    for sequence in range(1, 10 * MOST_PARTIAL):
        assert give(slices, part(1, 1, sequence, 0)) is None
    assert slices.partial == 1 + MOST_PARTIAL
    found = [give(slices, part(0, 1, 1, slice_)) is not None for slice_ in (1, 2)]
    assert found == [False, True]


def test_partial_contributions_are_not_bounded_if_the_rule_is_switched_off(monkeypatch) -> None:
    monkeypatch.setattr(HeldSlices, "_make_room", lambda self, worker: None)
    slices = RoundsSlices(0, ALONE, 1)
    slices.enlist(members({1: 1}))
    for sequence in range(1, 1 + 10 * MOST_PARTIAL):
        give(slices, part(1, 1, sequence, 0))
    assert slices.partial == 10 * MOST_PARTIAL


# -- the initial parameters ------------------------------------------------------------------------


def test_initial_parameters_are_taken_once_and_never_after_training_has_begun() -> None:
    slices = RoundsSlices(0, (Route(0), Route(1)), 2)
    seed, later = Seed(slice=0, routing=2), Seed(slice=0, routing=3)
    assert slices.judge_seed(Seed(slice=0, routing=1)) is Verdict.MOVED
    assert slices.judge_seed(later) is Verdict.MOVED
    assert slices.judge_seed(Seed(slice=1, routing=2)) is Verdict.NOT_HELD
    assert slices.judge_seed(seed) is Verdict.NEW
    slices.on_seeded(0, 2)
    assert slices.judge_seed(seed) is Verdict.REPEATED
    slices.enlist(members({0: 1}))
    for message in (seed, later):
        assert slices.judge_seed(message) is Verdict.OPENED
        assert refusal_of(Verdict.OPENED, message)
    assert slices.judge_seed(Seed(slice=0, routing=1)) is Verdict.MOVED, "a seeder that is gone"


def test_a_slice_that_lacks_its_initial_parameters_takes_them_though_members_are_known() -> None:
    slices = RoundsSlices(0, ALONE, 2)
    slices.enlist(members({0: 1}))
    assert slices.judge_seed(Seed(slice=0, routing=2)) is Verdict.NEW


# -- folds and copies ------------------------------------------------------------------------------


def test_a_round_folded_again_for_slices_that_lack_it_does_not_change_the_others() -> None:
    """This server has folded round 1 of slice 0. Then it becomes the primary of slice 1, and its
    copy lacks round 1. When it folds round 1 again, later additions to slice 0 must not count as
    folded."""
    slices = RoundsSlices(0, (Route(0), Route(1, (0,))), 1)
    slices.enlist(members({0: 1}))
    give(slices, part(0, 1, 1, 0))
    assert slices.fold(1) == (0,)
    give(slices, part(0, 1, 2, 0))
    slices.reroute((Route(0), Route(0, since=2)), 2)
    assert slices.round == 2, "contributions count in the round of the slice that is furthest ahead"
    slices.add(part(0, 1, 1, 1))
    assert slices.fold(1) == (1,)
    assert slices.held(0).folded_rows == slices.held(1).folded_rows == (Row(0, 1, 1),)


def test_a_contribution_is_complete_when_the_slices_that_stayed_have_it_too() -> None:
    """One slice of the contribution came before the routes changed, and the others come after."""
    slices = OnArrivalSlices(0, (Route(0), Route(0), Route(1, (0,))), 1)
    slices.enlist(members({0: 1}))
    assert give(slices, part(0, 1, 1, 0)) is None
    slices.reroute((Route(0), Route(0), Route(0, since=2)), 2)
    assert slices.judge(part(0, 1, 1, 0)) is Verdict.REPEATED
    assert give(slices, part(0, 1, 1, 1)) is None
    assert give(slices, part(0, 1, 1, 2)) is not None


def copy_of(
    stamp: Stamp, *rows: Row, server: int = 0, worker: int = -1, incarnation: int = 0
) -> Copy:
    sequence = rows[0].sequence if worker >= 0 else 0
    return Copy(
        server=server,
        worker=worker,
        incarnation=incarnation,
        sequence=sequence,
        slice=stamp.slice,
        stamp=stamp,
        step=STEP,
        rows=rows,
    )


def follow(slices: HeldSlices[Any], copy: Copy) -> StepCopied | None:
    return slices.on_copied(copy, slices.judge_step(copy))


def test_a_copy_supplies_contributions_of_workers_that_left_or_joined_again() -> None:
    slices = OnArrivalSlices(0, one_copy(0, primary=1), 1)
    sent, later = Row(5, 1, 3), Row(5, 2, 1)
    first = copy_of(Stamp(0, 0, 1), sent, server=1, worker=5, incarnation=1)
    assert follow(slices, first) == StepCopied(1, (sent,))
    slices.enlist(())
    second = copy_of(Stamp(0, 0, 2), later, server=1, worker=5, incarnation=2)
    assert follow(slices, second) == StepCopied(1, (later,))
    assert follow(slices, first) == StepCopied(1, (sent,)), "a later incarnation implies it"
    missing = copy_of(Stamp(0, 0, 4), Row(5, 2, 2), server=1, worker=5, incarnation=2)
    assert slices.judge_step(missing) is Verdict.GAP
    assert follow(slices, missing) is None


def test_a_copy_that_is_not_current_supplies_no_contribution() -> None:
    """Slice 1 has the contribution from its former primary, but not yet the state of its present one."""
    slices = OnArrivalSlices(0, (Route(1, (0,)), Route(2, (0,))), 1)
    sent = Row(5, 1, 3)
    former = copy_of(Stamp(1, 0, 1), sent, server=2, worker=5, incarnation=1)
    assert follow(slices, former) == StepCopied(2, (sent,))
    slices.reroute((Route(1, (0,)), Route(1, (0,), since=2)), 2)
    present = copy_of(Stamp(0, 0, 1), sent, server=1, worker=5, incarnation=1)
    assert follow(slices, present) is None


def test_the_last_step_again_is_repeated_and_a_later_one_leaves_a_gap() -> None:
    slices = RoundsSlices(0, one_copy(0, primary=1), 1)
    follow(slices, copy_of(Stamp(0, 0, 1), server=1))
    found = [slices.judge_step(copy_of(Stamp(0, 0, number), server=1)) for number in (1, 2, 3)]
    assert found == [Verdict.REPEATED, Verdict.NEW, Verdict.GAP]


def test_a_server_without_steps_fetches_the_initial_parameters() -> None:
    """A server that was started again before the first fold has made no step and has no parameters,
    so it must fetch them."""
    slices = RoundsSlices(0, one_copy(1), 1)
    assert slices.teach(1, Stamp(0, 0, 0), 1, 1).parts == 1
    slices.fold(1)
    assert slices.teach(1, Stamp(0, 0, 1), 1, 1).parts == 0
    assert slices.teach(1, Stamp(0, 1, 1), 1, 1).parts == 1, "another primary made that step"


def test_a_state_brings_the_contributions_that_its_slice_contains() -> None:
    """The new holder must know them, so that it adds none of them a second time."""
    slices = OnArrivalSlices(0, one_copy(1), 1)
    slices.enlist(members({0: 1}))
    slices.step_of(part(0, 1, 1), STEP)
    slices.add(part(0, 1, 1))
    assert slices.teach(1, Stamp(0, 0, 0), 1, 1).rows == (Row(0, 1, 1),)


def test_a_learner_gets_every_step_from_the_moment_it_is_taught() -> None:
    slices = OnArrivalSlices(0, one_copy(1), 1)
    slices.reroute((Route(0, (1,), (2,)),), 2)
    assert slices.step_of(part(0, 1, 1), STEP)[1] == [1]
    asked = (Stamp(0), Stamp(7))
    assert slices.taught(asked) == [Stamp(0)]
    slices.teach(2, Stamp(0), 1, 2)
    assert slices.step_of(part(0, 1, 2), STEP)[1] == [1, 2]
    slices.reroute(one_copy(1), 3)
    assert slices.step_of(part(0, 1, 3), STEP)[1] == [1]


def test_a_replica_ignores_steps_of_a_former_primary() -> None:
    """The primary of the slice was s0 and is s2 now. The replica s1 has adopted the state of s2."""
    slices = RoundsSlices(1, one_copy(1, 2, since=1), 1)
    follow(slices, copy_of(Stamp(0, 0, 1)))
    slices.reroute(one_copy(1, primary=2, since=2), 2)
    from_s2 = copy_of(Stamp(0, 2, 2), server=2)
    assert slices.judge_step(from_s2) is Verdict.MOVED, "its state has not come"
    adopt(slices, State(routing=2, server=2, slice=0, slices=1, stamp=Stamp(0, 0, 1)))
    assert slices.judge_step(from_s2) is Verdict.NEW
    assert slices.judge_step(copy_of(Stamp(0, 0, 2))) is Verdict.STRANGER


def adopt(slices: HeldSlices[Any], state: State) -> StateAdopted | None:
    return slices.on_adopted(state, slices.judge_state(state))


def test_a_step_is_recorded_though_the_slice_gets_another_primary_while_it_is_made() -> None:
    """The step is in the memory of the copy. If the stamp did not say so, the new primary, which
    lacks this step, would take the two slices for equal."""
    slices = OnArrivalSlices(1, one_copy(1, 2, since=1), 1)
    follow(slices, copy_of(Stamp(0, 1, 1)))
    step = copy_of(Stamp(0, 1, 2))
    verdict = slices.judge_step(step)
    assert verdict is Verdict.NEW
    slices.reroute(one_copy(1, primary=2, since=2), 2)
    assert slices.on_copied(step, verdict) is None
    assert slices.stamp(0) == Stamp(0, 1, 2)
    new_primary = OnArrivalSlices(2, one_copy(1, primary=2, since=2), 2)
    new_primary.held(0).follow(Stamp(0, 1, 1), ())
    (held,) = slices.fetch((0,), 2).held
    assert new_primary.teach(1, held, 1, 2).parts == 1


def test_a_state_is_not_current_if_the_slice_gets_another_primary_while_it_is_written() -> None:
    slices = OnArrivalSlices(1, one_copy(1, 2, since=1), 1)
    slices.reroute((Route(0, (2,), (1,), 1),), 2)
    slices.reroute((Route(2, (), (1,), 3),), 3)
    slices.reroute((Route(0, (2,), (1,), 4),), 4)
    stale = State(routing=3, server=0, slice=0, slices=1, stamp=Stamp(0, 1, 5))
    assert slices.judge_state(stale) is Verdict.MOVED
    assert adopt(slices, stale) is None
    state = State(
        routing=4, server=0, slice=0, slices=1, stamp=Stamp(0, 1, 5), rows=(Row(0, 1, 3),)
    )
    verdict = slices.judge_state(state)
    assert verdict is Verdict.NEW
    slices.reroute((Route(2, (), (1,), 5),), 5)
    slices.on_adopted(state, verdict)
    assert slices.stamp(0) == Stamp(0, 1, 5), "that is in the memory of the copy"
    step = copy_of(Stamp(0, 5, 6), server=2)
    assert slices.judge_step(step) is Verdict.MOVED, "the new primary has not sent its state"


def test_a_primary_that_is_demoted_forgets_what_was_not_folded() -> None:
    slices = RoundsSlices(0, one_copy(1), 1)
    slices.enlist(members({0: 1}))
    give(slices, part(0, 1, 1))
    slices.fold(1)
    give(slices, part(0, 1, 2))
    slices.reroute(one_copy(0, primary=1, since=2), 2)
    assert slices.held(0).folded_rows == (Row(0, 1, 1),)
    slices.reroute(one_copy(1, since=3), 3)
    assert slices.judge(part(0, 1, 2)) is Verdict.NEW


def test_a_slice_that_went_away_and_comes_back_is_not_current() -> None:
    slices = RoundsSlices(1, one_copy(1), 1)
    assert slices.judge_step(copy_of(Stamp(0, 0, 1))) is Verdict.NEW
    slices.reroute(one_copy(2), 2)
    assert 0 not in slices
    slices.reroute((Route(0, (2,), (1,)),), 3)
    assert slices.judge_step(copy_of(Stamp(0, 0, 1))) is Verdict.MOVED


# -- one slice at a time ---------------------------------------------------------------------------

SERVERS = 3


@st.composite
def routings(draw) -> list[tuple[Route, ...]]:
    """Routes of several epochs. Each slice has a primary and at most one replica and one learner."""
    epochs: list[tuple[Route, ...]] = []
    for epoch in range(1, draw(st.integers(2, 5)) + 1):
        routes = []
        for slice_ in range(SLICES):
            primary, *others = draw(st.permutations(range(SERVERS)))
            replicas = tuple(others[: draw(st.integers(0, 1))])
            learners = tuple(others[len(replicas) :][: draw(st.integers(0, 1)) if epochs else 0])
            before = epochs[-1][slice_] if epochs else None
            same = before is not None and before.primary == primary
            since = before.since if before is not None and same else epoch
            routes.append(Route(primary, replicas, learners, since))
        epochs.append(tuple(routes))
    return epochs


def state_of(slices: HeldSlices[Any], slice_: int) -> Any:
    if slice_ not in slices:
        return None
    held = slices.held(slice_)
    fields = ("is_primary", "is_current", "copied_since", "copy_targets", "rows", "stamp")
    return [getattr(held, name) for name in fields], held.folded_rows


@given(routings())
def test_only_slices_whose_role_changes_are_locked(epochs: list[tuple[Route, ...]]) -> None:
    """The runtime locks `moving`, moves memory as `RoleChanges` says, and sets the routes. Every
    other slice keeps its role and its ledger, so that it may be in use meanwhile."""
    for server in range(SERVERS):
        slices = RoundsSlices(server, epochs[0], 1)
        slices.enlist(members({0: 1}))
        for routing, routes in enumerate(epochs[1:], 2):
            mine, copies = set(slices.mine), set(slices.copies)
            stays = {s: slices.held(s) for s in mine | copies}
            rows = {s: dict(held.rows) for s, held in stays.items()}
            changes = slices.role_changes(routes)
            assert (mine | set(changes.coming)) - set(changes.going) == set(changes.mine)
            assert set(changes.promoted) == set(changes.coming) & copies
            assert set(changes.demoted) == set(changes.going) & set(changes.copies)
            assert changes.moving == tuple(sorted(changes.moving)), "the order of the locks"
            assert set(changes.moving) == (mine ^ set(changes.mine)) | (
                copies ^ set(changes.copies)
            )
            slices.reroute(routes, routing)
            assert (slices.mine, slices.copies) == (changes.mine, changes.copies)
            for slice_ in stays.keys() - set(changes.moving):
                assert slices.held(slice_) is stays[slice_]
                assert slices.held(slice_).rows == rows[slice_]
            for slice_ in slices.mine:
                give(slices, part(0, 1, routing, slice_, routing=routing))


class Model:
    """The servers of a job without rounds: every contribution is a step of a slice. A message goes
    its way later, in the order of its link, and may come twice."""

    def __init__(self, routes: tuple[Route, ...]) -> None:
        self.routes, self.routing = routes, 1
        self.servers = [OnArrivalSlices(server, routes, 1) for server in range(SERVERS)]
        self.post: dict[tuple[int, int], list[Copy | State]] = {}
        for server in self.servers:
            server.enlist(members({0: 1}))

    def give(self, slice_: int, sequence: int) -> None:
        server = self.servers[self.routes[slice_].primary]
        message = part(0, 1, sequence, slice_, routing=self.routing)
        if server.judge(message) is Verdict.NEW:
            if (sent_on := server.step_of(message, STEP)) is not None:
                copy, targets = sent_on
                for to in targets:
                    self.post.setdefault((copy.server, to), []).append(copy)
            server.add(message)

    def fetch(self, server: int) -> None:
        """The server asks every primary for the slices that it copies and lacks."""
        slices = self.servers[server]
        for slice_ in slices.copies:
            held, primary = slices.held(slice_), self.routes[slice_].primary
            if not held.is_current:
                for stamp in slices.fetch((slice_,), self.routing).held:
                    state = self.servers[primary].teach(server, stamp, 1, self.routing)
                    self.post.setdefault((primary, server), []).append(state)

    def deliver(self, link: tuple[int, int], *, twice: bool = False) -> None:
        waiting = self.post.get(link)
        if not waiting:
            return
        message = waiting[0] if twice else waiting.pop(0)
        slices = self.servers[link[1]]
        if isinstance(message, State):
            adopt(slices, message)
        else:
            follow(slices, message)

    def skip_to(self, link: tuple[int, int], slice_: int) -> None:
        """Drop the messages of other slices that come before the next one of this slice."""
        waiting = self.post[link]
        while waiting[0].slice != slice_:
            waiting.pop(0)

    def reroute(self, routes: tuple[Route, ...]) -> None:
        self.routes, self.routing = routes, self.routing + 1
        for server in self.servers:
            server.reroute(routes, self.routing)

    def check(self) -> None:
        """A copy that counts as current has made a prefix of its primary's steps, one after the
        other, and its ledger says so."""
        for number, server in enumerate(self.servers):
            for slice_ in server.copies:
                held = server.held(slice_)
                if held.is_current:
                    primary = self.servers[held.route.primary].held(slice_)
                    assert held.stamp.number <= primary.stamp.number, f"s{number}"
                    assert held.last(0, 1) <= primary.last(0, 1), f"s{number}"
                    if held.stamp == primary.stamp:
                        assert held.rows == primary.rows, f"s{number}"


@given(routings(), st.data())
def test_what_one_slice_does_depends_on_no_other_slice(
    epochs: list[tuple[Route, ...]], data: st.DataObject
) -> None:
    """The same events without those of all other slices leave a slice as it is with them. So one
    slice can be copied, or be locked, without the others."""
    seen = data.draw(st.integers(0, SLICES - 1))
    model, alone = Model(epochs[0]), Model(epochs[0])
    sequence = 0
    for routes in (*epochs[1:], None):
        for _ in range(data.draw(st.integers(0, 12))):
            match data.draw(st.sampled_from(["give", "fetch", "deliver", "twice"])):
                case "give":
                    sequence += 1
                    slice_ = data.draw(st.integers(0, SLICES - 1))
                    model.give(slice_, sequence)
                    if slice_ == seen:
                        alone.give(slice_, sequence)
                case "fetch":
                    server = data.draw(st.integers(0, SERVERS - 1))
                    model.fetch(server)
                    alone.fetch(server)
                case what:
                    link = data.draw(st.sampled_from([(a, b) for a in range(3) for b in range(3)]))
                    waiting = model.post.get(link)
                    if waiting and waiting[0].slice == seen:
                        alone.skip_to(link, seen)
                        alone.deliver(link, twice=what == "twice")
                    model.deliver(link, twice=what == "twice")
            model.check()
            for one, other in zip(model.servers, alone.servers, strict=True):
                assert state_of(one, seen) == state_of(other, seen)
        if routes is not None:
            model.reroute(routes)
            alone.reroute(routes)
