"""Links between hosts: payloads travel as bytes in the stream."""

import socket
import struct
from collections.abc import Sequence

from polyrhythm.core.link_kinds import TCP
from polyrhythm.core.names import is_loopback
from polyrhythm.errors import LinkError
from polyrhythm.io.addresses import ANY_HOST
from polyrhythm.io.carrier import Wrapped, unwrap_inline
from polyrhythm.io.limits import none_left, too_few
from polyrhythm.io.link import Payload, Sendable
from polyrhythm.io.segments import Piece
from polyrhythm.io.stream import StreamLink
from polyrhythm.wire.digests import Buffer
from polyrhythm.wire.frames import Frame
from polyrhythm.wire.messages import Message

_FAR_AWAY = ("192.0.2.1", 9)
"""An address that no host has. Connecting a UDP socket to this address sends nothing, but shows
which local address would be used."""
CONNECT_TIMEOUT_S = 10.0
_BUFFER_NBYTES = 512 * 1024
"""The buffer size of a socket whose other end is on this machine. The kernel would let the buffer
grow to many megabytes, and the bytes would leave a core's cache before they are read. A buffer of
this size stays in the cache."""
STUCK_S = 60
"""A link is ended when its peer reads nothing for this long, unless the job allows more
(`outlast`)."""
_KEEP_ALIVE_S = 30
"""After this long without traffic the kernel probes whether the peer's machine still answers."""
_PROBE_EVERY_S = 10
_READ_S = 1
"""The longest time that a call waits for the rest of a payload. It then returns with the bytes that
have arrived, so `Link.arrivals` also rises while a large payload arrives slowly."""


class ByteCarrier:
    """Sends payloads as bytes of the stream, directly from their memory."""

    kind = TCP
    pending = False

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    def read(self, target: memoryview, wait: int) -> int:
        return self.sock.recv_into(target, len(target), wait)

    def write(self, buffers: Sequence[Buffer], descriptors: Sequence[int], wait: int) -> int:
        assert not descriptors, "a file descriptor cannot be sent to another host"
        return self.sock.sendmsg(buffers, (), wait)

    def wrap(self, payload: Sequence[Sendable]) -> Wrapped:
        return 0, [part.memory if isinstance(part, Piece) else part for part in payload], []

    def unwrap(self, frame: Frame) -> Payload | None:
        return unwrap_inline(frame)

    def withdraw(self, segment: int) -> Message | None:
        return None

    def consumes(self, frame: Frame) -> bool:
        return False

    def outlast(self, seconds: float) -> None:
        _end_after(self.sock, seconds)


def tcp_link(sock: socket.socket, peer: str) -> StreamLink:
    sock.setblocking(True)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    bound_buffers(sock)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", _READ_S, 0))
    _keep_alive(sock)
    _end_after(sock, STUCK_S)
    return StreamLink(ByteCarrier(sock), peer)


def _keep_alive(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, seconds in (("TCP_KEEPIDLE", _KEEP_ALIVE_S), ("TCP_KEEPINTVL", _PROBE_EVERY_S)):
        if hasattr(socket, option):  # some systems lack these options of a socket
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), seconds)


def _end_after(sock: socket.socket, seconds: float) -> None:
    """End the link when the peer's machine has acknowledged nothing, or the peer process has read
    nothing, for this long. The second case needs its own timeout, because the kernel of a stopped
    process still acknowledges bytes until its buffer is full."""
    timeout = struct.pack("ll", round(seconds), 0)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeout)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(seconds * 1e3))


def bound_buffers(sock: socket.socket) -> None:
    """Limit the socket's buffers if the link is on loopback. Between hosts, the kernel chooses
    their size by the amount of data in flight."""
    if is_loopback(sock.getsockname()[0]):
        for side in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            sock.setsockopt(socket.SOL_SOCKET, side, _BUFFER_NBYTES)


def dial_tcp(host: str, port: int, peer: str) -> StreamLink:
    try:
        sock = socket.create_connection((host, port), timeout=CONNECT_TIMEOUT_S)
    except OSError as error:
        if none_left(error):
            raise LinkError(too_few()) from None
        raise LinkError(
            f"could not reach {peer} at {host}:{port}: {error.strerror or error}; {_advice(host)}"
        ) from None
    return tcp_link(sock, peer)


def no_process_listens(host: str, port: int) -> bool:
    """Whether the machine `host` answers that no process listens on this port."""
    try:
        socket.create_connection((host, port), timeout=CONNECT_TIMEOUT_S).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False  # the machine cannot be reached
    return False


def _advice(host: str) -> str:
    if is_loopback(host):
        return (
            "check the port, and that the job runs; if it runs on another machine, let it listen on"
            " an address of that machine (--host)"
        )
    return (
        "check the host and the port, that the job runs, that no firewall is in between, and that"
        " the job listens on that address (--host)"
    )


def reached_at(host: str) -> str:
    """The address at which other processes reach a server that listens on `host`. If `host` stands
    for every address of this machine, the result is an address that other machines can reach."""
    if host not in ANY_HOST:
        return host
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_FAR_AWAY)
            return str(probe.getsockname()[0])
        except OSError:
            return socket.gethostname()  # there is no route to other hosts


def listen_tcp(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), backlog=128)
    except (OSError, OverflowError) as error:
        raise LinkError(
            f"cannot listen on {host}:{port}: {getattr(error, 'strerror', None) or error};"
            " give an address of this machine with --host, and a free --port or 0 for any"
        ) from None
