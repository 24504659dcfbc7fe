"""Links between processes of one host: a Unix socket for frames, memory segments for tensors.

The receiver maps the sender's segment and reads it in place. Sockets are in the abstract namespace,
so no file is left behind. *Both ends ask the kernel (`SO_PEERCRED`) whether the other is a process
of the same user*: any user can connect to an abstract socket, and any user can listen under a free
name.
"""

import array
import os
import socket
import struct
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from polyrhythm.core.link_kinds import LOCAL
from polyrhythm.errors import LinkError
from polyrhythm.io.carrier import Wrapped, unwrap_inline
from polyrhythm.io.limits import any_left, too_few
from polyrhythm.io.link import Payload, Sendable
from polyrhythm.io.segments import SHAREABLE, Piece, map_segment
from polyrhythm.io.stream import StreamLink
from polyrhythm.io.tcp import STUCK_S
from polyrhythm.wire.digests import Buffer
from polyrhythm.wire.frames import FLAG_REFERENCE, Frame
from polyrhythm.wire.messages import Message, SegmentOffered, SegmentWithdrawn

AVAILABLE = SHAREABLE
_REFERENCE = struct.Struct("<IQQ")
_MOST_DESCRIPTORS = 16
_MOST_SEGMENTS = 64
# The flags are plain integers. An `&` with an enum of the socket module takes 3 microseconds; two for
# each frame would be half of the time in which a small frame is received.
_ANCILLARY_NBYTES = socket.CMSG_LEN(_MOST_DESCRIPTORS * 4)
_CLOSE_ON_EXEC = int(getattr(socket, "MSG_CMSG_CLOEXEC", 0))
_TRUNCATED = int(socket.MSG_CTRUNC)
_CREDENTIALS = struct.Struct("3i")


class ReferenceCarrier:
    """Sends the descriptor of a memory segment once. After that, payloads in this segment are sent
    as references (segment, offset, length) instead of bytes."""

    kind = LOCAL
    pending = False

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._offered: set[int] = set()
        self._descriptors: deque[int] = deque()
        self._maps: dict[int, memoryview] = {}

    def wrap(self, payload: Sequence[Sendable]) -> Wrapped:
        piece = payload[0]
        segment = piece.segment if len(payload) == 1 and isinstance(piece, Piece) else None
        if segment is None or segment.fd is None:
            return 0, [part.memory if isinstance(part, Piece) else part for part in payload], []
        assert isinstance(piece, Piece)
        offers: list[tuple[Message, int]] = []
        if segment.id not in self._offered:
            self._offered.add(segment.id)
            offer = SegmentOffered(segment=segment.id, nbytes=segment.nbytes)
            offers.append((offer, segment.fd))
        reference = _REFERENCE.pack(segment.id, piece.offset, piece.nbytes)
        return FLAG_REFERENCE, [reference], offers

    def withdraw(self, segment: int) -> Message | None:
        if segment not in self._offered:
            return None
        self._offered.remove(segment)
        return SegmentWithdrawn(segment=segment)

    def read(self, target: memoryview, wait: int) -> int:
        nbytes, ancillary, message_flags, _ = self.sock.recvmsg_into(
            (target,), _ANCILLARY_NBYTES, wait | _CLOSE_ON_EXEC
        )
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds = array.array("i")
                fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
                self._descriptors.extend(fds)
        if message_flags & _TRUNCATED and not any_left():
            raise LinkError(too_few())
        if message_flags & _TRUNCATED or len(self._descriptors) > _MOST_DESCRIPTORS:
            raise LinkError("the peer sent more descriptors at once than a link accepts")
        return nbytes

    def write(self, buffers: Sequence[Buffer], descriptors: Sequence[int], wait: int) -> int:
        if descriptors:
            return socket.send_fds(self.sock, buffers, list(descriptors), wait)
        return self.sock.sendmsg(buffers, (), wait)

    def outlast(self, seconds: float) -> None:
        # do nothing: the two ends of a link within a host cannot lose each other through the
        # network
        pass

    def consumes(self, frame: Frame) -> bool:
        offer = frame.message
        if isinstance(offer, SegmentWithdrawn):
            self._maps.pop(offer.segment, None)
            return True
        if not isinstance(offer, SegmentOffered):
            return False
        if not self._descriptors:
            raise LinkError("the peer offered a memory segment without its descriptor")
        if len(self._maps) >= _MOST_SEGMENTS:
            raise LinkError("the peer offered more memory segments than a link accepts")
        self._maps[offer.segment] = map_segment(self._descriptors.popleft(), offer.nbytes)
        return True

    def unwrap(self, frame: Frame) -> Payload | None:
        if not frame.flags & FLAG_REFERENCE:
            return unwrap_inline(frame)
        if frame.payload is None or len(frame.payload) != _REFERENCE.size:
            raise LinkError("the peer sent a reference that cannot be read")
        segment, offset, nbytes = _REFERENCE.unpack(frame.payload)
        memory = self._maps.get(segment)
        if memory is None or offset + nbytes > len(memory):
            raise LinkError("the peer sent a reference outside the memory it offered")
        return Payload(memory[offset : offset + nbytes])

    def __del__(self) -> None:
        for fd in self._descriptors:
            os.close(fd)


def host_identity() -> str:
    """A text that identifies the boot of this host, the network namespace and the user. Two
    processes with equal texts can have a local link. Empty if local links are not available."""
    if not AVAILABLE:
        return ""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{os.stat('/proc/self/ns/net').st_ino}/{os.getuid()}"


def local_link(sock: socket.socket, peer: str) -> StreamLink:
    sock.setblocking(True)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", STUCK_S, 0))
    return StreamLink(ReferenceCarrier(sock), peer)


def dial_local(name: str, peer: str) -> StreamLink:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.connect(f"\0{name}")
    except OSError as error:
        sock.close()
        raise LinkError(
            f"could not reach {peer} over its local socket {name}: {error.strerror or error}"
        ) from None
    if not same_user(sock):
        sock.close()
        raise LinkError(f"{peer}'s local socket {name} belongs to another user of this machine")
    return local_link(sock, peer)


def listen_local(name: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.bind(f"\0{name}")
    sock.listen(128)
    return sock


def same_user(sock: socket.socket) -> bool:
    """Whether the process at the other end runs as the same user as this one."""
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(raw)
    return bool(uid == os.getuid())
