"""Which links a process uses: one for each peer, and none for a peer that the lead has not named."""

from dataclasses import dataclass

from polyrhythm.core.links import LinkTable


@dataclass(eq=False)
class Made:
    peer: str
    incarnation: int = 0


def table(*links: Made) -> LinkTable[Made]:
    made: LinkTable[Made] = LinkTable()
    for link in links:
        assert made.add(link) is None
    return made


def test_a_later_incarnation_replaces_the_link_of_an_earlier_one() -> None:
    first, second, late = Made("s1", 3), Made("s1", 4), Made("s1", 3)
    links = table(first)
    assert links.add(second) is first
    assert links.add(late) is late, "a link of the earlier incarnation is not used any more"
    assert links.links.get("s1") is second


def test_the_end_of_a_replaced_link_does_not_remove_its_successor() -> None:
    first, second = Made("s1", 1), Made("s1", 2)
    links = table(first)
    links.add(second)
    assert not links.remove(first)
    assert links.remove(second) and links.links.get("s1") is None


def test_an_unnamed_link_gets_its_peer_when_the_lead_names_it() -> None:
    link = Made("link-1")
    links = table()
    links.add_unnamed(link)
    assert links.is_unnamed(link) and links.links.get("link-1") is link
    assert links.name("link-1", "w2", 5) == (link, None)
    assert not links.is_unnamed(link) and (link.peer, link.incarnation) == ("w2", 5)
    assert links.links.get("w2") is link and links.links.get("link-1") is None
    assert links.name("link-1", "w2", 5) == (None, None), "a link is named once"


def test_a_named_link_replaces_only_the_link_of_an_earlier_incarnation() -> None:
    used, second, later = Made("w2", 5), Made("link-1"), Made("link-2")
    links = table(used)
    links.add_unnamed(second)
    links.add_unnamed(later)
    assert links.name("link-1", "w2", 5) == (second, second), "w2 has a link already"
    assert links.links.get("w2") is used
    assert links.name("link-2", "w2", 6) == (later, used)
    assert links.links.get("w2") is later


def test_a_link_that_ends_before_it_is_named_is_forgotten() -> None:
    link = Made("link-1")
    links = table()
    links.add_unnamed(link)
    assert links.remove(link) and not links.is_unnamed(link)
    assert links.name("link-1", "w2", 1) == (None, None) and not links.links


def test_the_lead_gives_the_link_of_a_peer_another_name() -> None:
    old, new = Made("w2", 1), Made("link-7")
    links = table(old, new)
    assert links.rename("link-7", "w2", 2) is old
    assert links.links.get("w2") is new and new.incarnation == 2
    assert links.rename("link-8", "w2", 3) is new, "the peer's link is over, even if the new one is"
