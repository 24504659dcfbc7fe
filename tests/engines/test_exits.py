"""The reports of the fork server arrive in order, and no report is held back until a later one
arrives."""

import socket
from collections.abc import Iterator

import pytest

from polyrhythm.engines.exits import Exits, ending
from polyrhythm.engines.requests import Exit, pack_line
from polyrhythm.errors import JobFailed

Ends = tuple[socket.socket, Exits]


@pytest.fixture
def ends() -> Iterator[Ends]:
    fork_server, engine = socket.socketpair()
    engine.settimeout(5)
    with fork_server, engine:
        yield fork_server, Exits(engine, lambda: "killed by SIGKILL", lambda: None)


def test_an_exit_that_arrives_together_with_a_start_is_reported(ends: Ends) -> None:
    fork_server, exits = ends
    fork_server.sendall(pack_line(Exit(started=8)) + pack_line(Exit(exited=7, status=-9)))
    assert exits.next().started == 8
    assert [line.exited for line in exits.at_hand()] == [7]
    assert list(exits.at_hand()) == []


def test_an_incomplete_line_waits_for_its_rest(ends: Ends) -> None:
    fork_server, exits = ends
    line = pack_line(Exit(exited=7))
    fork_server.sendall(line[:5])
    assert list(exits.read()) == []
    fork_server.sendall(line[5:] + line)
    assert [line.exited for line in exits.read()] == [7, 7]


def test_the_end_of_the_fork_server_is_the_end_of_the_job(ends: Ends) -> None:
    fork_server, exits = ends
    fork_server.close()
    with pytest.raises(JobFailed, match=r"the others died \(killed by SIGKILL\)$"):
        exits.next()


def test_a_fork_server_that_died_with_unread_requests_is_noticed(ends: Ends) -> None:
    fork_server, exits = ends
    exits.fork_server.sendall(b"a request")
    fork_server.close()
    with pytest.raises(JobFailed, match="died"):
        exits.next()


@pytest.mark.parametrize(
    ("status", "words"),
    [(3, "exit status 3"), (-11, "killed by SIGSEGV"), (-40, "killed by signal 40")],
)
def test_an_exit_status_in_words(status: int, words: str) -> None:
    assert ending(status) == words
