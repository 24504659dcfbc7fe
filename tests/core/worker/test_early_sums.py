"""`--optimizer-on workers`: which sums a worker keeps that servers have sent before the fold was
ordered."""

from hypothesis import given
from hypothesis import strategies as st

from polyrhythm.core.worker.pulls import Assembly
from polyrhythm.wire.messages import Route

BEFORE = tuple(Route(server, since=1) for server in (0, 1, 0, 1))
AFTER = tuple(Route(0, since=2 if route.primary == 1 else 1) for route in BEFORE)
"""Server 1 is lost, and server 0 takes over."""


def landed(version: int) -> Assembly:
    assembly = Assembly(BEFORE)
    for slice_, route in enumerate(BEFORE):
        assembly.land(route.primary, slice_, version)
    return assembly


def follow(assembly: Assembly) -> None:
    assembly.drop_early(AFTER)
    assembly.reroute(AFTER)


def test_sums_of_a_lost_server_are_dropped() -> None:
    assembly = landed(4)
    for slice_, route in enumerate(BEFORE):
        assembly.land_early(route.primary, slice_, 5, routing=1)
    assert assembly.whole and assembly.version == 5
    follow(assembly)
    assert not assembly.whole and assembly.version == 4 and assembly.newest == 5
    for slice_ in (1, 3):
        assembly.land_early(0, slice_, 5, routing=2)
    assert assembly.whole and assembly.version == 5


def test_a_sum_that_comes_after_the_new_routes_is_dropped() -> None:
    assembly = landed(4)
    follow(assembly)
    assembly.land_early(1, 1, 5, routing=1)
    assert assembly.whole and assembly.version == 4


MOVED = (Route(0, since=1), Route(2, since=2), *BEFORE[2:])
"""Slice 1 has moved from server 1 to server 2 between the fold and the release of version 5."""


def test_a_sum_that_comes_after_its_slice_has_moved_counts() -> None:
    """The former primary has sent it, and the new one does not send it again."""
    assembly = landed(4)
    assembly.reroute(MOVED)
    assembly.land_early(1, 1, 5, routing=1)
    for slice_ in (0, 2, 3):
        assembly.land_early(BEFORE[slice_].primary, slice_, 5, routing=2)
    assert assembly.whole and assembly.version == 5


def test_a_sum_of_a_lost_server_is_dropped_though_its_slice_has_moved_since() -> None:
    assembly = landed(4)
    follow(assembly)
    assembly.reroute((AFTER[0], Route(2, since=3), *AFTER[2:]))
    assembly.land_early(1, 1, 5, routing=1)
    assert assembly.whole and assembly.version == 4
    assembly.land_early(0, 1, 5, routing=2)
    assert assembly.newest == 5


def test_a_sum_of_an_ordered_fold_is_kept_though_its_server_is_lost() -> None:
    """Its replicas have it too."""
    assembly = landed(4)
    assembly.land_early(1, 1, 5, routing=1)
    assembly.land(1, 1, 5)
    assembly.land(1, 3, 5)
    follow(assembly)
    for slice_ in (0, 2):
        assembly.land(0, slice_, 5)
    assert assembly.whole and assembly.version == 5


def test_a_released_sum_is_kept() -> None:
    assembly = landed(4)
    for slice_, route in enumerate(BEFORE):
        assembly.land_early(route.primary, slice_, 5, routing=1)
    assembly.settle()
    follow(assembly)
    assert assembly.whole and assembly.version == 5


CHANGES = st.lists(
    st.tuples(st.sampled_from(["lost", "moved", "returned"]), st.integers(0, 3), st.integers(0, 2)),
    max_size=6,
)


@given(
    changes=CHANGES,
    followed=st.sets(st.integers(0, 5)),
    before=st.sets(st.integers(0, 3)),
    late=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 6))),
)
def test_after_several_changes_of_routes_a_sum_counts_if_its_primary_has_stayed(
    changes: list[tuple[str, int, int]],
    followed: set[int],
    before: set[int],
    late: list[tuple[int, int]],
) -> None:
    """A worker may follow several changes as one: a slice moves, and a server is lost. Also a slice may
    come back to its server, or to a new server with the same number. A sum counts if its sender has been
    the primary without a break, whether it came before the new routes or comes after them."""
    assembly, routes = landed(4), BEFORE
    for slice_ in before:
        assembly.land_early(routes[slice_].primary, slice_, 5, routing=1)
    counts = set(before)
    sent = {slice_: [(route.primary, 1)] for slice_, route in enumerate(routes)}
    for at, (what, slice_, server) in enumerate(changes):
        epoch = at + 2
        lost = routes[slice_].primary
        due = range(4) if what == "lost" else (slice_,)
        changed = list(routes)
        for each in due:
            if what == "lost" and routes[each].primary != lost:
                continue
            to = (lost + 1) % 3 if what == "lost" else server
            to = BEFORE[each].primary if what == "returned" else to
            if what != "lost" and to == routes[each].primary:
                continue
            changed[each] = Route(to, since=epoch)
            sent[each].append((to, epoch))
        routes = tuple(changed)
        if at in followed or at == len(changes) - 1:
            assert assembly.leads_elsewhere(routes) == any(
                now.since != then.since for now, then in zip(routes, assembly.routes, strict=True)
            )
            counts -= {s for s in counts if routes[s].since != assembly.routes[s].since}
            assembly.drop_early(routes)
            assembly.reroute(routes)
    for slice_, which in late:
        primary, since = sent[slice_][which % len(sent[slice_])]
        assembly.land_early(primary, slice_, 5, routing=since)
        if since == routes[slice_].since:
            counts.add(slice_)
    expected = [5 if slice_ in counts else 4 for slice_ in range(4)]
    assert [assembly.version, assembly.newest] == [min(expected), max(expected)]
    assert assembly.whole == (len(set(expected)) == 1)


SENT = [(slice_, early) for slice_ in range(4) for early in (True, False)]


@given(st.lists(st.sampled_from(SENT)), st.lists(st.sampled_from(SENT)), st.data())
def test_in_any_order_only_sums_of_the_present_primary_or_of_the_fold_count(
    first: list[tuple[int, bool]], then: list[tuple[int, bool]], data: st.DataObject
) -> None:
    """What the former primary sent may still come after the new routes."""
    assembly, expected = landed(4), [4] * 4

    def take(slice_: int, early: bool, routes: tuple[Route, ...], routing: int) -> None:
        server = routes[slice_].primary
        if early:
            assembly.land_early(server, slice_, 5, routing)
        else:
            assembly.land(server, slice_, 5)

    final = set()
    for slice_, early in first:
        take(slice_, early, BEFORE, 1)
        expected[slice_] = 5
        # a sum that was sent early is not sent again by the same server
        final |= set() if early else {slice_}
    follow(assembly)
    for slice_ in (1, 3):
        if slice_ not in final or (slice_, True) in first[last_of(first, (slice_, False)) + 1 :]:
            expected[slice_] = 4 if (slice_, True) in first else expected[slice_]
    for slice_, early in then:
        late = early and slice_ in (1, 3) and data.draw(st.booleans())
        take(slice_, early, BEFORE if late else AFTER, 1 if late else 2)
        expected[slice_] = expected[slice_] if late else 5
    assert [assembly.version, assembly.newest] == [min(expected), max(expected)]
    assert assembly.whole == (len(set(expected)) == 1)


def last_of(sent: list[tuple[int, bool]], wanted: tuple[int, bool]) -> int:
    return max((at for at, each in enumerate(sent) if each == wanted), default=-1)
