"""The lead may run in any server, not only in the first one."""

from polyrhythm.core.names import LEAD, LeadSeat

SEAT = LeadSeat.at(2)


def test_the_leads_server_is_reached_over_the_link_to_the_lead() -> None:
    assert SEAT.link_to("s2") == LEAD
    assert SEAT.link_to("s0") == "s0"
    assert SEAT.link_to("w2") == "w2"


def test_the_link_to_the_lead_ends_at_the_leads_server() -> None:
    assert SEAT.server_at(LEAD) == 2
    assert SEAT.server_at("s1") == 1
    assert SEAT.server_at("w1") is None


def test_only_the_leads_server_may_send_over_the_link_to_the_lead() -> None:
    assert SEAT.may_send_over(LEAD, "s2")
    assert SEAT.may_send_over(LEAD, LEAD)
    assert SEAT.may_send_over("s1", "s1")
    assert not SEAT.may_send_over(LEAD, "s0")
    assert not SEAT.may_send_over("s2", LEAD)
