"""The matrix in docs/security.md names tests that exist; and another user's process is refused."""

import ast
import os
import re
import socket
from pathlib import Path

import pytest

from polyrhythm.io import local
from polyrhythm.io.local import same_user

ROOT = Path(__file__).parent.parent.parent
_TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
_PARTIES = ("stranger", "other local user", "member", "server")


def rows() -> list[list[str]]:
    text = (ROOT / "docs" / "security.md").read_text()
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_every_party_has_a_column_and_every_cell_an_answer() -> None:
    head, _, *body = rows()
    assert tuple(head[1:]) == _PARTIES
    for row in body:
        assert len(row) == 1 + len(_PARTIES), row
        assert all(cell.startswith(("yes", "no", "it can")) for cell in row[1:]), row
        assert _TEST.search(" ".join(row)) or "yes" in " ".join(row), f"no test: {row[0]}"


def test_every_test_that_the_matrix_names_exists() -> None:
    named = _TEST.findall((ROOT / "docs" / "security.md").read_text())
    assert len(named) > 10
    for path, name in named:
        tree = ast.parse((ROOT / path).read_text())
        functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        assert name in functions, f"{path} has no {name}"


def test_a_local_socket_refuses_another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel says which user is at the other end; this process says which one it is itself."""
    ours, theirs = socket.socketpair()
    try:
        assert same_user(theirs)
        uid = os.getuid()
        monkeypatch.setattr(local.os, "getuid", lambda: uid + 1)
        assert not same_user(theirs)
    finally:
        ours.close()
        theirs.close()
