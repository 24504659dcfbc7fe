"""Carries the points of chunks from worker to worker (`--migrate full`), over separate links.

*The thread of the user's loop reads the points, between two batches or while the loop waits,
because the user's data set need not support several threads. The link's thread sends them, and one
thread per peer receives them, so both workers train meanwhile.* The lead decides what is sent
(`m.Leased`), and a worker reports to the lead what has arrived.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import msgspec

from polyrhythm.core import events as ev
from polyrhythm.core.liveness import link_timeout_s
from polyrhythm.core.machine import Event
from polyrhythm.core.values import plain
from polyrhythm.core.worker.deliveries import (
    MOST_WAITING_NBYTES,
    fits_into_memory,
    may_send_more,
    part_points,
    refusal,
)
from polyrhythm.errors import LinkError, PolyrhythmError
from polyrhythm.io.limits import available_nbytes
from polyrhythm.io.link import Link
from polyrhythm.runtime import crashpoint
from polyrhythm.runtime.net.acceptor import ConnectionAcceptor, Listeners
from polyrhythm.runtime.net.boundary import fault_of
from polyrhythm.runtime.net.dial import Dialer, SocketDialer
from polyrhythm.runtime.net.handshake import introduce, offers, patience
from polyrhythm.runtime.net.peers import hang_up
from polyrhythm.runtime.options import NodeOptions
from polyrhythm.wire import messages as m
from polyrhythm.wire.frames import MEMBER
from polyrhythm.wire.messages.reasons import Reason
from polyrhythm.wire.proof import Hello

_LOOPBACK = "127.0.0.1"


class Part(Protocol):
    """Some points of a chunk in a declared layout (`learn/migration/layout.py`)."""

    @property
    def structure(self) -> str: ...
    @property
    def specs(self) -> tuple[m.ColumnSpec, ...]: ...
    def buffers(self) -> Sequence[memoryview]: ...


Read = Callable[[m.ChunkSend, int, int], Sequence[tuple[int, Part]]]
"""Reads `count` points of a chunk, beginning at `offset`. Returns one part or several, each with
its number of points."""
Add = Callable[[m.ChunkPart, memoryview], int | None]
"""Adds a part that has arrived. Returns the number of bytes of its chunk if the chunk is complete,
otherwise None."""


@dataclass(slots=True)
class _Outgoing:
    """A chunk that is being sent."""

    send: m.ChunkSend
    peer: "_Peer"
    offset: int = 0


class _Peer:
    """A link to another worker, to which points are sent."""

    def __init__(self) -> None:
        self.link: Link | None = None
        """The link to the worker; None until it is up."""
        self.ended = False
        self.waiting_nbytes = 0
        self.point_nbytes: float | None = None
        self.sends: list[m.ChunkSend] = []
        """The deliveries over this link."""
        self.lock = threading.Lock()

    def takes(self, send: m.ChunkSend) -> bool:
        """Add a delivery to those that fail if the link ends. Returns False if the link has
        ended."""
        with self.lock:
            if not self.ended:
                self.sends.append(send)
            return not self.ended

    def end(self) -> list[m.ChunkSend]:
        """Refuse further deliveries, because the link has ended. Returns the deliveries over it,
        which have failed."""
        with self.lock:
            self.ended = True
            return self.sends


class PointsCarrier:
    def __init__(
        self,
        name: str,
        job: m.JobSpec,
        host: str,
        dialer: Dialer,
        options: NodeOptions,
        post: Callable[[Event], None],
        wake: Callable[[], None],
    ) -> None:
        """`host`: the address at which this worker listens. `post` gives the machine an event.
        `wake` wakes the user's loop if it waits."""
        self._name, self._job = name, job
        self._refusal = refusal(private=job.data_private, shares=options.share_data)
        self._dialer, self._digest, self._secret = dialer, options.digest, options.secret
        self._post, self._wake = post, wake
        self._hello = m.WorkerHello(name=name, job=job.job, identity="")
        self.read: Read | None = None
        self.add: Add | None = None
        self.units: Callable[[m.ChunkSend], int] = lambda send: send.last - send.first
        """In how many units a chunk is sent: its points, or 1 if it is sent as a whole."""
        self._queue: list[_Outgoing] = []
        self._begun: set[int] = set()
        """The numbers of the deliveries that were begun."""
        self._peers: dict[tuple[int, int], _Peer] = {}
        self._accepted: list[Link] = []
        self._arrived: m.ChunkPart | None = None
        """The part that arrived last, for tests that kill the worker at this point
        (`crashpoint`)."""
        self._last_ns = time.monotonic_ns()
        self._closing = False
        self._listeners = Listeners(host, 0)
        roomy = msgspec.structs.replace(job, slice_nbytes=MEMBER.payload_nbytes)
        self._acceptor = ConnectionAcceptor(
            name,
            roomy,
            self._listeners.address,
            options,
            accept_link=self._receive_all,
            end_link=lambda link, error: hang_up(link),
            report_refusal=lambda detail: None,
        )
        self._acceptor.listen(self._listeners)

    @classmethod
    def begin(
        cls,
        name: str,
        job: m.JobSpec,
        lead: tuple[m.Address, Link | None],
        dialer: Dialer,
        options: NodeOptions,
        post: Callable[[Event], None],
        wake: Callable[[], None],
    ) -> "PointsCarrier":
        """Begin to receive points of other workers. `lead`: the address of the lead, and the link to
        it."""
        address, link = lead
        host = (link.host_here if link is not None else "") or address.host
        # in the inline engine all workers are threads of this process, and connect over loopback
        if not isinstance(dialer, SocketDialer):
            host, dialer = _LOOPBACK, SocketDialer("auto")
        return cls(name, job, host, dialer, options, post, wake)

    @property
    def address(self) -> m.Address:
        return self._listeners.address

    # -- sending -------------------------------------------------------------------------------

    def take(self, lease: m.Leased) -> None:
        """From now on, visit the chunks of this lease only."""
        wanted = {send.number for send in lease.sends}
        self._queue = [each for each in self._queue if each.send.number in wanted]
        for send in lease.sends:
            if send.number not in self._begun:
                self._begun.add(send.number)
                if self._refusal is not None:
                    self._post(ev.PointsDelivered(send.chunk, send.number, fault=self._refusal))
                    continue
                self._queue.append(_Outgoing(send, self._peer(send)))

    def between_batches(self) -> None:
        """Send some points. This takes a small share of the time since the last call."""
        if self._arrived is not None:
            crashpoint.reach(self._name, "took", self._arrived)
        if not self._queue:
            return
        began_ns = now_ns = time.monotonic_ns()
        since_ns = began_ns - self._last_ns
        while may_send_more(now_ns - began_ns, since_ns) and (part := self._send_part()):
            crashpoint.reach(self._name, "sent", part)
            now_ns = time.monotonic_ns()
        self._last_ns = now_ns

    def while_waiting(self) -> bool:
        """Send a part while the user's loop waits. Returns whether more can be sent now."""
        part = self._send_part() if self._queue else None
        if part is not None:
            crashpoint.reach(self._name, "sent", part)
        return part is not None

    def _send_part(self) -> m.ChunkSend | m.ChunkPart | None:
        """Send and return the next part of a chunk whose link accepts more. Returns None if no link
        does."""
        for outgoing in self._queue:
            peer = outgoing.peer
            if peer.link is not None and peer.waiting_nbytes < MOST_WAITING_NBYTES:
                return self._send_points(outgoing, peer.link)
        return None

    def _send_points(self, outgoing: _Outgoing, link: Link) -> m.ChunkSend | m.ChunkPart:
        """Send and return the next part of a chunk. If the sending fails, return the lead's order
        to send this chunk."""
        send, peer = outgoing.send, outgoing.peer
        points = self.units(send)
        count = part_points(points - outgoing.offset, peer.point_nbytes)
        assert self.read is not None
        try:
            parts = self.read(send, outgoing.offset, count)
        except Exception as error:  # the user's data set may raise any exception
            text = str(error) if isinstance(error, PolyrhythmError) else f"{error!r}"
            self._fail(send, "move-not-sendable", text)
            self._queue.remove(outgoing)
            return send
        for number, part in parts:
            buffers = part.buffers()
            nbytes = sum(map(len, buffers))
            if nbytes > MEMBER.payload_nbytes:
                what = "a point" if points == send.last - send.first else "the chunk"
                most = f"at most {MEMBER.payload_nbytes:,} can be sent at a time"
                detail = f"{what} has {nbytes:,} bytes, and {most}"
                self._fail(send, "move-not-sendable", detail)
                self._queue.remove(outgoing)
                return send
            peer.point_nbytes = nbytes / max(1, number)
            message = m.ChunkPart(
                chunk=send.chunk,
                number=send.number,
                points=points,
                offset=outgoing.offset,
                count=number,
                structure=part.structure,
                columns=part.specs,
            )
            self._count(peer, nbytes)
            link.send(message, buffers, done=partial(self._sent, peer, nbytes))
            outgoing.offset += number
        if outgoing.offset >= points:
            self._queue.remove(outgoing)
        return message

    def _count(self, peer: _Peer, nbytes: int) -> None:
        with peer.lock:
            peer.waiting_nbytes += nbytes

    def _sent(self, peer: _Peer, nbytes: int) -> None:
        full = peer.waiting_nbytes >= MOST_WAITING_NBYTES
        self._count(peer, -nbytes)
        if full:
            self._wake()

    def _fail(self, send: m.ChunkSend, code: str, detail: str) -> None:
        fault = Reason(code, {"detail": plain(detail)})
        self._post(ev.PointsDelivered(send.chunk, send.number, fault=fault))

    # -- links to other workers ----------------------------------------------------------------

    def _peer(self, send: m.ChunkSend) -> _Peer:
        key = (send.worker, send.incarnation)
        peer = self._peers.get(key)
        if peer is None or not peer.takes(send):
            peer = self._peers[key] = _Peer()
            peer.takes(send)
            name = f"points-{send.name}"
            threading.Thread(target=self._reach, args=(send, peer), name=name, daemon=True).start()
        return peer

    def _reach(self, send: m.ChunkSend, peer: _Peer) -> None:
        """Connect to a worker, and wait for the end of the link. This runs on its own thread."""
        try:
            link = self._dialer.dial(send.address, send.name)
            hello = msgspec.structs.replace(self._hello, digests=offers(self._digest, link.kind))
            with patience(link):
                introduce(link, hello, self._secret)
            link.outlast(link_timeout_s(self._job.lead_timeout_s))
            peer.link = link
            self._wake()
            while True:
                link.receive()
        except Exception as error:
            known = isinstance(error, PolyrhythmError | OSError)
            detail = str(error if known else fault_of(send.name, error))
        failed = peer.end()
        for sent in [] if self._closing else failed:
            # report all deliveries over this link as failed; the lead ignores the report for
            # complete ones
            self._fail(sent, "move-unreachable", detail)
        if peer.link is not None:
            hang_up(peer.link)

    # -- receiving -----------------------------------------------------------------------------

    def _receive_all(self, link: Link, hello: Hello) -> None:
        """Receive the points of one worker, until the link ends. This runs on its own thread."""
        link.peer = hello.name
        self._accepted.append(link)
        link.outlast(link_timeout_s(self._job.lead_timeout_s))
        refused: set[int] = set()
        try:
            while True:
                message, payload = link.receive()
                if not isinstance(message, m.ChunkPart):
                    raise LinkError(f"{hello.name} sent {type(message).__name__} instead of points")
                data = memoryview(b"") if payload is None else payload.view()
                if message.number not in refused and not self._receive(message, data):
                    refused.add(message.number)
        except Exception as error:
            fault_of(hello.name, error)
        hang_up(link)

    def _receive(self, part: m.ChunkPart, data: memoryview) -> bool:
        """Add a part of a chunk. Returns False if there is no memory for the chunk."""
        assert self.add is not None
        nbytes = len(data) * part.points // max(1, part.count)
        try:
            if not part.offset and not fits_into_memory(nbytes, available_nbytes()):
                raise MemoryError
            complete = self.add(part, data)
        except MemoryError:
            fault = Reason("move-no-memory", {"nbytes": nbytes})
            self._post(ev.PointsDelivered(part.chunk, part.number, fault=fault))
            return False
        if complete is not None:
            self._post(ev.PointsDelivered(part.chunk, part.number, complete))
        if crashpoint.ON:
            self._arrived = part
        return True

    def close(self) -> None:
        self._closing = True
        self._acceptor.close()
        self._listeners.close()
        for link in [*self._accepted, *(peer.link for peer in self._peers.values())]:
            if link is not None:
                link.close()  # the thread that reads this link notices its end and closes it
