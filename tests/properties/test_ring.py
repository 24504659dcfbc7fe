"""The ring moves as few slices as possible. No server is empty while another one holds two
slices."""

import hashlib
from collections import Counter

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from polyrhythm.core.placement.ring import VIRTUAL_NODES, Ring
from polyrhythm.wire.messages import Route

servers = st.sets(st.integers(0, 12), min_size=1, max_size=7)
slices = st.integers(0, 60)
CIRCLE = 2**64


def point(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def slow_clockwise(members: set[int], slice_: int) -> list[int]:
    """The servers in clockwise order from the slice. Brute force: compute every distance, and
    sort."""
    begin = point(f"slice {slice_}")
    distance = {
        server: min(
            (point(f"server {server} node {node}") - begin - 1) % CIRCLE
            for node in range(VIRTUAL_NODES)
        )
        for server in members
    }
    return sorted(members, key=distance.__getitem__)


def slow_place(members: set[int], count: int, current: dict[int, list[int]]) -> list[int]:
    """The primary of each slice, by brute force. If the slices cannot be divided evenly, some servers
    hold one slice more than the others: the first servers that are offered one more."""
    few = count // len(members)
    held = Counter(dict.fromkeys(members, 0))
    placed: dict[int, int] = {}

    def fits(server: int) -> bool:
        fuller = sum(load > few for load in held.values())
        return held[server] < few or (held[server] == few and fuller < count % len(members))

    wishes = [
        (slice_, [server for server in wanted if server in members])
        for slice_, wanted in current.items()
    ]
    wishes += [(slice_, slow_clockwise(members, slice_)) for slice_ in range(count)]
    for slice_, choices in wishes:
        for server in choices:
            if slice_ not in placed and fits(server):
                held[server] += 1
                placed[slice_] = server
    return [placed[slice_] for slice_ in range(count)]


def primaries(routes: tuple[Route, ...]) -> dict[int, int]:
    return {slice_: route.primary for slice_, route in enumerate(routes)}


def staying(routes: tuple[Route, ...]) -> dict[int, list[int]]:
    """Per slice, the servers that it may stay with: only its current primary."""
    return {slice_: [route.primary] for slice_, route in enumerate(routes)}


def check_leaving(members: set[int], count: int, gone: int) -> None:
    routes = Ring(sorted(members)).place(count)
    before = primaries(routes)
    after = primaries(Ring(sorted(members - {gone})).place(count, current=staying(routes)))
    moved = {slice_ for slice_ in before if before[slice_] != after[slice_]}
    assert moved == {slice_ for slice_, server in before.items() if server == gone}


def check_joining(members: set[int], count: int, new: int) -> None:
    routes = Ring(sorted(members)).place(count)
    before = primaries(routes)
    after = primaries(Ring(sorted(members | {new})).place(count, current=staying(routes)))
    moved = {slice_ for slice_ in before if before[slice_] != after[slice_]}
    assert moved == {slice_ for slice_, server in after.items() if server == new}
    assert len(moved) <= count // (len(members) + 1)


@given(servers, slices)
def test_no_server_is_empty_while_another_holds_two_slices(members, count) -> None:
    load = Counter(primaries(Ring(sorted(members)).place(count)).values())
    loads = [load[server] for server in members]
    assert sum(loads) == count
    assert max(loads) - min(loads) <= 1


@given(servers, st.integers(0, 300))
def test_clockwise_returns_every_server_once_in_the_order_of_the_brute_force(
    members, slice_
) -> None:
    assert list(Ring(sorted(members)).clockwise(slice_)) == slow_clockwise(members, slice_)


@given(servers, st.integers(0, 25), st.data())
def test_placement_equals_the_brute_force(members, count, data) -> None:
    servers = st.integers(0, 12)
    current = data.draw(
        st.dictionaries(st.integers(0, max(0, count - 1)), st.lists(servers, max_size=3))
        if count
        else st.just({})
    )
    routes = Ring(sorted(members)).place(count, current=current)
    assert [route.primary for route in routes] == slow_place(members, count, current)


@given(servers, slices, st.integers(0, 8))
def test_replicas_are_the_next_servers_clockwise_after_the_primary(members, count, k) -> None:
    for slice_, route in enumerate(Ring(sorted(members)).place(count, replicas=k)):
        others = [server for server in slow_clockwise(members, slice_) if server != route.primary]
        assert list(route.replicas) == others[:k]


@given(servers, slices, st.data())
def test_a_server_that_leaves_moves_only_its_own_slices(members, count, data) -> None:
    assume(len(members) > 1)
    check_leaving(members, count, data.draw(st.sampled_from(sorted(members)), "gone"))


@given(servers, slices, st.integers(0, 12))
def test_a_server_that_joins_takes_only_what_the_bound_allows(members, count, new) -> None:
    assume(new not in members)
    check_joining(members, count, new)


@given(servers, slices)
def test_placement_does_not_depend_on_the_order_of_servers(members, count) -> None:
    one, other = sorted(members), sorted(members, reverse=True)
    assert Ring(one).place(count, 2) == Ring(other).place(count, 2)


def test_other_slices_move_if_the_current_placement_is_ignored(monkeypatch) -> None:
    check_leaving(set(range(5)), 40, 2)
    check_joining(set(range(4)), 40, 4)
    place = Ring.place
    monkeypatch.setattr(
        Ring, "place", lambda self, count, replicas=0, current=None: place(self, count, replicas)
    )
    with pytest.raises(AssertionError):
        check_leaving(set(range(5)), 40, 2)
    with pytest.raises(AssertionError):
        check_joining(set(range(4)), 40, 4)
