"""The plan of private data sets: which worker visits which points, and which points the passes
include."""

import pytest

from polyrhythm.core import effects as fx
from polyrhythm.core.lead.data.plan import DataPlan
from polyrhythm.core.lead.data.private import PrivateData
from polyrhythm.core.record import Record, RecordedChunk
from polyrhythm.observe.reasons import in_words
from polyrhythm.wire import messages as m
from polyrhythm.wire.messages import ChunkProgress
from tests.core.lead.data.plans import private_plan
from tests.core.lead.test_cuts import Resumed
from tests.core.stage import of

A, B, B_AGAIN = (0, 1), (1, 2), (1, 5)


def data_of(**points: int) -> PrivateData:
    _, data = private_plan(7, 5)
    for holder, (name, count) in zip((A, B), points.items(), strict=False):
        data.enrol(name, holder, count, 1)
    data.plan.check()
    return data


def visit(plan: DataPlan, holder: tuple[int, int], passes: int, cursor: int = 0) -> None:
    """Let the member visit all of its chunks `passes` times, and `cursor` points of each chunk once
    more."""
    for chunk in plan.lease(holder).chunks:
        plan.commit(holder, (ChunkProgress(chunk.chunk, passes, cursor),))
    plan.check()


def test_a_lease_numbers_the_points_of_the_members_own_data_set() -> None:
    data = data_of(a=40, b=25)
    plan = data.plan
    assert plan.points == 65
    for holder, points in ((A, 40), (B, 25)):
        lease = plan.lease(holder)
        assert lease.points == points
        covered = [p for chunk in lease.chunks for p in range(chunk.first, chunk.last)]
        assert covered == list(range(points))


def test_a_pass_is_over_when_every_member_has_visited_its_points() -> None:
    data = data_of(a=40, b=25)
    plan = data.plan
    visit(plan, A, 3)
    assert plan.passes == 0
    visit(plan, B, 2)
    assert plan.passes == 2


def test_passes_wait_for_the_data_sets_of_the_members_of_round_1() -> None:
    """B announces its data set when A has visited its points three times. B begins with the first
    pass."""
    plan, data = private_plan(7, 5)
    data.wait_for({A: "a", B: "b"})
    data.enrol("a", A, 40, 1)
    visit(plan, A, 3)
    assert plan.passes == 0
    data.enrol("b", B, 25, 1)
    assert {chunk.passes for chunk in plan.lease(B).chunks} == {0}
    visit(plan, B, 2)
    assert plan.passes == 2 and not data.take_news()


@pytest.mark.parametrize("ends", ["it leaves", "it has no data", "the time is over"])
def test_passes_do_not_wait_without_end_for_a_data_set(ends: str) -> None:
    plan, data = private_plan(7, 5)
    data.wait_for({A: "a", B: "b"})
    data.enrol("a", A, 40, 1)
    visit(plan, A, 3)
    if ends == "it leaves":
        plan.release([B])
    elif ends == "it has no data":
        data.on_contributed(B)
    else:
        data.stop_waiting()
    assert plan.passes == 3
    said = [in_words(each) for each in data.take_news()]
    assert said == (
        [
            "b has not announced a data set: passes do not wait for it any longer, and the job has 40"
            " points"
        ]
        if ends == "the time is over"
        else []
    )
    data.enrol("b", B, 25, 1)
    plan.check()
    assert {chunk.passes for chunk in plan.lease(B).chunks} == {3} and plan.passes == 3


def test_points_that_are_lost_are_left_out() -> None:
    data = data_of(a=40, b=25)
    plan = data.plan
    visit(plan, A, 3)
    visit(plan, B, 1)
    plan.release([B])
    plan.check()
    assert (plan.points, plan.passes) == (40, 3)
    (news,) = data.take_news()
    assert (news.code, news.fields) == ("data-lost", {"name": "b", "points": 25, "total": 40})


def test_points_that_come_back_count_from_the_present_pass_on() -> None:
    data = data_of(a=40, b=25)
    plan = data.plan
    visit(plan, A, 3)
    visit(plan, B, 1, 1)
    plan.release([B])
    data.take_news()
    data.enrol("b", B_AGAIN, 25, 1)
    plan.check()
    assert (plan.points, plan.passes) == (65, 3)
    assert {(chunk.passes, chunk.cursor) for chunk in plan.lease(B_AGAIN).chunks} == {(3, 0)}
    (news,) = data.take_news()
    assert (news.code, news.fields) == ("data-back", {"name": "b", "points": 25, "total": 65})


def test_visits_of_the_present_pass_are_not_repeated_by_a_worker_that_comes_back() -> None:
    data = data_of(a=40, b=60)
    plan = data.plan
    visit(plan, A, 2)
    visit(plan, B, 2, 1)
    plan.release([B])
    data.enrol("b", B_AGAIN, 60, 1)
    assert {(chunk.passes, chunk.cursor) for chunk in plan.lease(B_AGAIN).chunks} == {(2, 1)}


def test_a_new_incarnation_waits_until_the_old_one_can_count_no_more() -> None:
    data = data_of(a=40, b=25)
    plan = data.plan
    data.enrol("b", B_AGAIN, 25, 1)
    assert not plan.lease(B_AGAIN).chunks
    visit(plan, B, 1)
    plan.take_changed()
    plan.release([B])
    assert plan.take_changed() == {B_AGAIN}
    plan.check()
    assert sum(chunk.last - chunk.first for chunk in plan.lease(B_AGAIN).chunks) == 25
    assert not data.take_news(), "nothing was lost"


def test_a_worker_with_other_data_begins_anew() -> None:
    data = data_of(a=40, b=25)
    plan = data.plan
    visit(plan, A, 2)
    visit(plan, B, 2)
    plan.release([B])
    data.take_news()
    data.enrol("b", B_AGAIN, 30, 1)
    plan.check()
    assert plan.points == 70
    (news,) = data.take_news()
    assert (news.code, news.fields) == ("data-replaced", {"name": "b", "points": 30, "before": 25})
    assert {(chunk.passes, chunk.cursor) for chunk in plan.lease(B_AGAIN).chunks} == {(2, 0)}


@pytest.mark.parametrize(
    ("before", "now", "code"),
    [
        ("x", "x", "data-back"),
        ("x", "y", "data-replaced"),
        ("", "y", "data-back"),
        ("x", "", "data-back"),
    ],
)
def test_a_worker_with_as_many_other_points_begins_anew(before: str, now: str, code: str) -> None:
    data = data_of(a=40)
    plan = data.plan
    data.enrol("b", B, 25, 1, before)
    plan.release([B])
    data.take_news()
    data.enrol("b", B_AGAIN, 25, 1, now)
    plan.check()
    assert [news.code for news in data.take_news()] == [code]
    assert plan.points == 65
    data.enrol("b", B_AGAIN, 25, 1, "other values of the same points")
    plan.check()
    assert not data.take_news() and plan.points == 65


def test_passes_stay_when_all_members_are_gone() -> None:
    data = data_of(a=40, b=25)
    plan = data.plan
    visit(plan, A, 3)
    visit(plan, B, 2)
    plan.release([A, B])
    plan.check()
    assert (plan.points, plan.passes) == (0, 2)


@pytest.mark.parametrize("lost", [False, True])
def test_a_checkpoint_knows_the_visits_of_every_worker(lost: bool) -> None:
    data = data_of(a=40, b=60)
    plan = data.plan
    visit(plan, A, 2, 1)
    visit(plan, B, 2)
    if lost:
        plan.release([B])
    chunks = plan.recorded({A: "a", B: "b"})
    record = Record(number=1, round=9, points=plan.points, passes=plan.passes, chunks=chunks)
    _, found = private_plan(0, 5)
    found.resume(record)
    found.enrol("a", A, 40, 1)
    found.enrol("b", B, 60, 1)
    found.plan.check()
    assert {(chunk.passes, chunk.cursor) for chunk in found.plan.lease(A).chunks} == {(2, 1)}
    assert {(chunk.passes, chunk.cursor) for chunk in found.plan.lease(B).chunks} == {(2, 0)}
    assert found.plan.passes == 2


def resumed_by_the_first() -> PrivateData:
    """A job of four passes resumes. Worker A, which had made all of them, has announced its data set;
    worker B had made one."""
    data = data_of(a=40, b=60)
    plan = data.plan
    visit(plan, A, 4)
    visit(plan, B, 1)
    record = Record(number=1, round=9, points=100, passes=1, chunks=plan.recorded({A: "a", B: "b"}))
    _, found = private_plan(0, 4)
    found.resume(record)
    found.enrol("a", A, 40, 1)
    return found


def test_a_worker_that_resumes_first_does_not_end_the_passes_of_the_others() -> None:
    found = resumed_by_the_first()
    assert found.plan.passes == 1 and not found.plan.done
    found.enrol("b", B, 60, 1)
    found.plan.check()
    assert {chunk.passes for chunk in found.plan.lease(B).chunks} == {1}
    assert {chunk.passes for chunk in found.plan.lease(A).chunks} == {4}
    assert found.plan.passes == 1


def test_a_resumed_job_does_not_wait_for_the_data_of_workers_that_are_not_there() -> None:
    found = resumed_by_the_first()
    found.expect(["a"])
    assert found.plan.passes == 4 and found.plan.done
    assert in_words(found.take_news()[-1]) == (
        "b has not announced its data set yet: until it does, passes leave its 60 points out"
    )
    found.expect(["a"])
    assert not found.take_news(), "it is said once"


def test_passes_do_not_wait_without_end_for_a_worker_that_was_there_before() -> None:
    found = resumed_by_the_first()
    found.expect(["a", "b"])
    assert found.plan.passes == 1
    found.stop_waiting()
    assert found.plan.passes == 4 and found.plan.done
    assert in_words(found.take_news()[-1]) == (
        "b has not announced its data set of 60 points again since the job resumed: passes do not"
        " wait for it any longer, and the job has 40 points"
    )
    found.enrol("b", B, 60, 1)
    found.plan.check()
    assert {chunk.passes for chunk in found.plan.lease(B).chunks} <= {4} and found.plan.passes == 4


def test_a_resumed_job_waits_for_data_sets_as_long_as_for_its_start() -> None:
    """worker-1 joins and takes part, but does not announce its data set."""
    chunks = (RecordedChunk(0, 40, 4, 0, "worker-0"), RecordedChunk(40, 100, 1, 0, "worker-1"))
    record = Record(number=1, round=9, points=100, passes=1, chunks=chunks)
    stage = Resumed(record, data_private=True, epochs=4, start_timeout_s=30.0).begin()
    stage.tell(m.Enrol(**stage.who(0), points=40, batch=4))
    assert stage.lead.parts.plan.passes == 1
    assert not of(stage.tick(29), fx.Note)
    (note,) = of(stage.tick(1), fx.Note)
    assert (note.what, note.fields["reason"]) == ("data-set", "data-not-back")
    assert note.fields["fields"]["name"] == "worker-1"
    assert stage.lead.parts.plan.passes == 4
    assert not of(stage.tick(100), fx.Note), "it is said once"


def test_the_journal_names_workers_that_are_absent_when_a_resumed_job_opens() -> None:
    chunks = (RecordedChunk(0, 40, 4, 0, "worker-0"), RecordedChunk(40, 100, 1, 0, "worker-1"))
    record = Record(number=1, round=9, points=100, passes=1, chunks=chunks)
    stage = Resumed(record, data_private=True, epochs=8, workers=1).begin()
    (note,) = [
        note
        for note in of(stage.tell(m.Enrol(**stage.who(0), points=40, batch=4)), fx.Note)
        if note.fields.get("reason") == "data-absent"
    ]
    assert note.fields["fields"]["name"] == "worker-1"
    assert stage.lead.parts.plan.passes == 4
