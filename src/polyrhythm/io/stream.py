"""Frames over a stream socket: what `tcp` and `local` share.

Reading is done by one thread at a time, into the place that the decoder names. Sending never
blocks the caller: small things leave at once if the socket takes them, everything else leaves on
the link's own sender thread, in order. A payload is hashed by the thread that sends it, just before
it leaves: links hash in parallel, and the socket's copy finds the bytes in the cache.
"""

import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from polyrhythm.errors import LinkEnded, LinkError
from polyrhythm.io.link import Payload, Sendable
from polyrhythm.io.outgoing import Descriptor, Outgoing, fingerprint_of
from polyrhythm.wire.digests import Buffer, Digest
from polyrhythm.wire.frames import (
    FLAG_REFERENCE,
    STRANGER,
    Decoder,
    Draft,
    Frame,
    Land,
    Limits,
    nbytes_of,
)
from polyrhythm.wire.messages import Message

_DIRECT_NBYTES = 256 * 1024
"""Up to this much is tried on the calling thread; handing over costs more than sending it."""
_BUFFERS_PER_CALL = 512
_WAIT_ALL, _DO_NOT_WAIT = int(socket.MSG_WAITALL), int(socket.MSG_DONTWAIT)
_MOST_QUEUED = 2**17
"""A peer that asks for more frames than this without reading them is cut off. A version has a frame
per slice; two versions of a model of 100 GB have fewer."""
_LINGER_S = 2.0
"""How long closing waits for what was sent before to leave."""


_NOTHING: tuple[int, list[Buffer], list[tuple[Message, int]]] = (0, [], [])


class Carrier(Protocol):
    """How payloads travel beside the frames."""

    kind: str
    by_reference: bool

    def wrap(
        self, payload: Sequence[Sendable]
    ) -> tuple[int, list[Buffer], list[tuple[Message, int]]]:
        """(flags, buffers, segments to offer first as (message, descriptor))."""

    def withdraw(self, segment: int) -> Message | None:
        """What to tell the peer so that it unmaps this segment; None if it never had it."""

    def read(self, sock: socket.socket, target: memoryview, flags: int) -> int: ...

    def unwrap(self, frame: Frame) -> Payload | None: ...

    def consumes(self, frame: Frame) -> bool:
        """True if the frame was for the carrier itself."""

    def outlast(self, sock: socket.socket, seconds: float) -> None:
        """See `Link.outlast`."""


class StreamLink:
    def __init__(self, sock: socket.socket, carrier: Carrier, peer: str) -> None:
        self.peer = peer
        self.incarnation = 0
        self.kind = carrier.kind
        self.by_reference = carrier.by_reference
        self._sock = sock
        self._carrier = carrier
        self._decoder = Decoder(Digest.XXH3, STRANGER, hello=True)
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
        """The last `receive_ready` ended because its turn was over."""

    def fileno(self) -> int:
        return self._sock.fileno()

    def readable(self) -> bool:
        """Whether something has come that was not read, or the peer has ended the link."""
        fd = self._sock.fileno()
        if fd < 0:
            return False
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        return bool(poll.poll(0))

    @property
    def host_here(self) -> str:
        """The address of this machine's end."""
        return str(self._sock.getsockname()[0])

    def agree(self, digest: Digest, limits: Limits) -> None:
        self._digest, self._hello = digest, False
        self._decoder.agree(digest)
        self._decoder.limits = limits

    def outlast(self, seconds: float) -> None:
        self._carrier.outlast(self._sock, seconds)

    def land_with(self, land: Land) -> None:
        self._decoder.land = land

    # -- receiving -----------------------------------------------------------------------------

    def receive(self) -> tuple[Message, Payload | None]:
        while True:
            received = self._take()
            if received is not None:
                return received
            target = self._decoder.target()
            flags = _WAIT_ALL if self._decoder.in_payload else 0
            self._landed(self._read(target, flags))

    def receive_ready(
        self, *, finish: bool = False, most: int | None = None
    ) -> Iterator[tuple[Message, Payload | None]]:
        """What has come, for use under a poller. `finish`: wait for the rest of a payload that has
        begun, which only somebody may do who has nothing else to attend to. `most`: after so many
        messages it is another link's turn; `unfinished` then tells that more may be at hand."""
        self.unfinished = False
        received = self._receive_ready(finish)
        for count, each in enumerate(received, 1):
            yield each
            if count == most:
                self.unfinished = True
                return

    def _receive_ready(self, finish: bool) -> Iterator[tuple[Message, Payload | None]]:
        yield from self.take_buffered()
        more = True
        while more:
            target = self._decoder.target()
            whole = finish and self._decoder.in_payload
            try:
                nbytes = self._read(target, _WAIT_ALL if whole else _DO_NOT_WAIT)
            except BlockingIOError:
                return
            self._landed(nbytes)
            yield from self.take_buffered()
            more = nbytes == len(target) or (finish and self._decoder.in_payload)

    def take_buffered(self) -> Iterator[tuple[Message, Payload | None]]:
        """What was read together with earlier frames. A poller knows nothing of it: take it before
        handing the link to one."""
        while (received := self._take()) is not None:
            yield received

    def _take(self) -> tuple[Message, Payload | None] | None:
        while (frame := self._decoder.next()) is not None:
            if not self._carrier.consumes(frame):
                return frame.message, self._carrier.unwrap(frame)
        return None

    def _read(self, target: memoryview, flags: int) -> int:
        try:
            return self._carrier.read(self._sock, target, flags)
        except BlockingIOError:
            raise
        except OSError as error:
            raise LinkEnded(f"the link to {self.peer} broke: {error}") from None

    def _landed(self, nbytes: int) -> None:
        if not nbytes:
            where = "" if self._decoder.idle else " in the middle of a frame"
            raise LinkEnded(f"{self.peer} closed the link{where}")
        self._decoder.landed(nbytes)

    # -- sending -------------------------------------------------------------------------------

    def send(
        self,
        message: Message,
        payload: Sequence[Sendable] = (),
        *,
        flush: bool = True,
        done: Callable[[], None] | None = None,
    ) -> None:
        flags, buffers, offers = self._carrier.wrap(payload) if payload else _NOTHING
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
                    while self._outbox and self._write(finished, _DO_NOT_WAIT):
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
                item.seal()  # without the lock: others may queue meanwhile
            try:
                sent = self._sendmsg(items, 0)
            except OSError:
                with self._lock:
                    self._abandon()
                return
            with self._lock:
                self._sent(sent, finished)
            for done in finished:
                done()

    def _next_items(self) -> list[Outgoing]:
        """What leaves in one call. Descriptors go with the first byte of theirs. What must be hashed
        is taken little by little, so that the peer receives while the rest is hashed."""
        items: list[Outgoing] = []
        buffers = hashes_nbytes = 0
        for item in self._outbox:
            buffers += 1 + len(item.buffers)
            if items and (item.descriptors or buffers > _BUFFERS_PER_CALL):
                break
            items.append(item)
            hashes_nbytes += item.hashes_nbytes
            if item.descriptors or hashes_nbytes >= _DIRECT_NBYTES:
                break
        return items

    def _sendmsg(self, items: list[Outgoing], flags: int) -> int:
        buffers = [buffer for item in items for buffer in item.buffers]
        descriptors = items[0].descriptors
        if descriptors:
            fds = [own.fd for own in descriptors if own.fd is not None]
            sent = socket.send_fds(self._sock, buffers, fds, flags)
            items[0].descriptors = ()
            for own in descriptors:
                own.close()
            return sent
        return self._sock.sendmsg(buffers, (), flags)

    def _write(self, finished: list[Callable[[], None]], flags: int) -> int:
        items = self._next_items()
        for item in items:
            item.seal()
        sent = self._sendmsg(items, flags)
        self._sent(sent, finished)
        return sent

    def _sent(self, nbytes: int, finished: list[Callable[[], None]]) -> None:
        """Take `nbytes` off the front of the outbox."""
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
        """The socket takes no more. The reader notices the end; what was queued is lost."""
        self._outbox.clear()
        self._outbox_nbytes = 0
        self._shut()

    def _shut(self) -> None:
        self._closed = True
        self._more.notify_all()
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it was shut already: that is what we want

    def close(self) -> None:
        self.flush()
        with self._lock:
            self._more.wait_for(lambda: self._closed or not self._outbox, _LINGER_S)
            if not self._closed:
                self._shut()

    def dispose(self) -> None:
        if self._sender is not None and self._sender is not threading.current_thread():
            self._sender.join(_LINGER_S)
        self._sock.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{len(self._outbox)} frames queued"
        return f"<{self.kind} link to {self.peer}, {state}>"


def unwrap_inline(frame: Frame) -> Payload | None:
    if frame.flags & FLAG_REFERENCE:
        raise LinkError("the peer sent a reference over a link that carries bytes")
    return Payload(frame.payload) if frame.payload is not None else None
