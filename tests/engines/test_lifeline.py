"""Tests of the socket between an engine and its processes."""

import socket

import pytest

from polyrhythm.engines import process


class Exited(BaseException):
    """The process would have ended."""


@pytest.mark.parametrize("unread", [b"", b"told"])
def test_a_process_ends_without_a_traceback_when_its_engine_is_gone(
    monkeypatch: pytest.MonkeyPatch, unread: bytes
) -> None:
    """If the engine ends before it has read what the process told, the kernel resets the socket."""

    def end(status: int) -> None:
        raise Exited(status)

    monkeypatch.setattr(process.os, "_exit", end)
    engine, child = socket.socketpair()
    with child:
        control = process.SocketControl(child, lambda: None)
        child.sendall(unread)
        engine.close()
        with pytest.raises(Exited, match="1"):
            control.hear()
