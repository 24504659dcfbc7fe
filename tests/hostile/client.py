"""How a hostile party reaches a server. Everything that hostile tests send goes through `dial` and
`enter`, so that a step that the handshake gains is added here alone."""

import socket
from collections.abc import Callable
from contextlib import suppress

from polyrhythm.errors import PolyrhythmError
from polyrhythm.io.link import Link
from polyrhythm.io.local import local_link
from polyrhythm.io.stream import StreamLink
from polyrhythm.io.tcp import tcp_link
from polyrhythm.runtime.bonjour import introduce
from polyrhythm.wire import messages as m
from polyrhythm.wire.digests import Digest

Hello = m.WorkerBonjour | m.ServerBonjour
TIMEOUT_S = 30.0


class Wire:
    """One link of a hostile party: frames in, raw bytes out."""

    def __init__(self, link: StreamLink, sock: socket.socket) -> None:
        self.link = link
        self._sock = sock
        sock.settimeout(TIMEOUT_S)
        self.open = True

    def send(self, data: bytes) -> bool:
        """False if the other side has ended the link."""
        try:
            self._sock.sendall(data)
        except OSError:
            self.open = False
        return self.open

    def enter(self, hello: Hello) -> m.Admitted | None:
        """Say hello and wait to be admitted; None if that is refused."""
        try:
            introduce(self.link, hello)
            while not isinstance(message := self.link.receive()[0], m.Admitted):
                if isinstance(message, m.Refusal):
                    return None
        except PolyrhythmError:
            return None
        return message

    def await_end(self) -> str | None:
        """Say no more, and read until the other side ends the link: the reason that it gave."""
        reason = None
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)
        with suppress(PolyrhythmError, TimeoutError):
            while True:
                message = self.link.receive()[0]
                if isinstance(message, m.Refusal):
                    reason = message.reason
        return reason

    def close(self) -> None:
        self.link.close()
        self.link.dispose()


def dial_port(port: int) -> Wire:
    sock = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)
    return Wire(tcp_link(sock, "server"), sock)


def dial_node(welcome: Callable[[Link], None]) -> Wire:
    """A link to a node of this process: bytes over a socket pair."""
    ours, theirs = socket.socketpair()
    welcome(local_link(theirs, "link"))
    return Wire(local_link(ours, "server"), ours)


def hello_of(name: str, job: str, **fields: int) -> m.WorkerBonjour:
    return m.WorkerBonjour(name=name, job=job, identity="", digests=(Digest.XXH3,), **fields)
