"""The seam between nodes and their links: every link between two processes can do this."""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeAlias

from polyrhythm.io.segments import Piece
from polyrhythm.wire.digests import Digest
from polyrhythm.wire.frames import Land, Limits
from polyrhythm.wire.messages import Message

Sendable: TypeAlias = memoryview | Piece


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
    kind: str
    by_reference: bool
    """The peer reads payloads in the sender's memory, without a copy. The sender may reuse the memory
    when the peer allows it, which is later than the call of `done`."""

    @property
    def pollable(self) -> "PollableLink | None":
        """This link, if a poller can read it; None if reading it takes a thread."""

    def send(
        self,
        message: Message,
        payload: Sequence[Sendable] = (),
        *,
        flush: bool = True,
        done: Callable[[], None] | None = None,
    ) -> None:
        """Queue a message; this never blocks. `flush=False` lets it wait for the next flush. `done`
        is called when the link no longer needs the memory of the payload."""

    def flush(self) -> None:
        """Begin to send what is queued."""

    def withdraw(self, segment: int) -> None:
        """Tell the peer to unmap this segment: nothing will be sent from it any more."""

    def receive(self) -> tuple[Message, Payload | None]:
        """Wait for the next message. Its payload is valid until the next call."""

    def agree(self, digest: Digest, limits: Limits) -> None:
        """Use the digest and the limits that the handshake agreed on, for all later frames."""

    def outlast(self, seconds: float) -> None:
        """End the link only after so long without any sign of the peer's machine, because a network
        can fail and recover in less."""

    def land_with(self, land: Land) -> None:
        """Let `land` choose the memory into which payloads that travel as bytes are received."""

    def close(self) -> None:
        """Send what is queued, then end the link: the threads that read its two ends notice."""

    def dispose(self) -> None:
        """Close the descriptor. Only the thread that read the link may do this, after the link
        ended."""


class PollableLink(Link, Protocol):
    """A link with a file descriptor, which one thread can read among many others (`io/poll.py`)."""

    unfinished: bool
    """The last `receive_ready` stopped at its limit `most`."""

    def fileno(self) -> int: ...

    def readable(self) -> bool:
        """Whether there are unread bytes, or the peer has ended the link."""

    def take_buffered(self) -> Iterator[tuple[Message, Payload | None]]:
        """The messages that were read from the socket together with earlier ones. A poller does not
        see them: take them before you hand the link to one."""

    def receive_ready(
        self, *, finish: bool = False, most: int | None = None
    ) -> Iterator[tuple[Message, Payload | None]]:
        """The messages that have arrived. `finish`: wait for the rest of a payload that has begun.
        `most`: stop after so many messages; `unfinished` then says that more may be there."""
