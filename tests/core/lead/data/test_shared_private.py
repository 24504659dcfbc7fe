"""Private data sets that their owners share: which workers may get their chunks, and which worker gets a
chunk when its owner or its holder is gone."""

import pytest

from polyrhythm.core.combinations import sharing_fault
from polyrhythm.core.lead.data.balance.decision import Pace, without_stuck
from polyrhythm.core.lead.data.chunks import Holder
from polyrhythm.core.lead.data.migration import WINDOW_CHUNKS
from polyrhythm.core.lead.data.moves import EndedMoves
from polyrhythm.core.lead.data.plan import CHUNKS_TO_BALANCE
from polyrhythm.core.migration import migration_of
from polyrhythm.core.sync.registry import traits_of
from polyrhythm.core.worker.deliveries import refusal
from polyrhythm.wire.messages import Address, ChunkProgress, JobSpec
from tests.core.lead.data.plans import migration_over, private_plan

A, B, C = (0, 1), (1, 2), (2, 3)
B_AGAIN, B_THEN = (1, 9), (1, 12)
NAMES = {A: "a", B: "b", C: "c", B_AGAIN: "b", B_THEN: "b"}


class Job:
    """Three members with 40 points each. The members in `sharing` share their points."""

    def __init__(self, *sharing: Holder) -> None:
        self.plan, self.data = private_plan(7, None)
        self.migration = migration_over(self.plan)
        for holder in (A, B, C):
            self.enrol(holder, shares=holder in sharing)

    def enrol(self, holder: Holder, points: int = 40, *, shares: bool = False) -> None:
        name = NAMES[holder]
        self.data.enrol(name, holder, points, 1, shares=shares)
        self.migration.bound_copies(3)
        self.migration.on_listening(holder, name, Address("h", holder[0], "", ""))
        if not shares:
            self.migration.withdraw(self.data.withdrawn(holder), holder)
            self.data.drop_unshared(holder)
        self.check()

    def check(self) -> None:
        self.plan.check()
        self.migration.check()

    def held(self, holder: Holder) -> set[int]:
        return {chunk.chunk for chunk in self.plan.lease(holder).chunks}

    def move(self, chunk: int, source: Holder, target: Holder) -> bool:
        """Try to move a chunk, with its points if they must be sent. Returns whether the points
        were sent."""
        migration = self.migration
        migration.order([(chunk, source, target)])
        self.check()
        sends = migration.lease(source).sends
        for send in sends:
            migration.on_arrived(target, chunk, send.number, nbytes=100)
        self.confirm(source)
        return bool(sends)

    def confirm(self, holder: Holder) -> None:
        self.migration.on_confirmed(holder, self.plan.lease(holder).number)
        self.migration.settle()
        self.check()

    def release(self, *gone: Holder) -> None:
        self.plan.release(gone, self.migration.copies)
        self.migration.forget(gone)
        self.migration.settle()
        self.check()

    def withdraw(self, chunks: list[int], owner: Holder) -> set[Holder]:
        """The owner does not share its points any more. Returns the members whose leases changed."""
        self.plan.take_changed()
        self.migration.withdraw(chunks, owner)
        return self.plan.take_changed()

    def ended(self, *, last: bool = False) -> list[EndedMoves]:
        return self.migration.take_ended(last=last)


def kept(job: Job) -> list[str]:
    return [each.reason.code for each in job.ended() if each.reason is not None]


def test_a_private_chunk_stays_if_its_owner_does_not_share_it() -> None:
    job = Job(C)
    assert not job.move(0, A, B)
    assert 0 in job.held(A) and kept(job) == ["move-not-shared"]


def test_a_shared_chunk_moves_and_keeps_its_owner() -> None:
    job = Job(A)
    assert job.move(0, A, B)
    assert 0 in job.held(B) and kept(job) == []
    (lease,) = (chunk for chunk in job.plan.lease(B).chunks if chunk.chunk == 0)
    assert (lease.first, lease.last) == (40, 41), "after the 40 points of its own"
    assert not job.move(0, B, A), "the owner has the points"
    assert 0 in job.held(A)
    assert not job.move(0, A, B), "b has kept a copy"
    assert 0 in job.held(B)


@pytest.mark.parametrize("b_shares", [False, True])
def test_only_a_member_that_shares_its_own_data_sends_on_what_it_has_received(
    b_shares: bool,
) -> None:
    job = Job(*([A, B] if b_shares else [A]))
    job.move(0, A, B)
    assert job.move(0, B, C) == b_shares
    assert 0 in job.held(C if b_shares else B)


def test_shared_data_has_small_chunks() -> None:
    _, data = private_plan(7, None)
    data.enrol("a", A, 1000, 1, shares=True)
    assert len(data.plan.chunks) == CHUNKS_TO_BALANCE


def test_chunks_that_have_moved_stay_when_their_owner_is_gone() -> None:
    job = Job(A)
    job.move(0, A, B)
    job.data.take_news()
    job.release(A)
    assert 0 in job.held(B) and job.plan.points == 81
    (news,) = job.data.take_news()
    expected = {"name": "a", "points": 39, "total": 81, "kept": 1}
    assert (news.code, news.fields) == ("data-partly-lost", expected)
    job.data.take_news()
    job.release(B)
    assert {news.code for news in job.data.take_news()} == {"data-lost-later", "data-lost"}
    assert job.plan.points == 40


def test_a_chunk_goes_back_to_its_owner_when_its_holder_is_gone_and_no_pass_is_left_out() -> None:
    job = Job(A)
    job.move(0, A, B)
    for holder, passes in ((A, 3), (B, 3), (C, 3)):
        for chunk in job.held(holder) - {0}:
            job.plan.commit(holder, (ChunkProgress(chunk, passes, 0),))
    job.plan.commit(B, (ChunkProgress(0, 1, 0),))
    job.data.take_news()
    job.release(B)
    (lease,) = (chunk for chunk in job.plan.lease(A).chunks if chunk.chunk == 0)
    assert (lease.first, lease.passes) == (0, 1) and job.plan.passes == 1
    assert [news.code for news in job.data.take_news()] == ["data-returned", "data-lost"]


def test_points_in_flight_stay_with_the_target_only_if_they_have_arrived() -> None:
    job = Job(A)
    plan, migration = job.plan, job.migration
    migration.order([(0, A, B), (1, A, B)])
    first, _ = migration.lease(A).sends
    migration.on_arrived(B, 0, first.number, nbytes=10)
    job.release(A)
    assert 0 in job.held(B) and 1 not in job.held(B)
    assert plan.points == 81


def test_an_owner_that_comes_back_gets_only_the_chunks_that_no_member_holds() -> None:
    job = Job(B)
    first = min(job.held(B))
    job.move(first, B, A)
    job.release(B)
    job.data.take_news()
    job.enrol(B_AGAIN, shares=True)
    assert first in job.held(A) and first not in job.held(B_AGAIN)
    assert len(job.held(B_AGAIN)) == 39 and job.plan.points == 120
    (news,) = job.data.take_news()
    expected = {"name": "b", "points": 39, "total": 120, "all": 40}
    assert (news.code, news.fields) == ("data-partly-back", expected)


def test_an_owner_that_comes_back_and_does_not_share_any_more_gets_its_chunks_back() -> None:
    job = Job(B)
    chunks = sorted(job.held(B))[:2]
    for chunk in chunks:
        job.move(chunk, B, A)
    job.release(B)
    job.data.enrol("b", B_AGAIN, 40, 1)
    assert job.data.withdrawn(B_AGAIN) == chunks
    assert job.withdraw(chunks, B_AGAIN) == {A}
    job.check()
    job.confirm(A)
    assert set(chunks) <= job.held(B_AGAIN) and not job.data.withdrawn(B_AGAIN)


@pytest.mark.parametrize("end", ["the job ends", "the owner leaves", "the owner is back again"])
def test_chunks_that_do_not_get_back_to_their_owner_are_not_counted_as_kept(end: str) -> None:
    """The journal did not report these moves when they began, because chunks that go back to their
    owner do not move to a faster worker. So the journal must not report either that these chunks were
    kept."""
    job = Job(B)
    chunk = min(job.held(B))
    job.move(chunk, B, A)
    job.release(B)
    job.ended()
    job.enrol(B_AGAIN)
    job.withdraw([chunk], B_AGAIN)
    if end == "the owner leaves":
        job.release(B_AGAIN)
        assert chunk in job.held(A)
    elif end == "the owner is back again":
        job.withdraw([chunk], (1, 10))
    assert job.ended(last=end == "the job ends") == []


def test_a_chunk_that_has_stayed_with_another_member_is_counted_when_it_moves_again() -> None:
    job = Job(B)
    chunk = min(job.held(B))
    job.move(chunk, B, A)
    job.release(B)
    job.enrol(B_AGAIN)
    job.withdraw([chunk], B_AGAIN)
    job.release(B_AGAIN)
    job.ended()
    assert not job.move(chunk, A, C) and kept(job) == ["move-not-shared"]


def test_a_chunk_that_goes_back_is_kept_until_its_owner_has_it() -> None:
    """If the owner dies before it has the chunk, the member that holds the chunk keeps the points. This
    member could not read them from its own data set."""
    job = Job(A)
    job.move(0, A, B)
    job.migration.order([(0, B, A)])
    assert 0 in job.migration.lease(B).copies
    job.release(A)
    assert 0 in job.held(B)


def test_a_worker_that_is_back_with_other_points_does_not_get_its_old_chunks() -> None:
    job = Job(B)
    first = min(job.held(B))
    job.move(first, B, A)
    job.release(B)
    job.data.take_news()
    job.enrol(B_AGAIN, 50, shares=True)
    assert first in job.held(A) and job.plan.points == 40 + 1 + 50 + 40
    (news,) = job.data.take_news()
    expected = {"name": "b", "points": 50, "before": 40, "kept": 1}
    assert (news.code, news.fields) == ("data-replaced-partly", expected)
    recorded = {chunk.holder for chunk in job.plan.recorded({})}
    assert recorded == {"a", "b", "c"} and len(job.plan.recorded({})) == 16 + 50 + 16


def replace_unshared(job: Job) -> None:
    """Worker B comes back with other points, and shares nothing."""
    job.release(B)
    job.enrol(B_AGAIN, 50)


def test_old_points_are_not_visited_if_their_owner_does_not_share_its_new_points() -> None:
    job = Job(A, B)
    first = min(job.held(B))
    job.move(first, B, A)
    for holder in (A, C):
        for chunk in job.held(holder) - {first}:
            job.plan.commit(holder, (ChunkProgress(chunk, 2, 0),))
    before = job.plan.lease(A).number
    job.data.take_news()
    replace_unshared(job)
    assert not {first} & job.held(A) and job.plan.lease(A).number > before
    assert job.plan.points == 40 + 50 + 40
    assert [news.code for news in job.data.take_news()] == ["data-partly-lost", "data-replaced"]
    assert not job.plan.commit(A, (ChunkProgress(first, 1, 0),)), "a visit in flight"
    job.release(A)
    assert job.plan.chunks[first].holder is None and job.plan.points == 90


def test_points_of_an_earlier_data_set_are_dropped_when_a_later_one_is_not_shared_any_more() -> (
    None
):
    job = Job(A, B)
    first = min(job.held(B))
    job.move(first, B, A)
    job.release(B)
    job.enrol(B_AGAIN, 50, shares=True)
    assert first in job.held(A)
    job.release(B_AGAIN)
    job.enrol(B_THEN, 50)
    assert first not in job.held(A) and job.plan.points == 40 + 50 + 40


def test_moves_of_old_points_end_if_their_owner_does_not_share_its_new_points() -> None:
    """Some of the points are on their way, and others wait until these have arrived."""
    job = Job(A, B)
    chunks = sorted(job.held(B))[: WINDOW_CHUNKS + 2]
    for chunk in chunks:
        job.move(chunk, B, A)
    job.ended()
    job.migration.order([(chunk, A, C) for chunk in chunks])
    assert len(job.migration.lease(A).sends) == WINDOW_CHUNKS
    before = job.plan.lease(A).number
    replace_unshared(job)
    assert job.plan.lease(A).number > before
    assert not job.migration.lease(A).sends and not set(chunks) & job.held(A)
    assert kept(job) == ["move-withdrawn"] and not job.plan.moves


def test_a_move_to_a_copy_ends_if_the_owner_of_the_points_does_not_share_them_any_more() -> None:
    job = Job(A, B)
    first = min(job.held(B))
    job.move(first, B, A)
    job.move(first, A, C)
    job.ended()
    job.migration.order([(first, C, A)])
    assert first in job.plan.moves and not job.migration.lease(C).sends
    replace_unshared(job)
    assert not {first} & (job.held(A) | job.held(C)) and not job.migration.copies[A]
    assert kept(job) == ["move-withdrawn"]


def test_members_drop_copies_of_points_that_are_not_shared_any_more() -> None:
    job = Job(A, B)
    first, second = sorted(job.held(B))[:2]
    for chunk in (first, second):
        job.move(chunk, B, A)
    job.move(first, A, C)
    assert list(job.migration.copies[A]) == [first]
    before = job.plan.lease(A).number
    job.release(B)
    job.enrol(B_AGAIN)
    assert job.plan.lease(A).number > before
    assert not job.migration.copies[A], "of a chunk that another member holds"
    job.confirm(A)
    assert second in job.held(B_AGAIN) and not job.migration.lease(A).copies
    job.check()


@pytest.mark.parametrize("owner_first", [False, True])
def test_a_chunk_whose_owner_and_holder_are_gone_goes_on_with_a_copy(owner_first: bool) -> None:
    job = Job(A, B)
    job.move(0, A, B)
    job.move(0, B, C)
    job.plan.commit(C, (ChunkProgress(0, 1, 0),))
    for gone in [(A,), (C,)] if owner_first else [(A, C)]:
        job.release(*gone)
    (lease,) = (chunk for chunk in job.plan.lease(B).chunks if chunk.chunk == 0)
    assert lease.passes == 1, "visits that counted are not repeated"
    assert job.plan.points == 41
    assert 0 not in job.migration.lease(B).copies


def test_a_copy_is_not_visited_if_the_owner_has_stopped_sharing_it() -> None:
    job = Job(B, A)
    chunk = min(job.held(B))
    job.move(chunk, B, A)
    job.move(chunk, A, C)
    job.release(B)
    job.enrol(B_AGAIN)
    job.withdraw(job.data.withdrawn(B_AGAIN), B_AGAIN)
    job.confirm(C)
    assert chunk in job.held(B_AGAIN)
    job.release(B_AGAIN)
    assert chunk not in job.held(A) | job.held(C) and job.plan.points == 80


def test_slow_members_whose_points_stay_are_left_out_of_the_balance() -> None:
    slow, middle, fast = (
        Pace(key, 100, speed, 0.0, 0.0) for key, speed in ((A, 4), (B, 2), (C, 1))
    )
    assert without_stuck([slow, middle, fast], lambda key: key == B) == [middle, fast]
    assert without_stuck([slow, middle, fast], lambda key: True) == [slow, middle, fast]
    assert without_stuck([slow, middle, fast], lambda key: False) == []


@pytest.mark.parametrize(
    ("private", "shares", "refused"),
    [(True, False, True), (True, True, False), (False, False, False)],
)
def test_a_worker_sends_private_points_only_if_it_shares_them(
    private: bool, shares: bool, refused: bool
) -> None:
    assert (refusal(private=private, shares=shares) is not None) == refused


@pytest.mark.parametrize(
    ("changes", "mode", "fault"),
    [
        ({"sync": "fsp"}, "full", None),
        ({"sync": "bsp", "migrate": "full"}, "full", None),
        ({"sync": "bsp"}, "off", "give --migrate full"),
        ({"sync": "fsp", "migrate": "off"}, "off", "--migrate off"),
        ({"sync": "fsp", "data_private": False}, "lease", "--data-private"),
    ],
)
def test_when_points_of_a_worker_that_shares_them_move(
    changes: dict[str, object], mode: str, fault: str | None
) -> None:
    fields: dict[str, object] = {"kind": "local", "migrate": "auto", "data_private": True}
    job = JobSpec(job="j", **{**fields, **changes})  # type: ignore[arg-type]
    traits = traits_of(job.sync)
    assert migration_of(job, traits) == mode
    found = sharing_fault(job, traits)
    assert (found is None) == (fault is None) and (fault or "") in (found or "")
