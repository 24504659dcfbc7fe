"""Moves of chunks whose points are sent to another worker: how many are in flight at a time, the single
event that completes a move, and inactive copies."""

import pytest

from polyrhythm.core.lead.data.balance.balancing import Balancing, BalancingState
from polyrhythm.core.lead.data.chunks import Holder, WantedMove
from polyrhythm.core.lead.data.migration import (
    WINDOW_CHUNKS,
)
from polyrhythm.core.lead.data.moves import JOB_ENDS, EndedMoves
from polyrhythm.core.machine import Reason
from polyrhythm.core.migration import BLOCKING, FULL
from polyrhythm.wire.messages import Address, ChunkProgress
from tests.core.lead.data.plans import migration_over, plan_of

SLOW, FAST, THIRD = (0, 1), (1, 2), (2, 3)
MEMBERS = [SLOW, FAST, THIRD]
NO_MEMORY = Reason("move-no-memory", {"nbytes": 10})


class Job:
    """A plan of 300 points in 30 chunks, and its migration."""

    def __init__(
        self, mode: str = FULL, *, copies_nbytes: int | None = None, rows: bool = False
    ) -> None:
        self.plan = plan_of(300, 3, least=10, fewest=30, forgets=rows)
        self.plan.members = MEMBERS
        self.plan.share(MEMBERS)
        self.migration = migration_over(self.plan, mode, copies_nbytes, members=3)
        for number, member in enumerate(MEMBERS):
            self.migration.on_listening(member, f"worker-{number}", Address("h", number, "", ""))

    def wanted(self, count: int, source: Holder = SLOW, target: Holder = FAST) -> list[WantedMove]:
        return [(chunk, source, target) for chunk in self.held(source)[:count]]

    def held(self, member: Holder) -> list[int]:
        return [chunk.chunk for chunk in self.plan.lease(member).chunks]

    def begin(self, count: int, source: Holder = SLOW, target: Holder = FAST) -> list[int]:
        """Begin to move this many chunks; returns the chunks in flight."""
        self.migration.order(self.wanted(count, source, target))
        self.check()
        return [send.chunk for send in self.sends(source)]

    def sends(self, source: Holder):  # type: ignore[no-untyped-def]
        return self.migration.lease(source).sends

    def ended(self, *, last: bool = False) -> list[EndedMoves]:
        return self.migration.take_ended(last=last)

    def confirm(self, member: Holder = SLOW) -> None:
        self.migration.on_confirmed(member, self.plan.lease(member).number)
        self.settle()

    def deliver(self, chunk: int, source: Holder = SLOW, target: Holder = FAST) -> None:
        (number,) = (send.number for send in self.sends(source) if send.chunk == chunk)
        self.migration.on_arrived(target, chunk, number, nbytes=1000)
        self.settle()

    def move(self, count: int, source: Holder, target: Holder) -> list[int]:
        """Move this many chunks completely, with their points where they must be sent."""
        chunks = [chunk for chunk, _, _ in self.wanted(count, source, target)]
        self.begin(count, source, target)
        while self.plan.moves:
            self.confirm(source)
            for send in self.sends(source):
                self.deliver(send.chunk, source, target)
        return chunks

    def settle(self) -> None:
        self.migration.settle()
        self.check()

    def check(self) -> None:
        self.plan.check()
        self.migration.check()


@pytest.mark.parametrize("confirms_first", [False, True])
def test_a_move_is_complete_when_points_have_arrived_and_the_holder_has_confirmed(
    confirms_first: bool,
) -> None:
    job = Job()
    (chunk,) = job.begin(1)
    steps = [job.confirm, lambda: job.deliver(chunk)]
    for step in steps if confirms_first else reversed(steps):
        assert job.plan.chunks[chunk].holder == SLOW
        assert chunk not in job.held(SLOW) + job.held(FAST), "the chunk in flight is locked"
        step()
    assert job.plan.chunks[chunk].holder == FAST and chunk in job.held(FAST)
    assert not job.plan.moves


def test_only_the_window_is_locked_and_it_slides() -> None:
    job = Job()
    flying = job.begin(9)
    assert len(flying) == WINDOW_CHUNKS
    assert len(job.held(SLOW)) == 10 - WINDOW_CHUNKS, "chunks that wait are visited"
    job.confirm()
    job.deliver(flying[0])
    later = [send.chunk for send in job.sends(SLOW)]
    assert len(later) == WINDOW_CHUNKS and flying[0] not in later
    assert len(job.held(SLOW)) == 10 - WINDOW_CHUNKS - 1


def test_a_chunk_that_is_being_visited_when_its_turn_comes_stays() -> None:
    job = Job()
    flying = job.begin(WINDOW_CHUNKS + 2)
    *_, first, second = sorted(job.plan.moves)
    job.plan.commit(SLOW, (ChunkProgress(first, 0, 5),))
    job.confirm()
    job.deliver(flying[0])
    job.deliver(flying[1])
    assert [send.chunk for send in job.sends(SLOW)] == [*flying[2:], second]
    assert first in job.held(SLOW)


def test_chunks_in_flight_stay_where_they_are_if_the_target_is_removed() -> None:
    job = Job()
    flying = job.begin(6)
    job.confirm()
    job.plan.release([FAST])
    job.migration.forget([FAST])
    job.settle()
    assert set(flying) <= set(job.held(SLOW)) and not job.plan.moves
    (ended,) = job.ended()
    assert ended.reason is not None and ended.reason.code == "move-member-left"
    assert (ended.chunks, ended.points) == (6, 60), "those that wait are counted too"


def test_chunks_of_a_dead_source_go_to_the_target_only_if_their_points_have_arrived() -> None:
    job = Job()
    flying = job.begin(4)
    job.deliver(flying[0])
    job.plan.release([SLOW])
    job.migration.forget([SLOW])
    job.settle()
    assert job.plan.chunks[flying[0]].holder == FAST
    assert all(job.plan.chunks[chunk].holder is None for chunk in flying[1:])


def test_a_change_of_the_view_ends_all_moves_and_late_points_are_ignored() -> None:
    job = Job()
    (chunk,) = job.begin(1)
    (send,) = job.sends(SLOW)
    before = job.plan.lease(SLOW).number
    anew = Reason("move-shared-anew", {"members": 4})
    job.plan.take_changed()
    job.migration.cancel(anew)
    assert job.plan.take_changed() == {SLOW, FAST}
    assert chunk in job.held(SLOW) and job.plan.lease(SLOW).number > before
    job.migration.on_arrived(FAST, chunk, send.number, nbytes=1000)
    job.confirm()
    assert job.plan.chunks[chunk].holder == SLOW
    assert [ended.reason for ended in job.ended()] == [anew]
    assert job.begin(1) == [chunk]
    job.confirm()
    job.migration.on_arrived(FAST, chunk, send.number, nbytes=1000)
    assert job.plan.chunks[chunk].holder == SLOW, "the points of the later delivery are missing"


def test_a_target_without_memory_gets_nothing_more() -> None:
    job = Job()
    flying = job.begin(6)
    (first, *_) = job.sends(SLOW)
    job.plan.take_changed()
    job.migration.on_failed(FAST, first.chunk, first.number, NO_MEMORY)
    job.settle()
    assert job.plan.take_changed() == {SLOW, FAST}, (
        "FAST drops the points that it has received in vain"
    )
    assert not job.migration.lease(FAST).arriving
    assert set(flying) <= set(job.held(SLOW)) and not job.plan.moves
    (ended,) = job.ended()
    assert ended.reason is not None and ended.reason.fields["targets"] == [FAST[0]]
    assert ended.chunks == 6
    assert job.migration.receivers([FAST, THIRD]) == [THIRD]
    assert not job.migration.reaches(SLOW, FAST) and job.migration.reaches(SLOW, THIRD)
    balancing = Balancing(BalancingState(), job.plan, job.migration)
    assert not balancing._may_give(SLOW, FAST), "another worker is chosen"
    assert balancing._may_give(SLOW, THIRD)


@pytest.mark.parametrize("arrives", [False, True])
def test_a_move_that_the_end_of_the_job_interrupts_is_reported_once(arrives: bool) -> None:
    """While the model is being saved, points may still arrive, and connections may break."""
    job = Job()
    flying = job.begin(3)
    (ended,) = job.ended(last=True)
    assert (ended.reason, ended.chunks) == (JOB_ENDS, 3)
    if arrives:
        job.confirm()
        for chunk in flying:
            job.deliver(chunk)
        assert set(flying) <= set(job.held(FAST))
    else:
        (first, *_) = job.sends(SLOW)
        job.migration.on_failed(FAST, first.chunk, first.number, NO_MEMORY)
        job.settle()
    assert job.ended() == []


def test_a_report_of_another_worker_about_a_delivery_is_ignored() -> None:
    job = Job()
    (chunk,) = job.begin(1)
    (send,) = job.sends(SLOW)
    job.migration.on_arrived(THIRD, chunk, send.number, nbytes=1)
    job.migration.on_failed(THIRD, chunk, send.number, NO_MEMORY)
    job.confirm()
    assert job.plan.chunks[chunk].holder == SLOW and job.plan.moves[chunk].target == FAST


def test_a_chunk_comes_back_without_its_points() -> None:
    job = Job()
    moved = job.move(3, SLOW, FAST)
    lease = job.migration.lease(SLOW)
    assert list(lease.copies) == moved
    assert not set(moved) & {chunk.chunk for chunk in lease.chunks}, "copies are not visited"
    job.ended()
    job.migration.order([(chunk, FAST, SLOW) for chunk in moved])
    assert not job.sends(FAST)
    assert job.plan.moves and job.ended() == [], "its holder has not confirmed yet"
    job.confirm(FAST)
    assert set(moved) <= set(job.held(SLOW))
    assert [(each.chunks, each.free) for each in job.ended()] == [(3, 3)]
    assert list(job.migration.lease(SLOW).copies) == []
    assert list(job.migration.lease(FAST).copies) == moved


@pytest.mark.parametrize("shared_anew", [False, True])
def test_a_chunk_that_does_not_come_back_to_its_copy_is_not_told_as_moved(
    shared_anew: bool,
) -> None:
    job = Job()
    moved = job.move(3, SLOW, FAST)
    job.ended()
    job.migration.order([(chunk, FAST, SLOW) for chunk in moved])
    if shared_anew:
        job.migration.cancel(Reason("move-shared-anew", {"members": 3}))
    else:
        job.plan.release([SLOW])
        job.migration.forget([SLOW])
    job.settle()
    (ended,) = job.ended()
    assert ended.reason is not None and (ended.chunks, ended.free) == (3, 0)
    assert set(moved) <= set(job.held(FAST)) and not job.plan.moves


def test_the_oldest_copies_are_dropped_first() -> None:
    job = Job(copies_nbytes=4000)  # a point has 100 bytes here
    moved = job.move(6, SLOW, FAST)
    assert list(job.migration.lease(SLOW).copies) == moved[-4:]
    assert job.migration.most_points == 40


def test_a_worker_keeps_copies_of_as_many_points_as_its_first_share_has() -> None:
    assert Job().migration.most_points == 100


def test_a_copy_that_becomes_active_again_is_not_dropped() -> None:
    job = Job(copies_nbytes=2000)
    first, second = job.move(2, SLOW, FAST)
    # the chunk goes back to the slow worker, so its copy must be kept
    job.migration.order([(first, FAST, SLOW)])
    job.begin(1, SLOW, THIRD)
    job.confirm(SLOW)
    (send,) = job.sends(SLOW)
    job.deliver(send.chunk, SLOW, THIRD)
    assert first in job.migration.lease(SLOW).copies
    assert second not in job.migration.lease(SLOW).copies
    job.confirm(FAST)
    assert first in job.held(SLOW)


def test_with_blocking_both_workers_have_no_points_until_all_have_arrived() -> None:
    job = Job(BLOCKING)
    flying = job.begin(6)
    assert len(flying) == 6

    def leased(member: Holder) -> int:
        return len(job.migration.lease(member).chunks)

    job.confirm()
    for chunk in flying[:-1]:
        job.deliver(chunk)
    assert (leased(SLOW), leased(FAST), leased(THIRD)) == (0, 0, 10)
    for member in (SLOW, FAST):
        held, kept = job.held(member), job.migration.lease(member).copies
        assert held and set(held) <= set(kept), "a worker that waits keeps its chunks"
    number = job.plan.lease(SLOW).number
    job.deliver(flying[-1])
    assert (leased(SLOW), leased(FAST)) == (4, 16)
    assert job.plan.lease(SLOW).number > number, "the source gets a new lease"


def test_with_rows_the_holder_subtracts_when_the_points_have_arrived_and_not_before() -> None:
    job = Job(rows=True)
    (chunk,) = job.begin(1)
    job.confirm()
    assert [send.chunk for send in job.sends(SLOW)] == [chunk], "it stays in the row of its holder"
    locked = job.plan.lease(SLOW).number
    job.deliver(chunk)
    assert not job.sends(SLOW) and job.plan.lease(SLOW).number > locked, "the holder is told"
    job.migration.on_confirmed(SLOW, locked)
    job.settle()
    assert job.plan.chunks[chunk].holder == SLOW, "the holder may not have subtracted it yet"
    job.confirm()
    assert job.plan.chunks[chunk].holder == FAST
    assert not job.migration.lease(SLOW).copies, "what points remember must be sent"


def test_with_rows_a_dead_holder_need_not_subtract() -> None:
    job = Job(rows=True)
    (chunk,) = job.begin(1)
    job.confirm()
    job.deliver(chunk)
    job.plan.release([SLOW])
    job.migration.forget([SLOW])
    job.settle()
    assert job.plan.chunks[chunk].holder == FAST


def test_moves_that_are_not_complete_when_the_job_ends_are_counted_as_kept() -> None:
    """The move has six chunks: one has moved, four are in flight, and one waits."""
    job = Job()
    flying = job.begin(6)
    job.confirm()
    job.deliver(flying[0])
    assert job.ended() == [], "complete moves are told when nothing moves any more"
    told = job.ended(last=True)
    found = {each.reason and each.reason.code: (each.chunks, each.points) for each in told}
    size = job.plan.chunks[0].points
    assert found == {None: (1, size), "move-job-ends": (5, 5 * size)}


def test_chunks_that_come_back_to_a_copy_when_the_job_ends_are_counted_as_kept() -> None:
    job = Job()
    job.move(2, SLOW, FAST)
    job.ended()
    job.begin(2, FAST, SLOW)
    assert not job.sends(FAST), "the source has kept copies"
    (told,) = job.ended(last=True)
    assert told.reason == JOB_ENDS and told.chunks == 2


def test_a_lease_names_the_deliveries_to_earlier_incarnations_of_its_worker() -> None:
    job = Job()
    job.move(3, SLOW, FAST)
    job.plan.release([FAST])
    job.migration.forget([FAST])
    again = (FAST[0], 9)
    job.migration.on_listening(again, "worker-1", Address("h", 1, "", ""))
    job.plan.share([SLOW, again, THIRD])
    job.migration.activate_copies()
    job.begin(2, SLOW, again)
    job.migration.on_listening(again, "worker-1", Address("h", 2, "", ""))
    lease = job.migration.lease(again)
    assert (lease.earlier, lease.delivery) == (3, 5)
    assert job.migration.lease(SLOW).earlier == 0
