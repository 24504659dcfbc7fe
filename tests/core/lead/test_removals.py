"""Who is gone, and whether a job without members still has somebody to wait for."""

from polyrhythm.core.lead.removals import Removals

SECOND_NS = 10**9


def test_one_who_was_evicted_may_wake_until_its_link_ends() -> None:
    departures = Removals(0.0)
    departures.falls_asleep(3, 7, 0)
    assert not departures.deserted(1000 * SECOND_NS)
    assert departures.hung_up(3, 7, 0)
    assert not departures.deserted(0), "it hangs up before it knocks again"
    assert departures.deserted(10 * SECOND_NS)


def test_the_end_of_an_earlier_link_says_nothing_of_one_who_sleeps() -> None:
    departures = Removals(0.0)
    departures.falls_asleep(3, 7, 0)
    assert not departures.hung_up(3, 5, 0)
    assert not departures.deserted(1000 * SECOND_NS)


def test_without_anybody_asleep_it_is_deserted_after_the_grace() -> None:
    departures = Removals(2.0)
    assert not departures.deserted(0)
    assert departures.wake_ns == 2 * SECOND_NS
    assert departures.deserted(2 * SECOND_NS)


def test_the_links_of_a_sleeper_are_kept_for_a_while() -> None:
    departures = Removals(0.0, 60.0)
    departures.falls_asleep(3, 7, SECOND_NS)
    assert departures.wake_ns == 61 * SECOND_NS
    assert departures.unwoken(61 * SECOND_NS - 1, alone=False) == []
    assert departures.unwoken(61 * SECOND_NS, alone=False) == [(3, 7)]
    assert departures.hung_up(3, 7, 61 * SECOND_NS)
    assert departures.wake_ns is None


def test_a_sleeper_is_waited_for_while_there_is_no_other_member() -> None:
    departures = Removals(0.0, 60.0)
    departures.falls_asleep(3, 7, 0)
    assert departures.unwoken(60 * SECOND_NS, alone=True) == []
    assert departures.wake_ns == 120 * SECOND_NS
    assert not departures.deserted(60 * SECOND_NS)
    assert departures.unwoken(120 * SECOND_NS, alone=False) == [(3, 7)]


def test_a_pause_of_the_lead_does_not_count() -> None:
    departures = Removals(0.0, 60.0)
    departures.falls_asleep(3, 7, 0)
    departures.exclude_time(30 * SECOND_NS)
    assert departures.unwoken(60 * SECOND_NS, alone=False) == []
    assert departures.unwoken(90 * SECOND_NS, alone=False) == [(3, 7)]
