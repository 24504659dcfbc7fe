"""A server's door: where strangers knock, and how they are greeted before anybody hears of them."""

import socket
import threading
import uuid
from collections.abc import Callable

from polyrhythm.errors import FrameError, LinkError
from polyrhythm.io.link import Link
from polyrhythm.io.local import AVAILABLE, host_identity, listen_local, local_link, same_user
from polyrhythm.io.stream import StreamLink
from polyrhythm.io.tcp import listen_tcp, tcp_link
from polyrhythm.runtime.bonjour import await_bonjour, greet, patience
from polyrhythm.wire import messages as m

_ACCEPT_AGAIN_S = 0.1


class Listeners:
    """Where strangers knock: a TCP port, and a local socket where there are such."""

    def __init__(self, host: str, port: int) -> None:
        self.tcp = listen_tcp(host, port)
        self.local: socket.socket | None = None
        name = ""
        if AVAILABLE:
            name = f"polyrhythm-{uuid.uuid4().hex}"
            self.local = listen_local(name)
        bound_host, bound_port = self.tcp.getsockname()[:2]
        self.address = m.Address(bound_host, bound_port, name, host_identity())

    def close(self) -> None:
        for sock in (self.tcp, self.local):
            if sock is not None:
                try:
                    sock.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
                except OSError:
                    pass  # not every system shuts a listening socket; closing it is enough there
                sock.close()


class Door:
    """`let_in` is handed each greeted link with its bonjour, on a thread of the link's own, and
    reads on; `part` ends those that said nothing sensible."""

    def __init__(
        self,
        name: str,
        job: m.JobSpec,
        address: m.Address,
        digest: str,
        let_in: Callable[[Link, m.WorkerBonjour | m.ServerBonjour], None],
        part: Callable[[Link, Exception], None],
    ) -> None:
        self._name = name
        self._job = job
        self._address = address
        self._digest = digest
        self._let_in = let_in
        self._part = part
        self._strangers = 0
        self._closed = threading.Event()

    def listen(self, listeners: Listeners) -> None:
        self._accept_on(listeners.tcp, lambda sock: tcp_link(sock, self._stranger()))
        if listeners.local is not None:
            self._accept_on(listeners.local, self._local_link)

    def _accept_on(
        self, listener: socket.socket, make: Callable[[socket.socket], StreamLink | None]
    ) -> None:
        def loop() -> None:
            while not self._closed.is_set():
                try:
                    sock, _ = listener.accept()
                except OSError:
                    if listener.fileno() < 0:
                        return
                    self._closed.wait(_ACCEPT_AGAIN_S)  # too many open files, say: it may pass
                    continue
                link = make(sock)
                if link is not None:
                    self.welcome(link)

        threading.Thread(target=loop, name="accept", daemon=True).start()

    def _local_link(self, sock: socket.socket) -> StreamLink | None:
        if not same_user(sock):
            sock.close()
            return None
        return local_link(sock, self._stranger())

    def _stranger(self) -> str:
        self._strangers += 1
        return f"link-{self._strangers}"

    def welcome(self, link: Link) -> None:
        """Somebody knocked: hear the bonjour on a thread of its own, then read on."""
        link.peer = link.peer if link.peer.startswith("link-") else self._stranger()
        threading.Thread(
            target=self._hear_bonjour, args=(link,), name=f"read-{link.peer}", daemon=True
        ).start()

    def _hear_bonjour(self, link: Link) -> None:
        try:
            with patience(link):
                bonjour = await_bonjour(link, self._job.job)
                greet(link, bonjour, self._name, self._address, self._digest, self._job)
        except (FrameError, LinkError) as error:
            self._part(link, error)
            return
        self._let_in(link, bonjour)

    def close(self) -> None:
        self._closed.set()
