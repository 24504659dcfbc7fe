from polyrhythm.core.server.acks import Acks
from polyrhythm.wire.messages import MemberSpec, Row


def make_acks(members: int = 3) -> Acks:
    made = Acks()
    made.enlist([MemberSpec(worker, 1, "") for worker in range(members)])
    return made


def test_a_version_acknowledges_to_its_readers_without_a_message() -> None:
    made = make_acks()
    made.arrive(0, 1, 1)
    made.arrive(1, 1, 1)
    made.arrive(2, 1, 2)
    assert made.on_folded(1, {0}) == [(1, 1)]
    assert made.acknowledged(0) == 1
    assert made.missing() == [0, 1], "the third one's belongs to the next round"


def test_the_last_worker_to_arrive_reads_first() -> None:
    made = make_acks()
    made.arrive(2, 1, 1)
    made.arrive(0, 1, 1)
    assert made.last_first((0, 1, 2, 7)) == [0, 2, 1], "the last is no member"


def test_a_worker_that_comes_back_has_nothing_acknowledged() -> None:
    made = make_acks(2)
    made.acknowledge(0, 4)
    assert made.enlist([MemberSpec(0, 1, ""), MemberSpec(1, 1, "")]) is None
    assert made.enlist([MemberSpec(0, 2, ""), MemberSpec(1, 1, "")]) == [(0, 1)]
    assert made.acknowledged(0) == 0


def test_a_late_acknowledgement_never_lowers_the_last_one() -> None:
    made = make_acks(1)
    made.acknowledge(0, 4)
    assert made.acknowledge(0, 2) == 4


def test_a_promoted_server_has_acknowledged_what_all_its_slices_have() -> None:
    made = make_acks()
    for worker in range(3):
        made.acknowledge(worker, 4)
    made.arrive(1, 5, 9)
    rows = [Row(0, 1, 3), Row(1, 1, 5)]
    assert made.on_slices_changed(rows, had_none=False) == [(1, 1, 5)]
    assert [made.acknowledged(worker) for worker in range(3)] == [3, 4, 0]
    assert made.missing() == [0, 1, 2]


def test_a_server_without_slices_takes_acknowledgements_from_the_rows() -> None:
    made = make_acks(1)
    assert made.on_slices_changed([Row(0, 1, 3)], had_none=True) == []
    assert made.acknowledged(0) == 3


def test_the_lead_is_told_which_contributions_are_acknowledged() -> None:
    made = make_acks(2)
    made.acknowledge(0, 2)
    made.acknowledge(1, 5)
    assert made.secured([Row(0, 1, 3), Row(1, 1, 4)]) == (Row(0, 1, 2), Row(1, 1, 4))
