"""Moves of leases that are not complete when the job ends do not count as moved."""

from polyrhythm.core.lead.balance.balancing import Balancing
from polyrhythm.core.lead.chunks import Holder
from polyrhythm.core.lead.data import DataPlan

SLOW, FAST = (0, 1), (1, 2)
MEMBERS: list[tuple[Holder, bool]] = [(SLOW, False), (FAST, False)]


def test_leases_that_were_not_given_up_when_the_job_ends_are_counted_as_kept() -> None:
    plan, balancing = DataPlan(1000, 2, 0, None, fewest=100), Balancing()
    plan.share([SLOW, FAST])
    moved = []
    for fold in range(1, 1000):
        balancing.speeds.visited(SLOW, 10)
        balancing.speeds.visited(FAST, 80)
        _, moved = balancing.folded(plan, MEMBERS, None, fold * 10**8)
        if moved:
            break
    chunks, points = moved[0].chunks, moved[0].points
    assert not balancing.ended(plan), "they still move"
    (kept,) = balancing.ended(plan, last=True)
    assert (kept.source, kept.target, kept.chunks, kept.points) == (0, 1, chunks, points)
    assert kept.reason is not None and kept.reason.code == "move-job-ends"
    plan.confirm(SLOW, plan.lease(SLOW).number)
    assert not balancing.ended(plan, last=True), "they have moved"
