"""If a move of chunks ends before it is complete, its chunks are not counted as moved."""

import pytest

from polyrhythm.core.lead.data.balance.balancing import Balancing, BalancingState
from polyrhythm.core.lead.data.chunks import Holder
from polyrhythm.core.lead.data.moves import EndedMoves, MovePhase
from polyrhythm.core.migration import LEASE
from tests.core.lead.data.plans import migration_over, plan_of

SLOW, FAST, THIRD = (0, 1), (1, 2), (2, 3)


class Job:
    """A slow member and a fast one. Leases of some chunks have begun to move."""

    def __init__(self) -> None:
        self.plan = plan_of(1000, 2, 0, None, fewest=100)
        self.migration = migration_over(self.plan, LEASE)
        self.balancing = Balancing(BalancingState(), self.plan, self.migration)
        self.members = self.plan.members = [SLOW, FAST]
        self.plan.share(self.members)
        resting = [(member, False) for member in self.members]
        for fold in range(1, 1000):
            self.balancing.speeds.on_visited(SLOW, 10)
            self.balancing.speeds.on_visited(FAST, 80)
            moved = self.balancing.on_folded(resting, None, fold * 10**8)
            if moved:
                self.chunks, self.points = moved[0].chunks, moved[0].points
                break
        assert not self.ended(), "they still move"

    def ended(self, *, last: bool = False) -> list[EndedMoves]:
        return self.migration.take_ended(last=last)

    def confirm(self) -> None:
        self.plan.on_confirmed(SLOW, self.plan.lease(SLOW).number)

    def share(self, *members: Holder) -> None:
        """The members have changed to these, and every server knows it. The chunks are distributed
        anew."""
        self.plan.release(set(self.members) - set(members))
        self.members = self.plan.members = list(members)
        self.plan.share(self.members)

    def check_kept(self, ended: list[EndedMoves], code: str) -> None:
        (kept,) = ended
        numbers = (self.chunks, self.points)
        assert (kept.source, kept.target, kept.chunks, kept.points) == (0, 1, *numbers)
        assert kept.reason is not None and kept.reason.code == code
        assert not self.ended(last=True), "they are counted once"


def test_leases_that_were_not_given_up_when_the_job_ends_are_counted_as_kept() -> None:
    job = Job()
    job.check_kept(job.ended(last=True), "move-job-ends")


def test_leases_that_were_given_up_before_the_job_ends_are_not_counted_as_kept() -> None:
    job = Job()
    job.confirm()
    assert not job.ended(last=True)


@pytest.mark.parametrize("others", [(), (THIRD,)])
def test_leases_whose_target_leaves_are_counted_as_kept(others: tuple[Holder, ...]) -> None:
    job = Job()
    job.share(SLOW, *others)
    job.check_kept(job.ended(), "move-member-left")


def test_leases_whose_source_leaves_have_moved() -> None:
    job = Job()
    job.share(FAST)
    assert not job.ended() and not job.ended(last=True)


def test_leases_that_another_member_gets_instead_are_counted_as_kept() -> None:
    job = Job()
    job.share(SLOW, FAST, THIRD)
    moving = len(job.plan.moves)
    kept = sum(each.chunks for each in job.ended())
    assert moving and 0 < kept <= job.chunks
    job.confirm()
    complete = [move for move in job.plan.ended if move.phase is MovePhase.COMPLETE]
    got = sum(move.source == SLOW and move.target == FAST for move in complete)
    assert not job.ended(last=True) and got == job.chunks - kept
