"""The interface between nodes and their links. Every kind of link implements it."""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeAlias

from polyrhythm.core.link_kinds import LinkKind
from polyrhythm.io.segments import Piece
from polyrhythm.wire.digests import Digest
from polyrhythm.wire.frames import Land, Limits
from polyrhythm.wire.messages import Message

Sendable: TypeAlias = memoryview | Piece
Measure: TypeAlias = Callable[[str, int, int, int], None]
"""Called with the peer of a link, a number of bytes, and the times between which they arrived."""


class Payload:
    """Borrowed bytes: read them with `view()`, and call `done()` when they are no longer needed."""

    __slots__ = ("_memory",)

    def __init__(self, memory: memoryview) -> None:
        self._memory: memoryview | None = memory

    def view(self) -> memoryview:
        assert self._memory is not None, "a payload was used after done()"
        return self._memory

    def done(self) -> None:
        self._memory = None


class Link(Protocol):
    peer: str
    """The name of the peer at the other end, for routing and for error messages."""
    incarnation: int
    """The incarnation of the worker or server at the other end; 0 until it is known."""
    kind: LinkKind
    """What the link can do."""
    arrivals: int
    """How often bytes have arrived over this link. The number stays 0 if the link is not a stream."""

    @property
    def unsent(self) -> bool:
        """Whether queued messages have not been written yet."""

    @property
    def host_here(self) -> str:
        """The IP address of this end of the link; empty if the link stays within this host."""

    @property
    def pollable(self) -> "PollableLink | None":
        """This link, if a poller can read it; None if it needs a separate reading thread."""

    def send(
        self,
        message: Message,
        payload: Sequence[Sendable] = (),
        *,
        flush: bool = True,
        done: Callable[[], None] | None = None,
    ) -> None:
        """Queue a message, and flush. This never blocks. With `flush=False` the message waits for
        the next flush. `done` is called when the link no longer needs the memory of the payload."""

    def flush(self) -> None:
        """Begin to send the queued messages."""

    def withdraw(self, segment: int) -> None:
        """Tell the peer to unmap this segment, because no later payload is in it."""

    def receive(self) -> tuple[Message, Payload | None]:
        """Wait for the next message. Its payload is valid until the next call."""

    def agree(self, digest: Digest, limits: Limits) -> None:
        """Use the digest and the limits that the handshake agreed on, for all later frames."""

    def outlast(self, seconds: float) -> None:
        """Keep the link through network failures of up to this duration: end it only when nothing
        has come from the peer's machine for this long."""

    def land_with(self, land: Land) -> None:
        """Let `land` choose the memory into which payloads are received, if they travel as
        bytes."""

    def measure_with(self, measure: Measure) -> None:
        """Measure at which rate long payloads arrive, if they travel as bytes."""

    def close(self) -> None:
        """Send the queued messages, then end the link. The threads that read it, at both ends, then
        get LinkEnded."""

    def dispose(self) -> None:
        """Close the file descriptor. Only the thread that reads the link may call this, after the
        link has ended."""


class PollableLink(Link, Protocol):
    """A link with a file descriptor. One thread can read many such links (`io/poll.py`)."""

    unfinished: bool
    """Whether the last `receive_ready` stopped at its limit `most`."""

    def fileno(self) -> int: ...

    def readable(self) -> bool:
        """Whether there are unread bytes, or the peer has ended the link."""

    def hung_up(self) -> bool:
        """Whether the peer has ended the link. Bytes that it sent before may still be unread."""

    def take_buffered(self) -> Iterator[tuple[Message, Payload | None]]:
        """Return the messages that were read from the socket together with earlier ones. A poller
        does not see them, so call this before the link is registered with a poller."""

    def divert(self, message: Message) -> None:
        """Receive the rest of this message's payload into other memory than `land` chose, if it is
        still arriving. Only the thread that reads the link may call this."""

    def receive_ready(
        self, *, finish: bool = False, most: int | None = None
    ) -> Iterator[tuple[Message, Payload | None]]:
        """The messages that have arrived. `finish`: wait for the rest of a payload that has begun
        to arrive. `most`: stop after this many messages, and set `unfinished`, because more may
        have arrived."""
