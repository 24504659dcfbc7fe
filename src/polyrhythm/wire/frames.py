"""One frame on a stream: dSyncPS's message format (§3.3.1) with the length widened to 64 bits.

    preamble 8 | event type 1 | flags 1 | unused 2 | head length 4 | body length 8 | timestamp 8
    checksum of the head 4 | digest of the head | digest of the payload | checksum of all of these 4
    body = head (the typed message, msgpack) + payload (raw tensor bytes)

A digest has 0 to 64 bytes; the handshake chooses it. Head and payload have separate digests, so
that a payload which is sent to many peers is hashed once. The frames of the handshake have no
payload and no digest of a payload. Their layout is the same in every version of the protocol, so
that a peer of another version can read why it is refused.

This module guarantees:

- The decoder returns a frame only when the frame is complete and verified.
- A frame with a damaged length is refused at once, because the header has its own checksum.
- The head is verified before it decides into which memory the payload is received.
- Lengths are checked before memory is allocated.
- Payloads are sent from the caller's memory and received into their final place, without a copy.
"""

import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn, TypeAlias

import msgspec

from polyrhythm.errors import FrameError
from polyrhythm.wire.digests import LEAST_PIECE_NBYTES, PIECE_NBYTES, Buffer, Digest, Hasher
from polyrhythm.wire.messages import DECODERS, EVENT_TYPES, Message, encode_head, frame_of

PREAMBLE = b"plrhythm"
FLAG_REFERENCE = 1
"""The payload is a reference into a shared segment, not the bytes themselves."""

_FIXED = struct.Struct("<8sBBHIQQI")
_CHECKSUM = struct.Struct("<I")
_STAGING_NBYTES = 64 * 1024
_HEADER_NBYTES = {digest: _FIXED.size + digest.nbytes * 2 + _CHECKSUM.size for digest in Digest}
_HELLO_NBYTES = {digest: nbytes - digest.nbytes for digest, nbytes in _HEADER_NBYTES.items()}

Land: TypeAlias = Callable[[Message, int], memoryview | None]
"""Called once per payload with its message and its size in bytes. Returns the memory to receive the
payload into, or None for the decoder's own buffer."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much memory a peer can make this process allocate. A link begins with STRANGER and gets
    MEMBER after the handshake."""

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


def header_nbytes(digest: Digest, *, hello: bool = False) -> int:
    return (_HELLO_NBYTES if hello else _HEADER_NBYTES)[digest]


class Draft:
    """A frame whose payload is not hashed yet. The link's sender thread hashes the payload just
    before it sends the frame, so that links hash in parallel. `hello`: the frame has the layout of
    the handshake."""

    __slots__ = ("_begin", "_head", "digest", "hello", "nbytes")

    def __init__(
        self,
        message: Message,
        payload_nbytes: int,
        digest: Digest,
        timestamp_ns: int = 0,
        flags: int = 0,
        *,
        hello: bool = False,
    ) -> None:
        self.digest = digest
        self.hello = hello
        head = self._head = encode_head(message)
        head_nbytes = len(head)
        body_nbytes = head_nbytes + payload_nbytes
        self._begin = _FIXED.pack(
            PREAMBLE,
            EVENT_TYPES[type(message)],
            flags,
            0,
            head_nbytes,
            body_nbytes,
            timestamp_ns,
            zlib.crc32(head),
        )
        self.nbytes = (_HELLO_NBYTES if hello else _HEADER_NBYTES)[digest] + body_nbytes

    def sealed(self, payload_digest: bytes) -> bytes:
        """The bytes before the payload: the header and the head."""
        header = self._begin
        if self.digest is not Digest.NONE:
            header += self.digest.over((self._head,))
            if not self.hello:
                header += payload_digest
        return b"".join((header, _CHECKSUM.pack(zlib.crc32(header)), self._head))


def nbytes_of(payload: Sequence[Buffer]) -> int:
    return sum(part.nbytes if isinstance(part, memoryview) else len(part) for part in payload)


def encode(
    message: Message,
    payload: Sequence[Buffer] = (),
    digest: Digest = Digest.XXH3,
    timestamp_ns: int = 0,
    flags: int = 0,
    *,
    hello: bool = False,
) -> list[Buffer]:
    """The frame as buffers: first the header and the head, then the caller's payload, not
    copied."""
    draft = Draft(message, nbytes_of(payload), digest, timestamp_ns, flags, hello=hello)
    return [draft.sealed(digest.over(payload)), *payload]


class Decoder:
    """Turns a stream of bytes into frames. The bytes may arrive in pieces of any size. The decoder
    has no socket: its caller reads the next bytes into `target()`, reports their number n with
    `landed(n)`, and gets the next complete frame, if there is one, from `next()`.

    The payload of a frame is valid until `next()` is called again. `hello`: until `agree` is
    called, frames have the layout of the handshake.
    """

    def __init__(
        self, digest: Digest, limits: Limits, land: Land | None = None, *, hello: bool = False
    ) -> None:
        self.limits = limits
        self.land = land
        self.piece_nbytes = PIECE_NBYTES
        """A payload is hashed in pieces of this size while it arrives."""
        self._staging = memoryview(bytearray(_STAGING_NBYTES))
        self._start = 0
        self._end = 0
        self._scratch = memoryview(b"")
        self._frame: Frame | None = None
        self._payload: memoryview | None = None
        self._filled = 0
        self._hashed = 0
        self._hasher: Hasher | None = None
        self._expected = b""
        self._lay_out(digest, hello)

    def agree(self, digest: Digest) -> None:
        """Use this digest for all later frames, once for the head and once for the payload: the
        handshake is complete."""
        self._lay_out(digest, hello=False)

    def _lay_out(self, digest: Digest, hello: bool) -> None:
        self._digest = digest
        self._hello = hello
        self._header_nbytes = header_nbytes(digest, hello=hello)

    @property
    def idle(self) -> bool:
        """Whether no byte of the next frame has arrived yet."""
        return self._payload is None and self._start == self._end

    @property
    def in_payload(self) -> bool:
        """Whether the next bytes are received directly into a payload's place."""
        return self._payload is not None

    def divert(self, message: Message) -> None:
        """Receive the rest of this message's payload into memory of the decoder. The place that `land`
        chose gets no more bytes of it. If another message is arriving, nothing changes."""
        if self._payload is None or self._frame is None or self._frame.message is not message:
            return
        came = self._payload[: self._filled]
        self._payload = memoryview(bytearray(len(self._payload)))
        self._payload[: len(came)] = came

    @property
    def missing(self) -> int:
        """How many bytes of the payload have not been received yet."""
        return 0 if self._payload is None else len(self._payload) - self._filled

    def target(self) -> memoryview:
        if self._payload is not None:
            rest = len(self._payload) - self._filled
            if self._hasher is not None and rest >= self.piece_nbytes + LEAST_PIECE_NBYTES:
                rest = self.piece_nbytes
            return self._payload[self._filled : self._filled + rest]
        if self._start == self._end:
            self._start = self._end = 0
        return self._staging[self._end :]

    def on_landed(self, nbytes: int) -> None:
        if self._payload is not None:
            self._filled += nbytes
            rest = len(self._payload) - self._filled
            if self._hasher is not None and rest >= LEAST_PIECE_NBYTES:
                self._hash_arrived(self._hasher, self._payload, self.piece_nbytes)
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
        """Decode the header and the head if both have arrived completely. Returns whether they
        have. The first bytes of the payload may have arrived with them; these are copied to its
        place."""
        start, size, staging = self._start, self._header_nbytes, self._staging
        available = self._end - start
        if available < size:
            if available:
                self._check_preamble(available)
                self._make_room(size)
            return False
        preamble, event, flags, _, head_nbytes, body_nbytes, sent_ns, head_sum = _FIXED.unpack_from(
            staging, start
        )
        sealed = start + size - _CHECKSUM.size
        header_sum = _CHECKSUM.unpack_from(staging, sealed)[0]
        if preamble != PREAMBLE or zlib.crc32(staging[start:sealed]) != header_sum:
            self._refuse_header(preamble)
        limits = self.limits
        payload_nbytes = body_nbytes - head_nbytes
        if (
            event not in DECODERS
            or not 0 <= payload_nbytes <= limits.payload_nbytes
            or head_nbytes > limits.head_nbytes
        ):
            self._refuse_lengths(event, head_nbytes, payload_nbytes)
        if available < size + head_nbytes:
            self._make_room(size + head_nbytes)
            return False
        head = staging[start + size : start + size + head_nbytes]
        if zlib.crc32(head) != head_sum:
            raise FrameError("damaged frame: its head does not match its checksum")
        if self._digest is not Digest.NONE:
            digests = bytes(staging[start + _FIXED.size : sealed])
            self._verify(self._digest.over((head,)), digests[: self._digest.nbytes], "head")
            self._expected = digests[self._digest.nbytes :]
        try:
            message = DECODERS[event].decode(head)
        except RecursionError:
            raise FrameError(f"{frame_of(event)} whose head is nested too deeply") from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise FrameError(f"{frame_of(event)} whose head cannot be read: {error}") from None
        self._start = start + size + head_nbytes
        self._frame = Frame(message, None, flags, sent_ns)
        if payload_nbytes:
            self._begin_payload(self._place(self._frame, payload_nbytes))
        return True

    def _check_preamble(self, available: int) -> None:
        seen = min(available, len(PREAMBLE))
        if self._staging[self._start : self._start + seen] != PREAMBLE[:seen]:
            raise FrameError("these bytes are not a polyrhythm frame: wrong preamble")

    def _refuse_header(self, preamble: bytes) -> NoReturn:
        if preamble != PREAMBLE:
            raise FrameError("these bytes are not a polyrhythm frame: wrong preamble")
        raise FrameError(
            "damaged frame: the header does not match its checksum"
            " (or the peer uses another digest than agreed)"
        )

    def _refuse_lengths(self, event: int, head_nbytes: int, payload_nbytes: int) -> NoReturn:
        if event not in DECODERS:
            raise FrameError(f"unknown event type {event}")
        if payload_nbytes < 0 or head_nbytes > self.limits.head_nbytes:
            raise FrameError(
                f"a frame claims a head of {head_nbytes} bytes;"
                f" at most {self.limits.head_nbytes} are accepted here"
            )
        raise FrameError(
            f"a frame claims a payload of {payload_nbytes} bytes;"
            f" at most {self.limits.payload_nbytes} are accepted here"
        )

    def _make_room(self, needed: int) -> None:
        """Ensure that the staging buffer has space for the first `needed` bytes of the current
        frame: move the frame to the front of the buffer, or enlarge the buffer."""
        if self._start + needed <= len(self._staging):
            return
        came = bytes(self._staging[self._start : self._end])
        if needed > len(self._staging):
            self._staging = memoryview(bytearray(needed))
        self._staging[: len(came)] = came
        self._start, self._end = 0, len(came)

    def _verify(self, computed: bytes, expected: bytes, part: str) -> None:
        if computed != expected:
            raise FrameError(
                f"damaged frame: its {part} does not match its {self._digest.name.lower()} digest"
            )

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
        self._hashed = 0
        self._payload = place
        self._hasher = None if self._digest is Digest.NONE else self._digest.hasher()

    def _hash_arrived(self, hasher: Hasher, payload: memoryview, least: int) -> None:
        """Hash the bytes of the payload that are not hashed yet, if there are at least `least` of
        them. They have just arrived, so they are still in the cache."""
        if self._filled - self._hashed >= least:
            hasher.update(payload[self._hashed : self._filled])
            self._hashed = self._filled

    def _finish(self) -> Frame:
        frame, self._frame = self._frame, None
        assert frame is not None
        frame.payload, self._payload = self._payload, None
        hasher, self._hasher = self._hasher, None
        if hasher is not None and frame.payload is not None:
            self._hash_arrived(hasher, frame.payload, 0)
            self._verify(hasher.digest(), self._expected, "payload")
        elif self._digest is not Digest.NONE and not self._hello:
            self._verify(self._digest.over(()), self._expected, "payload")
        return frame
