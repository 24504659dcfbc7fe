"""The number of links of unknown peers is limited: beyond the limit a new link closes the oldest
one."""

from polyrhythm.core.server.admission import PATIENCE_NS, Strangers


def test_the_oldest_silent_link_makes_room_for_the_next() -> None:
    strangers = Strangers(most=3)
    assert [strangers.on_accepted(link, link) for link in range(5)] == [[], [], [], [0], [1]]
    assert len(strangers) == 3


def test_silent_links_do_not_close_the_link_of_a_peer_that_has_said_hello() -> None:
    strangers = Strangers(most=2)
    strangers.on_accepted(0, 0)
    assert strangers.on_hello(0) == []
    closed = [link for number in range(1, 50) for link in strangers.on_accepted(number, number)]
    assert closed == list(range(1, 48))


def test_unproven_links_have_a_limit_too() -> None:
    strangers = Strangers(most=2)
    closed = []
    for link in range(4):
        strangers.on_accepted(link, link)
        closed.append(strangers.on_hello(link))
    assert closed == [[], [], [0], [1]]


def test_where_descriptors_are_scarce_the_oldest_silent_link_goes_first() -> None:
    strangers = Strangers()
    for link in range(3):
        strangers.on_accepted(link, link)
    strangers.on_hello(0)
    assert [strangers.make_room() for _ in range(4)] == [[1], [2], [0], []]
    assert len(strangers) == 0


def test_a_peer_has_ten_seconds_for_the_whole_handshake() -> None:
    strangers = Strangers()
    strangers.on_accepted(1, 0)
    strangers.on_accepted(2, 5)
    strangers.on_hello(1)
    assert strangers.wake_at() == PATIENCE_NS
    assert strangers.overdue(PATIENCE_NS - 1) == []
    assert strangers.overdue(PATIENCE_NS) == [1]
    strangers.gone(2)
    assert strangers.wake_at() is None and len(strangers) == 0
