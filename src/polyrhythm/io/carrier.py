"""The interface below a stream link: a carrier reads and writes one socket, and decides how
payloads travel.

*Only a carrier reads from its socket or writes to it.* So a stream that transforms the bytes, such
as TLS, is a new carrier, and no other module has to change.
"""

import socket
from collections.abc import Sequence
from typing import Protocol, TypeAlias

from polyrhythm.core.link_kinds import LinkKind
from polyrhythm.errors import LinkError
from polyrhythm.io.link import Payload, Sendable
from polyrhythm.wire.digests import Buffer
from polyrhythm.wire.frames import FLAG_REFERENCE, Frame
from polyrhythm.wire.messages import Message

SOME = 0
"""Wait until at least one byte was read or written."""
ALL = int(socket.MSG_WAITALL)
"""Wait until the whole target is filled, or the stream ends."""
NOW = int(socket.MSG_DONTWAIT)
"""Raise BlockingIOError instead of waiting. SOME, ALL and NOW are the flags of the socket module as
plain integers, because its enums cost measurable time for small frames."""

Wrapped: TypeAlias = tuple[int, list[Buffer], list[tuple[Message, int]]]
"""A payload as it is sent: the flags of its frame, its buffers, and the segments that must be
offered before it, each as (message, file descriptor)."""


class Carrier(Protocol):
    """Reads and writes `sock`. The link registers `sock` with a poller, shuts it down and closes
    it."""

    kind: LinkKind
    sock: socket.socket
    pending: bool
    """Whether the carrier has read bytes from the socket that `read` has not returned yet. A poller
    does not see such bytes. Always False for a carrier without its own buffer."""

    def read(self, target: memoryview, wait: int) -> int:
        """Read into `target` and return the number of bytes; 0 at the end of the stream. `wait` is
        SOME, ALL or NOW. Raises OSError if the stream breaks."""

    def write(self, buffers: Sequence[Buffer], descriptors: Sequence[int], wait: int) -> int:
        """Write the buffers in order, with one system call where possible, and return how many
        bytes were written. Descriptors are sent with the first byte. `wait` is SOME or NOW."""

    def wrap(self, payload: Sequence[Sendable]) -> Wrapped:
        """Turn a payload into the buffers of its frame."""

    def unwrap(self, frame: Frame) -> Payload | None:
        """Turn a received frame into its payload."""

    def withdraw(self, segment: int) -> Message | None:
        """The message that lets the peer unmap this segment; None if it was never offered."""

    def consumes(self, frame: Frame) -> bool:
        """Handle a frame for the carrier itself, such as an offered segment. Returns False for
        every other frame."""

    def outlast(self, seconds: float) -> None:
        """See `Link.outlast`."""


def unwrap_inline(frame: Frame) -> Payload | None:
    """The payload of a frame that contains the bytes themselves instead of a reference."""
    if frame.flags & FLAG_REFERENCE:
        raise LinkError("the peer sent a reference over a link that carries only bytes")
    return Payload(frame.payload) if frame.payload is not None else None
