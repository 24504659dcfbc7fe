"""A contribution is added exactly once per slice, however often its slices arrive, and in any
order."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrhythm.core.server.ledger import (
    MOST_PARTIAL,
    Ledger,
    OnArrivalLedger,
    RoundsLedger,
    Verdict,
)
from polyrhythm.wire.messages import Route, Row, Stamp

SLICES = 3


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
    ledger = RoundsLedger()
    workers = {worker for worker, _, _ in order}
    ledger.enlist({worker: worker + 10 for worker in workers})
    added, complete = Counter(), Counter()
    for step, (worker, sequence, slice_) in enumerate(order):
        if ledger.judge(worker, worker + 10, sequence, slice_) is Verdict.NEW:
            added[worker, sequence, slice_] += 1
            if ledger.add(worker, worker + 10, sequence, slice_, SLICES) is not None:
                complete[worker, sequence] += 1
        if step % 5 == 4:
            ledger.close(ledger.round)
    assert added == Counter(set(order)), "added more than once"
    assert complete == Counter({(worker, sequence) for worker, sequence, _ in order})


@given(deliveries())
def test_every_slice_is_added_exactly_once(order) -> None:
    check_once(order)


def test_slices_are_added_twice_if_duplicates_are_not_detected(monkeypatch) -> None:
    order = [(0, 1, slice_) for slice_ in range(SLICES)] * 2
    check_once(order)
    monkeypatch.setattr(Ledger, "judge", lambda self, *arguments: Verdict.NEW)
    with pytest.raises(AssertionError, match="more than once"):
        check_once(order)


def test_contributions_of_workers_outside_the_view_are_ignored() -> None:
    ledger = RoundsLedger()
    assert ledger.judge(0, 1, 1, 0) is Verdict.STRANGER
    ledger.enlist({0: 2})
    assert ledger.judge(0, 1, 1, 0) is Verdict.STRANGER
    assert ledger.judge(0, 2, 1, 0) is Verdict.NEW


def test_a_contribution_counts_in_the_round_of_its_last_slice() -> None:
    ledger = RoundsLedger()
    ledger.enlist({0: 1})
    assert ledger.add(0, 1, 1, 0, 2) is None
    ledger.close(1)
    assert ledger.add(0, 1, 1, 1, 2) == 2


def test_a_worker_that_joins_again_does_not_continue_its_old_contributions() -> None:
    """The first incarnation died after it had sent one of two slices. A slice of the second
    incarnation does not complete that contribution."""
    ledger = RoundsLedger()
    ledger.enlist({0: 1})
    assert ledger.add(0, 1, 1, 0, 2) is None
    ledger.enlist({0: 2})
    assert ledger.judge(0, 2, 1, 0) is Verdict.NEW
    assert ledger.add(0, 2, 1, 0, 2) is None
    assert ledger.add(0, 2, 1, 1, 2) == 1


def test_a_round_folded_again_for_slices_that_lack_it_does_not_change_the_others() -> None:
    """This server has folded round 1 of slice 0. Then it becomes the primary of slice 1, and its
    copy lacks round 1. When it folds round 1 again, later additions to slice 0 must not count as
    folded."""
    ledger = RoundsLedger((0,), replicated=True)
    ledger.begin(0, {0: Route(0), 1: Route(1, (0,))}, 1)
    ledger.enlist({0: 1})
    ledger.add(0, 1, 1, 0, 1)
    ledger.close(1)
    ledger.add(0, 1, 2, 0, 1)
    ledger.reroute(0, {0: Route(0), 1: Route(0, since=2)}, 2)
    ledger.add(0, 1, 1, 1, 1)
    ledger.close(1)
    assert ledger.folded_rows(0) == ledger.folded_rows(1) == (Row(0, 1, 1),)


def test_a_copy_supplies_contributions_of_workers_that_left_or_joined_again() -> None:
    ledger = OnArrivalLedger(replicated=True)
    ledger.begin(0, {0: Route(1, (0,))}, 1)
    sent = Row(5, 1, 3)
    ledger.copied(Stamp(0, 0, 1), [sent])
    ledger.enlist({})
    assert ledger.made(1, [sent]) == (sent,)
    ledger.copied(Stamp(0, 0, 2), [Row(5, 2, 1)])
    assert ledger.made(1, [sent]) == (sent,)
    assert ledger.made(1, [Row(5, 2, 2)]) == ()


def test_a_server_without_steps_fetches_the_initial_parameters() -> None:
    """A server that was started again before the first fold has made no step and has no parameters,
    so it must fetch them."""
    ledger = RoundsLedger(replicated=True)
    ledger.begin(0, {0: Route(0, (1,))}, 1)
    assert ledger.teach(1, [0], [Stamp(0, 0, 0)]) == {0: False}
    ledger.close(1)
    assert ledger.teach(1, [0], [Stamp(0, 0, 1)]) == {0: True}


def test_a_replica_ignores_steps_of_a_former_primary() -> None:
    """The primary of slice 4 was s0 and is s2 now. The replica s1 has adopted the state of s2."""
    ledger = RoundsLedger(replicated=True)
    ledger.begin(1, {4: Route(0, (1, 2), (), 1)}, 1)
    assert ledger.may_copy(0, Stamp(4, 0, 1))
    ledger.copied(Stamp(4, 0, 1), ())
    ledger.reroute(1, {4: Route(2, (1,), (), 2)}, 2)
    ledger.adopt(Stamp(4, 0, 1), ())
    assert ledger.may_copy(2, Stamp(4, 2, 2))
    assert not ledger.may_copy(0, Stamp(4, 0, 2))


def test_partial_contributions_of_a_member_are_bounded_and_take_no_room_of_others() -> None:
    ledger = RoundsLedger()
    ledger.enlist({0: 1, 1: 1})
    assert ledger.add(0, 1, 1, 0, SLICES) is None
    for sequence in range(1, 10 * MOST_PARTIAL):
        assert ledger.add(1, 1, sequence, 0, SLICES) is None
    assert ledger.partial == 1 + MOST_PARTIAL
    assert [ledger.add(0, 1, 1, slice_, SLICES) for slice_ in (1, 2)] == [None, 1]


def test_partial_contributions_are_not_bounded_if_the_rule_is_switched_off(monkeypatch) -> None:
    monkeypatch.setattr(Ledger, "_make_room", lambda self, worker: None)
    ledger = RoundsLedger()
    ledger.enlist({1: 1})
    for sequence in range(1, 1 + 10 * MOST_PARTIAL):
        ledger.add(1, 1, sequence, 0, SLICES)
    assert ledger.partial == 10 * MOST_PARTIAL
