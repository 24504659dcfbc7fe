"""The matrix in docs/security.md names existing tests, and a process of another user is refused."""

import ast
import os
import re
import socket
from pathlib import Path

import pytest

from polyrhythm.core.names import operator_name
from polyrhythm.core.seat import FIRST_SEAT
from polyrhythm.errors import FrameError
from polyrhythm.io import local
from polyrhythm.io.local import same_user
from polyrhythm.runtime.net.boundary import for_the_lead
from polyrhythm.wire import messages as m
from polyrhythm.wire.messages.reasons import DONE
from tests.wire.samples import SPEC

ROOT = Path(__file__).parent.parent.parent
_TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
_PARTIES = ("stranger", "other local user", "member", "server", "operator")
_AS = re.compile(rf"as an? ({'|'.join(_PARTIES)})")


def rows() -> list[list[str]]:
    text = (ROOT / "docs" / "security.md").read_text().split("## Who can do what")[1]
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_every_party_has_a_column_and_every_cell_an_answer() -> None:
    head, _, *body = rows()
    assert tuple(head[1:]) == _PARTIES
    for what, *cells in body:
        assert len(cells) == len(_PARTIES), what
        assert all(cell.startswith(("yes", "no", "it can")) for cell in cells), what


def test_every_no_has_a_test() -> None:
    """Each cell that says "no" names a test, or refers to another party in the same row."""
    for what, *cells in rows()[2:]:
        by_party = dict(zip(_PARTIES, cells, strict=True))
        for party, cell in by_party.items():
            other = _AS.search(cell)
            shown = cell if other is None else by_party[other[1]]
            assert not cell.startswith("no") or _TEST.search(shown), f"{what}, {party}: no test"


def test_every_test_that_the_matrix_names_exists() -> None:
    named = _TEST.findall((ROOT / "docs" / "security.md").read_text())
    assert len(named) > 10
    for path, name in named:
        tree = ast.parse((ROOT / path).read_text())
        functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        assert name in functions, f"{path} has no {name}"


def test_a_local_socket_refuses_another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel reports the user at the other end of the socket. This process compares it with its
    own user."""
    ours, theirs = socket.socketpair()
    try:
        assert same_user(theirs)
        uid = os.getuid()
        monkeypatch.setattr(local.os, "getuid", lambda: uid + 1)
        assert not same_user(theirs)
    finally:
        ours.close()
        theirs.close()


@pytest.mark.parametrize("peer", ["s2", "w2"])
def test_a_server_that_sends_in_the_name_of_another_is_refused(peer: str) -> None:
    ours, theirs = socket.socketpair()
    link = local.local_link(theirs, peer)
    try:
        with pytest.raises(FrameError, match="in the name of another"):
            for_the_lead(link, m.Folded(server=1, round=1), FIRST_SEAT)
        with pytest.raises(FrameError, match="in the name of another"):
            for_the_lead(link, m.Unreachable(server=0, peer="s1", peer_incarnation=1), FIRST_SEAT)
    finally:
        ours.close()
        link.close()
        link.dispose()


@pytest.mark.parametrize("peer", ["w2", "s2", "link-2", "s0"])
def test_a_request_of_an_operator_is_refused_over_the_link_of_another_peer(peer: str) -> None:
    ours, theirs = socket.socketpair()
    link = local.local_link(theirs, peer)
    try:
        with pytest.raises(FrameError, match="is not an operator"):
            for_the_lead(link, m.OperatorRequest(what="stop"), FIRST_SEAT)
        link.peer = operator_name(1)
        assert for_the_lead(link, m.OperatorRequest(what="stop"), FIRST_SEAT)
    finally:
        ours.close()
        link.close()
        link.dispose()


def test_an_operator_that_sends_a_message_of_another_party_is_refused() -> None:
    ours, theirs = socket.socketpair()
    link = local.local_link(theirs, operator_name(1))
    orders = (m.Fold(round=1), m.Stop(reason=DONE), m.Place(spec=SPEC, routes=()), m.Alive())
    members = (m.Leave(worker=0), m.Folded(server=0), m.Attach(worker=0, spec=SPEC), m.Seed())
    try:
        for message in (*orders, *members):
            with pytest.raises(FrameError, match="in the name of another"):
                for_the_lead(link, message, FIRST_SEAT)
    finally:
        ours.close()
        link.close()
        link.dispose()
