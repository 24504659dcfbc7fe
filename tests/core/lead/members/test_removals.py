"""Removed members: whether they may rejoin, how long their links stay, when a job is deserted."""

from polyrhythm.core.lead.members.leaving import Removals

SECOND_NS = 10**9


def test_an_evicted_member_may_rejoin_until_shortly_after_its_link_ends() -> None:
    removals = Removals(0.0)
    removals.may_rejoin(3, 7, 0)
    assert not removals.is_deserted(1000 * SECOND_NS)
    assert removals.on_link_ended(3, 7, 0)
    assert not removals.is_deserted(0), "a worker closes the old link before it says hello again"
    assert removals.is_deserted(10 * SECOND_NS)


def test_the_end_of_an_older_link_does_not_concern_an_evicted_member() -> None:
    removals = Removals(0.0)
    removals.may_rejoin(3, 7, 0)
    assert not removals.on_link_ended(3, 5, 0)
    assert not removals.is_deserted(1000 * SECOND_NS)


def test_a_job_without_evicted_members_is_deserted_after_the_grace_period() -> None:
    removals = Removals(2.0)
    assert not removals.is_deserted(0)
    assert removals.deadline.wake_ns == 2 * SECOND_NS
    assert removals.is_deserted(2 * SECOND_NS)


def test_the_links_of_an_evicted_member_are_kept_for_a_while() -> None:
    removals = Removals(0.0, 60.0)
    removals.may_rejoin(3, 7, SECOND_NS)
    assert removals.deadline.wake_ns == 61 * SECOND_NS
    assert removals.links_due(61 * SECOND_NS - 1, alone=False) == []
    assert removals.links_due(61 * SECOND_NS, alone=False) == [(3, 7)]
    assert removals.on_link_ended(3, 7, 61 * SECOND_NS)
    assert removals.deadline.wake_ns is None


def test_the_links_are_kept_while_there_is_no_other_member() -> None:
    removals = Removals(0.0, 60.0)
    removals.may_rejoin(3, 7, 0)
    assert removals.links_due(60 * SECOND_NS, alone=True) == []
    assert removals.deadline.wake_ns == 120 * SECOND_NS
    assert not removals.is_deserted(60 * SECOND_NS)
    assert removals.links_due(120 * SECOND_NS, alone=False) == [(3, 7)]


def test_a_pause_of_the_lead_extends_the_time_that_links_are_kept() -> None:
    removals = Removals(0.0, 60.0)
    removals.may_rejoin(3, 7, 0)
    removals.exclude_time(30 * SECOND_NS, 30 * SECOND_NS)
    assert removals.links_due(60 * SECOND_NS, alone=False) == []
    assert removals.links_due(90 * SECOND_NS, alone=False) == [(3, 7)]


def test_a_pause_of_the_lead_extends_the_time_to_rejoin() -> None:
    """The worker could not say hello while the lead stood still."""
    removals = Removals(0.0)
    removals.may_rejoin(3, 7, 0)
    assert removals.on_link_ended(3, 7, 0)
    removals.exclude_time(30 * SECOND_NS, 30 * SECOND_NS)
    assert not removals.is_deserted(31 * SECOND_NS)
    assert removals.is_deserted(36 * SECOND_NS)


def test_removals_of_several_views_are_confirmed_together() -> None:
    """A second view was sent before every server knew the first one."""
    removals = Removals(0.0)
    removals.leave((1, 5))
    removals.on_view_sent()
    removals.leave((2, 6))
    removals.on_view_sent()
    assert removals.is_pending(1, 5) and removals.is_pending(2, 6)
    assert removals.on_view_known() == [(1, 5), (2, 6)]
    assert not removals.any
