"""A link that sends frames over a stream: `tcp` and `local` links differ only in their carrier."""

import fcntl
import os
import select
import socket
import struct
import termios
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from weakref import WeakSet

from polyrhythm.core.placement.bursts import LEAST_NBYTES
from polyrhythm.errors import LinkEnded
from polyrhythm.io.carrier import ALL, NOW, SOME, Carrier, Wrapped
from polyrhythm.io.limits import usable_cores
from polyrhythm.io.link import Measure, Payload, PollableLink, Sendable
from polyrhythm.io.segments import Fingerprint, Piece
from polyrhythm.wire.digests import PIECE_NBYTES, Buffer, Digest
from polyrhythm.wire.frames import FLAG_REFERENCE, STRANGER, Decoder, Draft, Land, Limits, nbytes_of
from polyrhythm.wire.messages import Message


class Descriptor:
    """A duplicate of a file descriptor that will be sent. It is needed because the owner may close
    the original before the frame is written, and the number of the original could then belong to
    another file."""

    __slots__ = ("fd",)

    def __init__(self, fd: int) -> None:
        self.fd: int | None = None
        self.fd = os.dup(fd)

    def close(self) -> None:
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None

    def __del__(self) -> None:
        self.close()  # the descriptor is still open only if its frame was never written


class Outgoing:
    """A frame in the outbox of a link. `seal` adds the header."""

    __slots__ = ("_draft", "_fingerprint", "buffers", "descriptors", "done", "nbytes")

    def __init__(
        self,
        draft: Draft,
        payload: list[Buffer],
        fingerprint: Fingerprint | None = None,
        descriptors: tuple[Descriptor, ...] = (),
        done: Callable[[], None] | None = None,
    ) -> None:
        self._draft: Draft | None = draft
        self._fingerprint = fingerprint
        self.buffers = payload
        self.descriptors = descriptors
        self.done = done
        self.nbytes = draft.nbytes

    @property
    def hashes_nbytes(self) -> int:
        """How many bytes `seal` will hash, or will wait for because another link hashes them; 0 if
        the frame is sealed or has no digest."""
        draft = self._draft
        return 0 if draft is None or draft.digest is Digest.NONE else self.nbytes

    def seal(self) -> None:
        """Hash the payload, and put the header and the head in front of it."""
        draft, self._draft = self._draft, None
        if draft is None:
            return
        digest, known = b"", self._fingerprint
        if draft.digest is not Digest.NONE:
            digest = draft.digest.over(self.buffers) if known is None else known.by(draft.digest)
        self.buffers = [draft.sealed(digest), *self.buffers]


def fingerprint_of(payload: Sequence[Sendable], flags: int) -> Fingerprint | None:
    """The shared digest of a payload that is sent as bytes to several peers; None if the payload
    has no shared digest."""
    if flags & FLAG_REFERENCE or len(payload) != 1:
        return None
    part = payload[0]
    return part.fingerprint if isinstance(part, Piece) else None


_FEW_CORES = 2


@dataclass(frozen=True)
class Amounts:
    """How many bytes a link hashes at a time.

    With many cores, small amounts are faster: the peer reads the first bytes while the link hashes
    the next ones. With one or two cores, the two cannot run at the same time, and each amount costs
    a switch between the processes, so large amounts are faster.
    """

    written_nbytes: int
    """Before each write, the link hashes at least this many bytes, if that many are queued."""
    arriving_nbytes: int
    """A payload is hashed in pieces of this size while it arrives."""


_SMALL = Amounts(256 * 1024, PIECE_NBYTES)
_LARGE = Amounts(8 * 1024 * 1024, 4 * 1024 * 1024)


def amounts_for(cores: int) -> Amounts:
    """How many bytes to hash at a time, in a process that may use this many cores."""
    return _LARGE if cores <= _FEW_CORES else _SMALL


_sockets: WeakSet[socket.socket] = WeakSet()


def close_when_forked(sock: socket.socket) -> None:
    """Close this socket in every process that this process forks from now on.

    A training loop may fork, for example for the processes of a `DataLoader`. *If such a process
    kept a copy of a socket, the link would not end with the worker's death, and the death would be
    noticed late.*
    """
    _sockets.add(sock)


def _close() -> None:
    for sock in list(_sockets):
        fd = sock.detach()
        if fd >= 0:
            os.close(fd)


os.register_at_fork(after_in_child=_close)


_DIRECT_NBYTES = 256 * 1024
"""If at most this many bytes are queued, the calling thread writes them itself, because waking the
sender thread would take longer."""
_BUFFERS_PER_CALL = 512
_MOST_QUEUED = 2**17
"""A link with this many unsent frames is ended, because its peer sends requests and does not read
the answers. A version has one frame per slice: even two versions of a 100 GB model have fewer
frames."""
_PEER_ENDED = getattr(select, "POLLRDHUP", select.POLLHUP)
"""The event that the peer has ended the link. Systems without POLLRDHUP report POLLHUP then."""
_LINGER_S = 2.0
"""How long `close` waits for queued frames to be written, and then for them to arrive."""
_LOOK_S = 0.005

_NO_PAYLOAD: Wrapped = (0, [], [])
_NOTHING = struct.pack("i", 0)


def unread_nbytes(sock: socket.socket) -> int:
    """How many bytes have arrived at this socket that were not read yet; 0 if it is closed."""
    return _count(sock, termios.FIONREAD)


def undelivered_nbytes(sock: socket.socket) -> int:
    """How many bytes the peer's machine has not acknowledged yet; 0 if the TCP socket is closed."""
    return _count(sock, termios.TIOCOUTQ)


def _count(sock: socket.socket, what: int) -> int:
    """*While a thread counts, no other thread may close the socket.*"""
    fd = sock.fileno()
    return int(struct.unpack("i", fcntl.ioctl(fd, what, _NOTHING))[0]) if fd >= 0 else 0


class Mark(NamedTuple):
    """How many bytes had arrived over a link at some time. With marks a link measures its rate
    (Aware, §3.2).

    The clock starts when the head of a frame, the paper's forecast message, has been read. It stops
    when the last byte of the payload has been read. If the next frame follows without a break, the
    clock goes on.

    *The bytes that arrive in between count, whether they are read or not.* When a busy reader finds
    older bytes in the socket's buffer, it does not know when they came.
    """

    at_ns: int
    nbytes: int

    def goes_on(self, began: "Mark", now: "Mark") -> bool:
        """Whether the link stayed busy after a frame. This mark is the end of the frame, `began`
        its beginning. True if bytes have since arrived at least half as fast as during the frame.
        If most of the frame was in the socket's buffer when its head was read, its rate is unknown,
        and the result is False."""
        during = self.nbytes - began.nbytes
        if during < LEAST_NBYTES:
            return False
        arrived = (now.nbytes - self.nbytes) * (self.at_ns - began.at_ns)
        return 2 * arrived >= (now.at_ns - self.at_ns) * during


class StreamLink:
    """Any thread may send. Sending never blocks the caller: it writes small frames at once if the
    socket's buffer has space, and the link's sender thread writes all others in order. One thread
    at a time reads, into the memory that the decoder names.

    The thread that writes a payload hashes it just before. So links hash in parallel, and the bytes
    are in the cache when the socket copies them.
    """

    def __init__(self, carrier: Carrier, peer: str, amounts: Amounts | None = None) -> None:
        """`amounts`: how much is hashed at a time. None: the default for this process's cores."""
        self.peer = peer
        self.incarnation = 0
        self.kind = carrier.kind
        self._carrier = carrier
        self._sock = carrier.sock
        close_when_forked(self._sock)
        self._decoder = Decoder(Digest.XXH3, STRANGER, hello=True)
        self._amounts = amounts or amounts_for(usable_cores())
        self._decoder.piece_nbytes = self._amounts.arriving_nbytes
        self._digest = Digest.XXH3
        self._hello = True
        self._outbox: deque[Outgoing] = deque()
        self._outbox_nbytes = 0
        self._lock = threading.Lock()
        self._more = threading.Condition(self._lock)
        self._sender: threading.Thread | None = None
        self._sending = False
        self._closed = False
        self.unfinished = False
        """Whether the last `receive_ready` stopped at its limit `most`."""
        self.arrivals = 0
        self._measure: Measure | None = None
        self._awaited: int | None = None
        """How many bytes of the present payload were missing when its head had been read."""
        self._began = self._ended = Mark(0, 0)
        self._read_nbytes = 0

    @property
    def unsent(self) -> bool:
        return bool(self._outbox)

    @property
    def pollable(self) -> PollableLink:
        return self

    def fileno(self) -> int:
        return self._sock.fileno()

    def readable(self) -> bool:
        """Whether there are unread bytes, or the peer has ended the link."""
        return bool(self._carrier.pending) or self._has_happened(select.POLLIN)

    def hung_up(self) -> bool:
        """Whether the peer has ended the link. Bytes that it sent before may still be unread."""
        return self._has_happened(_PEER_ENDED)

    def _has_happened(self, what: int) -> bool:
        """Whether one of these events has happened on the socket; its end and errors count too."""
        fd = self._sock.fileno()
        if fd < 0:
            return False
        poll = select.poll()
        poll.register(fd, what)
        return bool(poll.poll(0))

    @property
    def host_here(self) -> str:
        return "" if self.kind.is_within_host else str(self._sock.getsockname()[0])

    def agree(self, digest: Digest, limits: Limits) -> None:
        self._digest, self._hello = digest, False
        self._decoder.agree(digest)
        self._decoder.limits = limits

    def outlast(self, seconds: float) -> None:
        self._carrier.outlast(seconds)

    def land_with(self, land: Land) -> None:
        self._decoder.land = land

    def divert(self, message: Message) -> None:
        self._decoder.divert(message)

    def measure_with(self, measure: Measure) -> None:
        if not self.kind.has_payload_references:
            self._measure = measure

    # -- receiving -----------------------------------------------------------------------------

    def receive(self) -> tuple[Message, Payload | None]:
        while True:
            received = self._take()
            if received is not None:
                return received
            target = self._decoder.target()
            try:
                nbytes = self._read(target, ALL if self._decoder.in_payload else SOME)
            except BlockingIOError:
                continue  # nothing has arrived for as long as one call waits
            self._landed(nbytes)

    def receive_ready(
        self, *, finish: bool = False, most: int | None = None
    ) -> Iterator[tuple[Message, Payload | None]]:
        """The messages that have arrived, for a link that a poller watches. `finish`: wait for the
        rest of a payload that has begun to arrive; only for a thread that has nothing else to do.
        `most`: stop after this many messages, so that other links are read too, and set
        `unfinished`, because more may have arrived."""
        self.unfinished = False
        decoder, carrier, taken = self._decoder, self._carrier, 0
        full = True
        while True:
            while (received := self._take()) is not None:
                yield received
                taken += 1
                if taken == most:
                    self.unfinished = True
                    return
            pending = carrier.pending
            if not (pending or full or (finish and decoder.in_payload)):
                return
            target = decoder.target()
            whole = finish and not pending and decoder.in_payload
            try:
                nbytes = self._read(target, ALL if whole else NOW)
            except BlockingIOError:
                return
            self._landed(nbytes)
            if not pending:
                full = nbytes == len(target)

    def take_buffered(self) -> Iterator[tuple[Message, Payload | None]]:
        """Return the messages that were read from the socket together with earlier ones. A poller
        does not see them, so call this before the link is registered with a poller."""
        while (received := self._take()) is not None:
            yield received
        while self._carrier.pending:
            self._landed(self._read(self._decoder.target(), NOW))
            while (received := self._take()) is not None:
                yield received

    def _take(self) -> tuple[Message, Payload | None] | None:
        while (frame := self._decoder.next()) is not None:
            if self._awaited is not None:
                self._end_measuring()
            if not self._carrier.consumes(frame):
                return frame.message, self._carrier.unwrap(frame)
        if self._measure is not None and self._awaited is None and self._decoder.in_payload:
            self._begin_measuring()
        return None

    def _begin_measuring(self) -> None:
        """Begin to measure the rate of a payload whose frame's head has just been read."""
        self._awaited = self._decoder.missing
        if self._awaited >= LEAST_NBYTES:
            now = self._mark()
            self._began = self._ended if self._ended.goes_on(self._began, now) else now

    def _end_measuring(self) -> None:
        awaited, self._awaited = self._awaited or 0, None
        if self._measure is not None and awaited >= LEAST_NBYTES:
            began = self._began
            self._ended = self._mark()
            arrived = self._ended.nbytes - began.nbytes
            self._measure(self.peer, began.at_ns, self._ended.at_ns, arrived)

    def _mark(self) -> Mark:
        with self._lock:
            return Mark(time.monotonic_ns(), self._read_nbytes + unread_nbytes(self._sock))

    def _read(self, target: memoryview, wait: int) -> int:
        try:
            return self._carrier.read(target, wait)
        except BlockingIOError:
            raise
        except OSError as error:
            raise LinkEnded(f"the link to {self.peer} broke: {error}") from None

    def _landed(self, nbytes: int) -> None:
        if not nbytes:
            where = "" if self._decoder.idle else " in the middle of a frame"
            raise LinkEnded(f"{self.peer} closed the link{where}")
        self.arrivals += 1
        self._read_nbytes += nbytes
        self._decoder.on_landed(nbytes)

    # -- sending -------------------------------------------------------------------------------

    def send(
        self,
        message: Message,
        payload: Sequence[Sendable] = (),
        *,
        flush: bool = True,
        done: Callable[[], None] | None = None,
    ) -> None:
        flags, buffers, offers = self._carrier.wrap(payload) if payload else _NO_PAYLOAD
        now_ns = time.time_ns()
        digest, hello = self._digest, self._hello
        for offer, fd in offers:
            draft = Draft(offer, 0, digest, now_ns, hello=hello)
            self._put(Outgoing(draft, [], descriptors=(Descriptor(fd),)))
        draft = Draft(message, nbytes_of(buffers), digest, now_ns, flags, hello=hello)
        self._put(Outgoing(draft, buffers, fingerprint_of(payload, flags), done=done))
        if flush:
            self.flush()

    def withdraw(self, segment: int) -> None:
        message = self._carrier.withdraw(segment)
        if message is not None:
            self.send(message)

    def _put(self, item: Outgoing) -> None:
        with self._lock:
            if len(self._outbox) >= _MOST_QUEUED:
                self._abandon()
            if not self._closed:
                self._outbox.append(item)
                self._outbox_nbytes += item.nbytes

    def flush(self) -> None:
        finished: list[Callable[[], None]] = []
        with self._lock:
            if self._sending or self._closed or not self._outbox:
                return
            try:
                if self._outbox_nbytes <= _DIRECT_NBYTES:
                    while self._outbox and self._write(finished, NOW):
                        pass
            except BlockingIOError:
                pass
            except OSError:
                self._abandon()
            if self._outbox:
                self._wake_sender()
        for done in finished:
            done()

    def _wake_sender(self) -> None:
        self._sending = True
        if self._sender is None:
            self._sender = threading.Thread(
                target=self._send_loop, name=f"send-{self.peer}", daemon=True
            )
            self._sender.start()
        self._more.notify_all()

    def _send_loop(self) -> None:
        while True:
            finished: list[Callable[[], None]] = []
            with self._lock:
                while not self._outbox and not self._closed:
                    self._sending = False
                    self._more.notify_all()
                    self._more.wait()
                if not self._outbox:
                    return
                items = self._next_items()
            for item in items:
                # hash without the lock, so that other threads can queue frames meanwhile
                item.seal()
            try:
                sent = self._carry(items, SOME)
            except OSError:
                with self._lock:
                    self._abandon()
                return
            with self._lock:
                self._sent(sent, finished)
            for done in finished:
                done()

    def _next_items(self) -> list[Outgoing]:
        """The frames of the next write. A frame with descriptors is written alone, because
        descriptors are sent with the first byte of a write. Frames that must still be hashed are
        written a few at a time (`Amounts`)."""
        items: list[Outgoing] = []
        buffers = hashes_nbytes = 0
        for item in self._outbox:
            buffers += 1 + len(item.buffers)
            if items and (item.descriptors or buffers > _BUFFERS_PER_CALL):
                break
            items.append(item)
            hashes_nbytes += item.hashes_nbytes
            if item.descriptors or hashes_nbytes >= self._amounts.written_nbytes:
                break
        return items

    def _carry(self, items: list[Outgoing], wait: int) -> int:
        buffers = [buffer for item in items for buffer in item.buffers]
        descriptors = items[0].descriptors
        if not descriptors:
            return self._carrier.write(buffers, (), wait)
        fds = [own.fd for own in descriptors if own.fd is not None]
        sent = self._carrier.write(buffers, fds, wait)
        items[0].descriptors = ()
        for own in descriptors:
            own.close()
        return sent

    def _write(self, finished: list[Callable[[], None]], wait: int) -> int:
        items = self._next_items()
        for item in items:
            item.seal()
        sent = self._carry(items, wait)
        self._sent(sent, finished)
        return sent

    def _sent(self, nbytes: int, finished: list[Callable[[], None]]) -> None:
        """Remove the `nbytes` that were written from the front of the outbox. Adds the `done`
        callbacks of complete frames to `finished`."""
        self._outbox_nbytes -= nbytes
        while self._outbox and nbytes >= self._outbox[0].nbytes:
            item = self._outbox.popleft()
            nbytes -= item.nbytes
            if item.done is not None:
                finished.append(item.done)
        if nbytes:
            item = self._outbox[0]
            item.nbytes -= nbytes
            rest: list[Buffer] = []
            for buffer in item.buffers:
                view = memoryview(buffer)
                if nbytes >= view.nbytes:
                    nbytes -= view.nbytes
                else:
                    rest.append(view[nbytes:])
                    nbytes = 0
            item.buffers = rest

    # -- ending --------------------------------------------------------------------------------

    def _abandon(self) -> None:
        """Drop the queued frames and shut the socket down. The reading thread then notices that the
        link has ended."""
        self._outbox.clear()
        self._outbox_nbytes = 0
        self._shut()

    def _shut(self) -> None:
        self._closed = True
        self._more.notify_all()
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the socket is shut down already

    def close(self) -> None:
        self.flush()
        with self._lock:
            self._more.wait_for(lambda: self._closed or not self._outbox, _LINGER_S)
        self._await_delivery()
        with self._lock:
            if not self._closed:
                self._shut()

    def _await_delivery(self) -> None:
        """Wait until the peer's machine has all bytes. *If bytes from the peer arrive after a TCP
        socket was shut down, the kernel resets the link and drops undelivered data.*"""
        until_s = time.monotonic() + _LINGER_S
        while (
            not self._closed
            and self._sock.family != socket.AF_UNIX
            and not self.hung_up()
            and self._undelivered_nbytes()
            and time.monotonic() < until_s
        ):
            time.sleep(_LOOK_S)

    def _undelivered_nbytes(self) -> int:
        with self._lock:
            return undelivered_nbytes(self._sock)

    def dispose(self) -> None:
        """Close the socket. Other threads may close the link, or read it, at the same time."""
        if self._sender is not None and self._sender is not threading.current_thread():
            self._sender.join(_LINGER_S)
        with self._lock:
            self._sock.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{len(self._outbox)} frames queued"
        return f"<{self.kind.name} link to {self.peer}, {state}>"
