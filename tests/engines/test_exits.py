"""What the nursery says comes in order, and nothing of it waits for something else to come."""

import socket
from collections.abc import Iterator

import pytest

from polyrhythm.engines.exits import Exits
from polyrhythm.engines.requests import Exit, pack_line
from polyrhythm.errors import JobFailed

Ends = tuple[socket.socket, Exits]


@pytest.fixture
def ends() -> Iterator[Ends]:
    nursery, engine = socket.socketpair()
    engine.settimeout(5)
    with nursery, engine:
        yield nursery, Exits(engine, lambda: "killed by SIGKILL")


def test_who_died_while_another_was_started_is_at_hand(ends: Ends) -> None:
    nursery, fates = ends
    nursery.sendall(pack_line(Exit(started=8)) + pack_line(Exit(exited=7, status=-9)))
    assert fates.next().started == 8
    assert [fate.exited for fate in fates.at_hand()] == [7]
    assert list(fates.at_hand()) == []


def test_half_a_line_waits_for_its_rest(ends: Ends) -> None:
    nursery, fates = ends
    line = pack_line(Exit(exited=7))
    nursery.sendall(line[:5])
    assert list(fates.read()) == []
    nursery.sendall(line[5:] + line)
    assert [fate.exited for fate in fates.read()] == [7, 7]


def test_the_end_of_the_nursery_is_the_end_of_the_job(ends: Ends) -> None:
    nursery, fates = ends
    nursery.close()
    with pytest.raises(JobFailed, match=r"the others died \(killed by SIGKILL\)$"):
        fates.next()


def test_a_nursery_that_died_with_something_unread_has_died_too(ends: Ends) -> None:
    nursery, fates = ends
    fates.nursery.sendall(b"a request")
    nursery.close()
    with pytest.raises(JobFailed, match="died"):
        fates.next()
