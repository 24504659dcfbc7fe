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
from typing import NamedTuple, TypeAlias

import msgspec

from polyrhythm.errors import FrameError
from polyrhythm.wire.digests import Buffer, Digest
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


class _Fixed(NamedTuple):
    event: int
    flags: int
    head_nbytes: int
    payload_nbytes: int
    sent_ns: int
    head_sum: int


def header_nbytes(digest: Digest) -> int:
    return _FIXED.size + digest.nbytes + _CHECKSUM.size


def encode(
    message: Message,
    payload: Sequence[Buffer] = (),
    *,
    digest: Digest,
    timestamp_ns: int,
    flags: int = 0,
) -> list[Buffer]:
    """The frame as buffers: header and head, then the caller's own payload memory, uncopied."""
    head = encode_head(message)
    payload_nbytes = 0
    for part in payload:
        payload_nbytes += part.nbytes if isinstance(part, memoryview) else len(part)
    fixed = _FIXED.pack(
        PREAMBLE,
        EVENT_TYPES[type(message)],
        flags,
        0,
        len(head),
        len(head) + payload_nbytes,
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
        self.digest = digest
        self.limits = limits
        self.land = land
        self._staging = memoryview(bytearray(_STAGING_NBYTES))
        self._start = 0
        self._end = 0
        self._scratch = memoryview(b"")
        self._fixed: _Fixed | None = None
        self._expected = b""
        self._head = b""
        self._message: Message | None = None
        self._payload: memoryview | None = None
        self._filled = 0

    @property
    def idle(self) -> bool:
        """True between two frames: nothing of the next one has come yet."""
        return self._fixed is None and self._start == self._end

    @property
    def in_payload(self) -> bool:
        """True while the next bytes go straight into a payload's place."""
        return self._payload is not None and self._start == self._end

    def target(self) -> memoryview:
        if self.in_payload:
            assert self._payload is not None
            return self._payload[self._filled :]
        if self._start:
            rest = self._end - self._start
            self._staging[:rest] = bytes(self._staging[self._start : self._end])
            self._start, self._end = 0, rest
        return self._staging[self._end :]

    def landed(self, nbytes: int) -> None:
        if self.in_payload:
            self._filled += nbytes
        else:
            self._end += nbytes

    def next(self) -> Frame | None:
        if self._fixed is None and not self._take_header():
            return None
        assert self._fixed is not None
        if self._message is None and not self._take_head():
            return None
        if self._payload is not None and not self._fill_payload():
            return None
        return self._finish()

    def _take_header(self) -> bool:
        size = header_nbytes(self.digest)
        available = self._end - self._start
        if available < size:
            self._check_preamble(available)
            return False
        header = self._staging[self._start : self._start + size]
        self._check_preamble(available)
        signed = header[: size - _CHECKSUM.size]
        (checksum,) = _CHECKSUM.unpack_from(header, len(signed))
        if zlib.crc32(signed) != checksum:
            raise FrameError(
                "damaged frame: the header does not match its checksum"
                " (or the peer uses another digest than agreed)"
            )
        _, event, flags, _, head_nbytes, body_nbytes, sent_ns, head_sum = _FIXED.unpack_from(header)
        self._expected = bytes(signed[_FIXED.size :])
        self._check_lengths(event, head_nbytes, body_nbytes)
        self._start += size
        payload_nbytes = body_nbytes - head_nbytes
        self._fixed = _Fixed(event, flags, head_nbytes, payload_nbytes, sent_ns, head_sum)
        self._head = b""
        return True

    def _check_preamble(self, available: int) -> None:
        seen = min(available, len(PREAMBLE))
        if self._staging[self._start : self._start + seen] != PREAMBLE[:seen]:
            raise FrameError("these bytes are not a polyrhythm frame: wrong preamble")

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

    def _take_head(self) -> bool:
        assert self._fixed is not None
        event, _, head_nbytes, payload_nbytes, _, head_sum = self._fixed
        take = min(head_nbytes - len(self._head), self._end - self._start)
        if take or not head_nbytes:
            part = self._staging[self._start : self._start + take]
            self._head = bytes(part) if not self._head else self._head + bytes(part)
            self._start += take
        if len(self._head) < head_nbytes:
            return False
        if zlib.crc32(self._head) != head_sum:
            raise FrameError("damaged frame: its head does not match its checksum")
        if self.digest is not Digest.NONE and not payload_nbytes:
            self._verify(())
        try:
            self._message = DECODERS[event].decode(self._head)
        except msgspec.DecodeError as error:
            raise FrameError(f"a {event} frame whose head cannot be read: {error}") from None
        if payload_nbytes:
            self._payload = self._place(payload_nbytes)
            self._filled = 0
        return True

    def _place(self, nbytes: int) -> memoryview:
        assert self._message is not None and self._fixed is not None
        place = None
        if self.land is not None and not self._fixed.flags & FLAG_REFERENCE:
            place = self.land(self._message, nbytes)
        if place is None:
            if len(self._scratch) < nbytes:
                self._scratch = memoryview(bytearray(nbytes))
            place = self._scratch
        return place[:nbytes]

    def _fill_payload(self) -> bool:
        assert self._payload is not None
        take = min(len(self._payload) - self._filled, self._end - self._start)
        if take:
            self._payload[self._filled : self._filled + take] = self._staging[
                self._start : self._start + take
            ]
            self._start += take
            self._filled += take
        return self._filled == len(self._payload)

    def _verify(self, payload: Sequence[Buffer]) -> None:
        if self.digest.over((self._head, *payload)) != self._expected:
            raise FrameError(
                f"damaged frame: its body does not match its {self.digest.name.lower()} digest"
            )

    def _finish(self) -> Frame:
        assert self._fixed is not None and self._message is not None
        if self._payload is not None and self.digest is not Digest.NONE:
            self._verify((self._payload,))
        frame = Frame(self._message, self._payload, self._fixed.flags, self._fixed.sent_ns)
        self._fixed = self._message = self._payload = None
        return frame
