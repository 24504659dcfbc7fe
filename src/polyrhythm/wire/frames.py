"""One frame on a stream: dSyncPS's message format (§3.3.1) with the length widened to 64 bits.

    preamble 8 | event type 1 | flags 1 | unused 2 | head length 4 | body length 8 | timestamp 8
    checksum of the head 4 | digest of the body 0..64 (negotiated) | checksum of all of these 4
    body = head (the typed message, msgpack) + payload (raw tensor bytes)

The rules protected here: a frame is handed on only when it is complete and verified; a flipped
length is refused by the header's own checksum and not waited for; the head is verified before it
may say where a payload lands; lengths are checked before a byte is allocated; payloads are sent
from the caller's memory and received into their final place.
"""

import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from polyrhythm.errors import FrameError
from polyrhythm.wire.digests import Buffer, Digest, Hasher
from polyrhythm.wire.messages import DECODERS, EVENT_TYPES, Message, encode_head

PREAMBLE = b"plrhythm"
FLAG_REFERENCE = 1
"""The payload is a reference into a shared segment, not the bytes themselves."""

_FIXED = struct.Struct("<8sBBHIQQI")
_CHECKSUM = struct.Struct("<I")
_STAGING_NBYTES = 64 * 1024

Land: TypeAlias = Callable[[Message, int], memoryview | None]
"""Asked once per payload: where should these bytes land? None: in the decoder's own buffer."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a peer may make us allocate. A link starts with STRANGER and widens after bonjour."""

    head_nbytes: int
    payload_nbytes: int


STRANGER = Limits(head_nbytes=64 * 1024, payload_nbytes=0)
MEMBER = Limits(head_nbytes=16 * 1024 * 1024, payload_nbytes=64 * 1024 * 1024)


@dataclass(slots=True)
class Frame:
    message: Message
    payload: memoryview | None
    flags: int
    timestamp_ns: int


def header_nbytes(digest: Digest) -> int:
    return _FIXED.size + digest.nbytes + _CHECKSUM.size


def encode(
    message: Message,
    payload: Sequence[Buffer] = (),
    digest: Digest = Digest.XXH3,
    timestamp_ns: int = 0,
    flags: int = 0,
) -> list[Buffer]:
    """The frame as buffers: header and head, then the caller's own payload memory, uncopied."""
    head = encode_head(message)
    body_nbytes = len(head)
    for part in payload:
        body_nbytes += part.nbytes if isinstance(part, memoryview) else len(part)
    fixed = _FIXED.pack(
        PREAMBLE,
        EVENT_TYPES[type(message)],
        flags,
        0,
        len(head),
        body_nbytes,
        timestamp_ns,
        zlib.crc32(head),
    )
    if digest is not Digest.NONE:
        fixed += digest.over((head, *payload))
    return [b"".join((fixed, _CHECKSUM.pack(zlib.crc32(fixed)), head)), *payload]


class Decoder:
    """Bytes in, frames out, whatever the splitting. It owns no socket: `target()` says where the
    next bytes should land, `landed(n)` that they did, `next()` hands over the next whole frame.

    The payload of a frame is valid until `next()` is called again.
    """

    def __init__(self, digest: Digest, limits: Limits, land: Land | None = None) -> None:
        self.limits = limits
        self.land = land
        self._staging = memoryview(bytearray(_STAGING_NBYTES))
        self._start = 0
        self._end = 0
        self._scratch = memoryview(b"")
        self._frame: Frame | None = None
        self._payload: memoryview | None = None
        self._filled = 0
        self._hasher: Hasher | None = None
        self._expected = b""
        self.agree(digest)

    def agree(self, digest: Digest) -> None:
        """Frames from now on carry this digest."""
        self._digest = digest
        self._header_nbytes = header_nbytes(digest)

    @property
    def idle(self) -> bool:
        """True between two frames: nothing of the next one has come yet."""
        return self._payload is None and self._start == self._end

    @property
    def in_payload(self) -> bool:
        """True while the next bytes go straight into a payload's place."""
        return self._payload is not None

    def target(self) -> memoryview:
        if self._payload is not None:
            return self._payload[self._filled :]
        if self._start == self._end:
            self._start = self._end = 0
        return self._staging[self._end :]

    def landed(self, nbytes: int) -> None:
        if self._payload is not None:
            self._filled += nbytes
        else:
            self._end += nbytes

    def next(self) -> Frame | None:
        if self._payload is None:
            if not self._begin():
                return None
            if self._payload is None:
                return self._finish()
        if self._filled < len(self._payload):
            return None
        return self._finish()

    def _begin(self) -> bool:
        """Take header and head, if both have come, and the part of the payload that came along."""
        start, size, staging = self._start, self._header_nbytes, self._staging
        available = self._end - start
        if available < size:
            self._check_preamble(available)
            self._make_room(size)
            return False
        preamble, event, flags, _, head_nbytes, body_nbytes, sent_ns, head_sum = _FIXED.unpack_from(
            staging, start
        )
        self._check_header(preamble, start, size)
        self._check_lengths(event, head_nbytes, body_nbytes)
        if available < size + head_nbytes:
            self._make_room(size + head_nbytes)
            return False
        head = staging[start + size : start + size + head_nbytes]
        if zlib.crc32(head) != head_sum:
            raise FrameError("damaged frame: its head does not match its checksum")
        if self._digest is not Digest.NONE:
            self._expected = bytes(staging[start + _FIXED.size : start + size - _CHECKSUM.size])
            self._hasher = self._digest.hasher()
            self._hasher.update(head)
        try:
            message = DECODERS[event].decode(head)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise FrameError(f"a {event} frame whose head cannot be read: {error}") from None
        self._start = start + size + head_nbytes
        self._frame = Frame(message, None, flags, sent_ns)
        if body_nbytes > head_nbytes:
            self._begin_payload(self._place(self._frame, body_nbytes - head_nbytes))
        return True

    def _check_preamble(self, available: int) -> None:
        seen = min(available, len(PREAMBLE))
        if self._staging[self._start : self._start + seen] != PREAMBLE[:seen]:
            raise FrameError("these bytes are not a polyrhythm frame: wrong preamble")

    def _check_header(self, preamble: bytes, start: int, size: int) -> None:
        if preamble != PREAMBLE:
            raise FrameError("these bytes are not a polyrhythm frame: wrong preamble")
        end = start + size - _CHECKSUM.size
        if zlib.crc32(self._staging[start:end]) != _CHECKSUM.unpack_from(self._staging, end)[0]:
            raise FrameError(
                "damaged frame: the header does not match its checksum"
                " (or the peer uses another digest than agreed)"
            )

    def _check_lengths(self, event: int, head_nbytes: int, body_nbytes: int) -> None:
        if event not in DECODERS:
            raise FrameError(f"unknown event type {event}")
        if head_nbytes > body_nbytes or head_nbytes > self.limits.head_nbytes:
            raise FrameError(
                f"a frame claims a head of {head_nbytes} bytes;"
                f" at most {self.limits.head_nbytes} are accepted here"
            )
        if body_nbytes - head_nbytes > self.limits.payload_nbytes:
            raise FrameError(
                f"a frame claims a payload of {body_nbytes - head_nbytes} bytes;"
                f" at most {self.limits.payload_nbytes} are accepted here"
            )

    def _make_room(self, needed: int) -> None:
        """Let `needed` bytes from the frame's beginning fit: move it to the front, or grow."""
        if self._start + needed <= len(self._staging):
            return
        came = bytes(self._staging[self._start : self._end])
        if needed > len(self._staging):
            self._staging = memoryview(bytearray(needed))
        self._staging[: len(came)] = came
        self._start, self._end = 0, len(came)

    def _place(self, frame: Frame, nbytes: int) -> memoryview:
        place = None
        if self.land is not None and not frame.flags & FLAG_REFERENCE:
            place = self.land(frame.message, nbytes)
        if place is None:
            if len(self._scratch) < nbytes:
                self._scratch = memoryview(bytearray(nbytes))
            place = self._scratch
        return place[:nbytes]

    def _begin_payload(self, place: memoryview) -> None:
        came = min(len(place), self._end - self._start)
        place[:came] = self._staging[self._start : self._start + came]
        self._start += came
        self._filled = came
        self._payload = place

    def _finish(self) -> Frame:
        frame, self._frame = self._frame, None
        assert frame is not None
        frame.payload, self._payload = self._payload, None
        if self._hasher is not None:
            self._verify(self._hasher, frame.payload)
        return frame

    def _verify(self, hasher: Hasher, payload: memoryview | None) -> None:
        if payload is not None:
            hasher.update(payload)
        self._hasher = None
        if hasher.digest() != self._expected:
            raise FrameError(
                f"damaged frame: its body does not match its {self._digest.name.lower()} digest"
            )
