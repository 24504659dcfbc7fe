"""The client with which the hostile tests reach a server.

The tests send everything through `dial` and `enter`, so that only this file changes when the
handshake gets a new step.
"""

import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from polyrhythm.errors import PolyrhythmError
from polyrhythm.io.link import Link
from polyrhythm.io.local import local_link
from polyrhythm.io.stream import StreamLink
from polyrhythm.io.tcp import tcp_link
from polyrhythm.observe.reasons import in_words
from polyrhythm.runtime.net.handshake import introduce
from polyrhythm.wire import messages as m
from polyrhythm.wire.digests import Digest
from polyrhythm.wire.proof import Hello, Secret

TIMEOUT_S = 30.0


class Wire:
    """One link of a hostile peer, which can send any bytes. `secret` is None if the peer does not
    know the job's secret, or if the link needs no secret."""

    def __init__(self, link: StreamLink, sock: socket.socket, secret: Secret | None = None) -> None:
        self.link = link
        self._sock = sock
        self._secret = secret
        sock.settimeout(TIMEOUT_S)
        self.open = True

    def send(self, data: bytes) -> bool:
        """Send bytes. Return False if the other end has closed the link."""
        try:
            self._sock.sendall(data)
        except OSError:
            self.open = False
        return self.open

    def introduce(self, hello: Hello) -> bool:
        """Perform the handshake. Return False if it is refused."""
        try:
            introduce(self.link, hello, self._secret)
        except PolyrhythmError:
            self.open = False
        return self.open

    def enter(self, hello: Hello) -> m.Admitted | None:
        """Send a hello and wait for admission. Return None if it is refused."""
        if not self.introduce(hello):
            return None
        with suppress(PolyrhythmError):
            while not isinstance(message := self.link.receive()[0], m.Refusal):
                if isinstance(message, m.Admitted):
                    return message
        return None

    def challenge(self) -> m.Challenge | None:
        """Return the answer to a hello, or None if the other end has closed the link."""
        with suppress(PolyrhythmError):
            message, _ = self.link.receive()
            return message if isinstance(message, m.Challenge) else None
        return None

    def await_end(self) -> str | None:
        """Stop sending, and read until the other end closes the link. Return the reason that the
        other end sent."""
        reason = None
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)
        with suppress(PolyrhythmError, TimeoutError):
            while True:
                message = self.link.receive()[0]
                if isinstance(message, m.Refusal):
                    reason = in_words(message.reason)
        return reason

    def close(self) -> None:
        self.link.close()
        self.link.dispose()


def dial_port(port: int, secret: Secret | None = None) -> Wire:
    sock = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)
    return Wire(tcp_link(sock, ""), sock, secret)  # the empty name means that any server may answer


def dial_node(welcome: Callable[[Link], None]) -> Wire:
    """Return a link to a node of this process. It is a socket pair, which needs no secret."""
    ours, theirs = socket.socketpair()
    welcome(local_link(theirs, "link"))
    return Wire(local_link(ours, "server"), ours)


def hello_of(name: str, job: str, **fields: Any) -> m.WorkerHello:
    return m.WorkerHello(name=name, job=job, identity="", digests=(Digest.XXH3,), **fields)


def operator_hello(job: str, **fields: Any) -> m.OperatorHello:
    return m.OperatorHello(name="mallory", job=job, digests=(Digest.XXH3,), **fields)


def server_hello(server: int, incarnation: int, job: str, **fields: Any) -> m.ServerHello:
    return m.ServerHello(
        server=server, name=f"s{server}", job=job, identity="", digests=(Digest.XXH3,),
        incarnation=incarnation, address=m.Address("127.0.0.1", 1, "", ""), **fields,
    )  # fmt: skip
