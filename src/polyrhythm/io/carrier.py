"""The seam below a stream link: a carrier reads and writes one socket, and decides how payloads
travel.

*Only a carrier reads from its socket or writes to it.* A stream that changes the bytes on their
way, such as TLS, is therefore another carrier, and no other module changes.
"""

import socket
from collections.abc import Sequence
from typing import Protocol, TypeAlias

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
"""Raise BlockingIOError rather than wait. The values are the socket's own flags, as plain numbers,
because the enums of the socket module show in profiles of small frames."""

Wrapped: TypeAlias = tuple[int, list[Buffer], list[tuple[Message, int]]]
"""A payload as it travels: (frame flags, buffers, segments to offer first as (message,
descriptor))."""


class Carrier(Protocol):
    """Owns `sock`, which the link gives to a poller, shuts down and closes."""

    kind: str
    by_reference: bool
    """See `Link.by_reference`."""
    sock: socket.socket
    pending: bool
    """The carrier holds bytes that it has read from the socket and not handed on, so that a poller
    does not see them. False for a carrier that hands on the socket's own bytes."""

    def read(self, target: memoryview, wait: int) -> int:
        """Read into `target` and return how many bytes came: 0 at the end of the stream. `wait` is
        SOME, ALL or NOW; OSError if the stream breaks."""

    def write(self, buffers: Sequence[Buffer], descriptors: Sequence[int], wait: int) -> int:
        """Write the buffers in order, as one call where the system allows it, and return how many
        of their bytes were taken. Descriptors travel with the first byte. `wait` is SOME or NOW."""

    def wrap(self, payload: Sequence[Sendable]) -> Wrapped:
        """Turn a payload into the buffers of its frame."""

    def unwrap(self, frame: Frame) -> Payload | None:
        """Turn a received frame into its payload."""

    def withdraw(self, segment: int) -> Message | None:
        """The message that lets the peer unmap this segment; None if it was never offered."""

    def consumes(self, frame: Frame) -> bool:
        """Whether the frame was for the carrier itself, which has handled it."""

    def outlast(self, seconds: float) -> None:
        """See `Link.outlast`."""


def unwrap_inline(frame: Frame) -> Payload | None:
    """The payload of a frame whose bytes came with it."""
    if frame.flags & FLAG_REFERENCE:
        raise LinkError("the peer sent a reference over a link that carries bytes")
    return Payload(frame.payload) if frame.payload is not None else None
