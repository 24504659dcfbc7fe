from polyrhythm.core.server.acks import Acks
from polyrhythm.wire.messages import MemberSpec, Row


def receipts(members: int = 3) -> Acks:
    made = Acks()
    made.enlist([MemberSpec(worker, 1, "") for worker in range(members)])
    return made


def test_readers_of_a_version_need_no_word_of_what_it_acknowledges() -> None:
    made = receipts()
    made.arrive(0, 1, 1)
    made.arrive(1, 1, 1)
    made.arrive(2, 1, 2)
    assert made.fold(1, {0}) == [(1, 1)]
    assert made.acknowledged(0) == 1
    assert made.missing() == [0, 1], "the third one's belongs to the next round"


def test_who_was_waited_for_reads_first() -> None:
    made = receipts()
    made.arrive(2, 1, 1)
    made.arrive(0, 1, 1)
    assert made.last_first((0, 1, 2, 7)) == [0, 2, 1], "the last is no member"


def test_who_comes_back_begins_with_nothing() -> None:
    made = receipts(2)
    made.acknowledge(0, 4)
    assert made.enlist([MemberSpec(0, 1, ""), MemberSpec(1, 1, "")]) is None
    assert made.enlist([MemberSpec(0, 2, ""), MemberSpec(1, 1, "")]) == [(0, 1)]
    assert made.acknowledged(0) == 0


def test_a_word_that_comes_late_takes_nothing_back() -> None:
    made = receipts(1)
    made.acknowledge(0, 4)
    assert made.acknowledge(0, 2) == 4


def test_who_is_promoted_has_acknowledged_what_every_slice_has() -> None:
    made = receipts()
    for worker in range(3):
        made.acknowledge(worker, 4)
    made.arrive(1, 5, 9)
    rows = [Row(0, 1, 3), Row(1, 1, 5)]
    assert made.take_over(rows, anew=False) == [(1, 1, 5)]
    assert [made.acknowledged(worker) for worker in range(3)] == [3, 4, 0]
    assert made.missing() == [0, 1, 2]


def test_who_was_no_primary_takes_over_what_the_rows_say() -> None:
    made = receipts(1)
    assert made.take_over([Row(0, 1, 3)], anew=True) == []
    assert made.acknowledged(0) == 3


def test_the_lead_is_told_of_what_is_acknowledged() -> None:
    made = receipts(2)
    made.acknowledge(0, 2)
    made.acknowledge(1, 5)
    assert made.secured([Row(0, 1, 3), Row(1, 1, 4)]) == (Row(0, 1, 2), Row(1, 1, 4))
