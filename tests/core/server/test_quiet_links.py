"""A server reports links over which nothing comes."""

import pytest

from polyrhythm.core import effects as fx
from polyrhythm.core import events as ev
from polyrhythm.core.liveness import silent_link_s
from polyrhythm.core.server.admission import QuietLinks
from polyrhythm.core.server.machine import ServerMachine
from polyrhythm.wire import messages as m
from tests.core.stage import ADDRESS, of, sent, spec

BEAT_NS = 500_000_000
W0, W1 = ("w0", 3), ("w1", 4)


def looks(quiet: QuietLinks, *seen: tuple[tuple[str, int], ...], at_ns: int = 0) -> int:
    """One look per heartbeat interval. Returns the time of the last look."""
    for peers in seen:
        at_ns += BEAT_NS
        quiet.look(peers, at_ns)
    return at_ns


def test_a_link_is_silent_after_three_seconds_without_a_byte() -> None:
    quiet = QuietLinks(0.5)
    at_ns = looks(quiet, *[(W0,)] * 6)
    assert quiet.silent(at_ns) == []
    assert quiet.silent(looks(quiet, (W0,), at_ns=at_ns)) == [(W0, 3.0)]


def test_with_long_heartbeat_intervals_silence_takes_longer() -> None:
    assert [silent_link_s(beat_s) for beat_s in (0.1, 0.5, 2.0)] == [3.0, 3.0, 12.0]


def test_any_byte_ends_the_silence() -> None:
    quiet = QuietLinks(0.5)
    at_ns = looks(quiet, *[(W0, W1)] * 5, (W1,), *[(W0, W1)] * 4)
    assert quiet.silent(at_ns) == [(W1, 4.5)]


def test_a_link_of_a_later_incarnation_begins_anew() -> None:
    quiet = QuietLinks(0.5)
    at_ns = looks(quiet, *[(W0,)] * 7, (("w0", 9),))
    assert quiet.silent(at_ns) == []


def test_time_in_which_the_server_was_paused_is_not_silence() -> None:
    quiet = QuietLinks(0.5)
    at_ns = looks(quiet, (W0,), (W0,)) + 10 * 10**9
    quiet.look((W0,), at_ns)
    assert quiet.silent(at_ns) == []


@pytest.mark.parametrize(("peer", "told"), [("w0", True), ("s2", True), ("s3", False)])
def test_a_server_reports_workers_and_the_servers_that_it_copies_to(peer: str, told: bool) -> None:
    job = m.JobSpec(job="j", servers=4, replicas=1)
    server = ServerMachine(1, job)
    servers = tuple(m.ServerSpec(number, ADDRESS, 5) for number in range(4))
    routes = (m.Route(1, (2,)), m.Route(0, (3,)), m.Route(3, (0,)))
    server.handle(m.Place(term=1, routing=1, spec=spec((200,)), routes=routes, servers=servers), 0)
    reports: list[m.Unreachable] = []
    for step in range(1, 10):
        at_ns = step * BEAT_NS
        server.handle(ev.LinksQuiet(((peer, 5),)), at_ns)
        effects = list(server.handle(ev.Tick(), at_ns))
        assert of(effects, fx.Beat)
        reports += sent(effects, m.Unreachable, "lead")
    assert [(each.peer, each.peer_incarnation, each.silent_s) for each in reports] == (
        [(peer, 5, 3.0), (peer, 5, 3.5), (peer, 5, 4.0)] if told else []
    )
