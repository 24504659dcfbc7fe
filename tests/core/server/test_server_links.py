from polyrhythm.core.links import Links
from polyrhythm.wire.messages import Address, ServerSpec


def spec(server: int, incarnation: int = 1) -> ServerSpec:
    return ServerSpec(server, Address("host", server, "", ""), incarnation)


def test_links_are_complete_with_the_incarnations_that_are_wanted() -> None:
    links = Links()
    links.want([spec(1), spec(2, 3)])
    links.on_linked(1, 1)
    links.on_linked(2, 1)
    assert not links.complete and links.absent == [2]
    links.on_linked(2, 3)
    assert links.complete and links.absent == []


def test_a_server_is_dialed_once_per_incarnation_and_again_when_its_link_has_ended() -> None:
    links = Links()
    assert links.dial([spec(1), spec(2)]) == (spec(1), spec(2))
    assert links.dial([spec(1), spec(2, 2)]) == (spec(2, 2),)
    links.came(1, 1)
    assert links.on_ended(1, 1)
    assert links.dial([spec(1)]) == (spec(1),)


def test_a_server_that_linked_by_itself_is_not_dialed() -> None:
    links = Links()
    links.came(1, 1)
    assert links.dial([spec(1)]) == ()


def test_the_end_of_an_older_link_is_ignored() -> None:
    links = Links()
    links.want([spec(1, 2)])
    links.on_linked(1, 2)
    assert not links.on_ended(1, 1) and links.complete
    assert not links.wants(1, 1) and links.wants(1, 2) and links.wants(1, 0)
    assert links.on_ended(1, 0), "the incarnation is not known"
    assert not links.complete


def test_the_end_of_an_older_link_does_not_end_the_link_being_dialed() -> None:
    links = Links()
    links.came(1, 1)
    (again,) = links.dial([spec(1, 2)])
    assert links.on_ended(1, 1)
    assert links.dial([again]) == ()
