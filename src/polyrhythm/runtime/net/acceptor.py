"""Accepts the connections to a server, and performs their handshakes. Other modules see a link only
after its handshake.

*One thread accepts all connections and reads all handshakes. A link gets a thread only when its
peer is known. Until then, a fault in a peer's bytes ends that peer's link and nothing else.*
`core/server/admission.py` decides which links are closed when there are too many.
"""

import socket
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from polyrhythm.core.server.admission import Strangers
from polyrhythm.errors import FrameError, LinkEnded, LinkError
from polyrhythm.io.accept import AcceptLimit
from polyrhythm.io.limits import too_few
from polyrhythm.io.link import Link
from polyrhythm.io.local import AVAILABLE, host_identity, listen_local, local_link, same_user
from polyrhythm.io.poll import Poller
from polyrhythm.io.stream import StreamLink
from polyrhythm.io.tcp import listen_tcp, tcp_link
from polyrhythm.runtime.net.boundary import fault_of
from polyrhythm.runtime.net.handshake import acceptor, greet, patience
from polyrhythm.runtime.options import NodeOptions
from polyrhythm.wire import messages as m
from polyrhythm.wire.messages.reasons import refused
from polyrhythm.wire.proof import Acceptor, Hello

_ACCEPT_AGAIN_S = 0.1
_LOOK_UP_S = 1.0
_ACCEPTS_PER_TURN = 32
"""The most connections that are accepted before handshakes are read again, so that a flood of new
connections does not delay the handshakes of earlier ones."""


class Listeners:
    """The listening sockets of a server: a TCP port, and a local socket on systems that have
    them."""

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
                sock.close()


@dataclass(slots=True)
class _Caller:
    link: StreamLink
    acceptor: Acceptor


class ConnectionAcceptor:
    """`accept_link` is called with each link whose handshake is done, and with the peer's hello, on
    a new thread for this link. `end_link` ends the link of a proven peer whose hello is refused.
    `report_refusal` gets the reason why an unknown peer was refused."""

    def __init__(
        self,
        name: str,
        job: m.JobSpec,
        address: m.Address,
        options: NodeOptions,
        *,
        accept_link: Callable[[Link, Hello], None],
        end_link: Callable[[Link, Exception], None],
        report_refusal: Callable[[str], None],
    ) -> None:
        self._name = name
        self._job = job
        self._address = address
        self._digest, self._secret = options.digest, options.secret
        self._accept_link = accept_link
        self._end_link = end_link
        self._report_refusal = report_refusal
        self._numbers = 0
        self._numbering = threading.Lock()
        self._callers: dict[int, _Caller] = {}
        self._strangers = Strangers()
        self._gate = AcceptLimit()
        self._poller = Poller()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    # -- connections ---------------------------------------------------------------------------

    def listen(self, listeners: Listeners) -> None:
        for listener in (listeners.tcp, listeners.local):
            if listener is not None:
                listener.setblocking(False)
                self._poller.add(listener, partial(self._accept, listener))
        self._thread = threading.Thread(target=self._run, name="accept", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._closing.is_set():
            self._poller.poll(self._rest_s())
            for number in self._strangers.overdue(time.monotonic_ns()):
                self._refuse(number, LinkError("the handshake took too long"))
        for caller in self._callers.values():
            _end(caller.link)

    def _rest_s(self) -> float:
        wake_ns = self._strangers.wake_at()
        if wake_ns is None:
            return _LOOK_UP_S
        return min(_LOOK_UP_S, max(0.0, (wake_ns - time.monotonic_ns()) / 1e9))

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_ACCEPTS_PER_TURN):
            for number in self._strangers.make_room() if self._gate.is_reserve_reached else ():
                self._refuse(number, LinkError(too_few()))
            sock = self._gate.accept(listener)
            if sock is None:
                break
            self._receive(sock)
        if not self._gate.can_refuse:
            # the connection waits in the listener's queue until the next attempt
            self._closing.wait(_ACCEPT_AGAIN_S)

    def _receive(self, sock: socket.socket) -> None:
        number = self._number()
        local = sock.family == getattr(socket, "AF_UNIX", None)
        try:
            if local and not same_user(sock):
                sock.close()
                return
            link = (local_link if local else tcp_link)(sock, f"link-{number}")
            caller = _Caller(link, acceptor(link, self._name, self._job.job, self._secret))
        # the peer may have gone, or this server has no secret for TCP links
        except (OSError, LinkError) as error:
            sock.close()
            self._report_refusal(str(error))
            return
        crowded = LinkError("there are too many connections, and this one was silent")
        for other in self._strangers.on_accepted(number, time.monotonic_ns()):
            self._refuse(other, crowded)
        self._callers[number] = caller
        self._poller.add(link, lambda: self._hear(number))

    def _number(self) -> int:
        with self._numbering:
            self._numbers += 1
            return self._numbers

    # -- handshakes ----------------------------------------------------------------------------

    def _hear(self, number: int) -> None:
        caller = self._callers[number]
        try:
            for message, _ in caller.link.receive_ready():
                heard = caller.acceptor.heard
                answer = caller.acceptor.take(message)
                if caller.acceptor.hello is not None:
                    self._know(number, caller.acceptor.hello)
                    return
                if answer is not None:
                    caller.link.send(answer)
                if not heard:
                    for other in self._strangers.on_hello(number):
                        self._refuse(
                            other, LinkError("too many connections wait to be authenticated")
                        )
        # any fault in the bytes of an unknown peer ends the link of that peer only
        except Exception as error:
            self._refuse(number, error)

    def _know(self, number: int, hello: Hello) -> None:
        """Finish the handshake of a peer that has proven its identity, on a new thread for this
        link."""
        link = self._callers[number].link
        thread = threading.Thread(
            target=self._greet, args=(link, hello), name=f"read-link-{number}", daemon=True
        )
        self._poller.remove(link)
        thread.start()  # this call may raise an exception; `_hear` then refuses the link
        self._forget(number)

    def _forget(self, number: int) -> _Caller:
        self._strangers.gone(number)
        caller = self._callers.pop(number)
        self._poller.remove(caller.link)
        return caller

    def _refuse(self, number: int, error: Exception) -> None:
        link = self._forget(number).link
        if not isinstance(error, LinkEnded):
            ours = isinstance(error, FrameError | LinkError)
            reason = str(error) if ours else f"{type(error).__name__}: {error}"
            link.send(m.Refusal(reason=refused(f"{self._name}: {reason}")))
            self._report_refusal(reason)
        _end(link)

    def _greet(self, link: Link, hello: Hello) -> None:
        try:
            hello = greet(link, hello, self._name, self._address, self._digest, self._job)
        except Exception as error:
            self._end_link(link, fault_of(link.peer, error))
            return
        self._accept_link(link, hello)

    # -- links within the process --------------------------------------------------------------

    def welcome(self, link: Link) -> None:
        """Accept a memory link. A poller cannot read it, so a new thread reads its hello."""
        link.peer = f"link-{self._number()}"
        threading.Thread(
            target=self._hear_alone, args=(link,), name=f"read-{link.peer}", daemon=True
        ).start()

    def _hear_alone(self, link: Link) -> None:
        try:
            here = acceptor(link, self._name, self._job.job, self._secret)
            with patience(link):
                message, _ = link.receive()
            here.take(message)
        except Exception as error:
            self._end_link(link, fault_of(link.peer, error))
            return
        assert here.hello is not None
        self._greet(link, here.hello)

    def close(self) -> None:
        self._closing.set()
        self._poller.wake()
        if self._thread is not None:
            self._thread.join()
        self._poller.close()
        self._gate.close()


def _end(link: StreamLink) -> None:
    """Close a link. This does not wait long, because the few frames that were sent to an unknown
    peer fit into the socket's buffer."""
    link.close()
    link.dispose()
