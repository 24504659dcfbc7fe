"""A frame: its layout, its limits, the memory that receives its bytes, and the frames that are
refused."""

import itertools
import struct
import zlib

import msgspec
import pytest
import xxhash

from polyrhythm.errors import FrameError
from polyrhythm.wire import frames
from polyrhythm.wire import messages as m
from polyrhythm.wire.digests import PIECE_NBYTES, Digest
from polyrhythm.wire.events import EventType
from polyrhythm.wire.frames import (
    FLAG_REFERENCE,
    MEMBER,
    PREAMBLE,
    STRANGER,
    Decoder,
    Limits,
    encode,
    header_nbytes,
)
from polyrhythm.wire.messages.reasons import refused
from tests.wire.samples import feed, joined, messages

DIGESTS = list(Digest)
PART = m.Contribution(worker=1, sequence=2, slice=3, weight=4.0, slices=5)


def header(event: int, head: int, body: int, digest: Digest = Digest.NONE) -> bytes:
    """Return a header with a valid checksum and these values."""
    fixed = struct.pack("<8sBBHIQQI", PREAMBLE, event, 0, 0, head, body, 0, 0)
    fixed += bytes(2 * digest.nbytes)
    return fixed + struct.pack("<I", zlib.crc32(fixed))


def decoder(digest: Digest = Digest.XXH3, limits: Limits = MEMBER) -> Decoder:
    return Decoder(digest, limits)


@pytest.mark.parametrize("digest", DIGESTS)
def test_header_length_follows_the_digest(digest: Digest) -> None:
    frame = joined(encode(m.Alive(), digest=digest, timestamp_ns=0))
    head = msgspec.msgpack.encode(m.Alive())
    assert len(frame) == header_nbytes(digest) + len(head)
    assert frame.endswith(head)


@pytest.mark.parametrize("digest", DIGESTS)
def test_head_and_payload_have_a_digest_each_which_the_checksum_covers(digest: Digest) -> None:
    frame = joined(encode(PART, [b"ten", b"sor"], digest=digest, timestamp_ns=0))
    size, nbytes = header_nbytes(digest), digest.nbytes
    assert frame[36 : 36 + nbytes] == digest.over([m.encode_head(PART)])
    assert frame[36 + nbytes : 36 + 2 * nbytes] == digest.over([b"tensor"])
    assert frame[size - 4 : size] == struct.pack("<I", zlib.crc32(frame[: size - 4]))


def protocol_1(message: m.Message) -> bytes:
    """Return a frame without payload, in the layout of protocol version 1."""
    head = m.encode_head(message)
    fixed = struct.pack(
        "<8sBBHIQQI",
        b"plrhythm",
        m.EVENT_TYPES[type(message)],
        0,
        0,
        len(head),
        len(head),
        7,
        zlib.crc32(head),
    )
    fixed += xxhash.xxh3_64(head).digest()
    return fixed + struct.pack("<I", zlib.crc32(fixed)) + head


HELLOS = [
    m.WorkerHello(name="w", job="j", identity="i", digests=(1, 0)),
    m.Refusal(reason=refused("this job speaks protocol 2")),
]


@pytest.mark.parametrize("message", HELLOS)
def test_the_handshake_has_the_layout_of_protocol_1(message: m.Message) -> None:
    frame = joined(encode(message, timestamp_ns=7, hello=True))
    assert frame == protocol_1(message)
    (got,) = feed(Decoder(Digest.XXH3, STRANGER, hello=True), protocol_1(message))
    assert got == (message, None, 0, 7)


def test_the_layout_changes_where_the_handshake_ends() -> None:
    receiver = Decoder(Digest.XXH3, STRANGER, hello=True)
    assert len(feed(receiver, protocol_1(HELLOS[0]))) == 1
    receiver.agree(Digest.SHA1)
    receiver.limits = MEMBER
    frame = encode(PART, [b"tensor"], digest=Digest.SHA1)
    assert feed(receiver, joined(frame)) == [(PART, b"tensor", 0, 0)]


def test_a_handshake_frame_with_a_payload_is_refused() -> None:
    frame = joined(encode(PART, [b"tensor"], hello=True))
    with pytest.raises(FrameError, match="at most 0 are accepted"):
        feed(Decoder(Digest.XXH3, STRANGER, hello=True), frame)
    with pytest.raises(FrameError, match="payload does not match"):
        feed(Decoder(Digest.XXH3, MEMBER, hello=True), frame)


def test_encode_returns_the_callers_own_memory() -> None:
    one, two = bytearray(b"a" * 100), memoryview(bytearray(b"b" * 50))
    buffers = encode(PART, [one, two], digest=Digest.XXH3, timestamp_ns=0)
    assert len(buffers) == 3
    assert buffers[1] is one
    assert buffers[2] is two


def test_a_frame_without_payload_is_one_buffer() -> None:
    assert len(encode(m.Alive(), digest=Digest.XXH3, timestamp_ns=0)) == 1


@pytest.mark.parametrize("digest", DIGESTS)
@pytest.mark.parametrize("payload", [[], [b"tensor bytes"], [b"two", bytearray(b"parts"), b""]])
def test_a_frame_round_trips(digest: Digest, payload: list[bytes]) -> None:
    frame = encode(PART, payload, digest=digest, timestamp_ns=77, flags=FLAG_REFERENCE)
    (got,) = feed(decoder(digest), joined(frame))
    assert got == (PART, joined(payload) if payload else None, FLAG_REFERENCE, 77)


@pytest.mark.parametrize("digest", DIGESTS)
def test_the_length_of_a_payload_of_wide_elements_is_in_bytes(digest: Digest) -> None:
    numbers = memoryview(bytearray(64)).cast("d")
    (got,) = feed(decoder(digest), joined(encode(PART, [numbers], digest=digest, timestamp_ns=0)))
    assert got[1] == bytes(64)


@pytest.mark.parametrize("message", messages(), ids=lambda message: type(message).__name__)
def test_every_message_round_trips(message: m.Message) -> None:
    (got,) = feed(decoder(), joined(encode(message, digest=Digest.XXH3, timestamp_ns=1)))
    assert got[0] == message
    assert type(got[0]) is type(message)


def test_the_samples_name_every_message_and_every_field() -> None:
    samples = messages()
    assert {type(sample) for sample in samples} == set(m.EVENT_TYPES)
    for sample in samples:
        for field in msgspec.structs.fields(m.Message):
            assert getattr(sample, field.name) != field.default, field.name


def test_every_message_has_its_own_event_type() -> None:
    assert len(set(m.EVENT_TYPES.values())) == len(m.EVENT_TYPES)
    assert set(m.DECODERS) == {int(event) for event in m.EVENT_TYPES.values()}


# -- received memory -----------------------------------------------------------------------------


def test_payloads_are_received_into_the_memory_that_the_callback_returns() -> None:
    place, asked = bytearray(100), []

    def land(message: m.Message, nbytes: int) -> memoryview:
        asked.append((message, nbytes))
        return memoryview(place)[10:]

    receiver = decoder()
    receiver.land = land
    frame = joined(encode(PART, [b"x" * 40], digest=Digest.XXH3, timestamp_ns=0))
    feed(receiver, frame, [7] * len(frame))
    assert asked == [(PART, 40)]
    assert place == bytes(10) + b"x" * 40 + bytes(50)


def test_large_payloads_are_received_in_place_and_not_staged() -> None:
    place = bytearray(1 << 20)
    receiver = decoder(Digest.NONE)
    receiver.land = lambda message, nbytes: memoryview(place)
    head, _ = encode(PART, [place], digest=Digest.NONE, timestamp_ns=0)
    assert feed(receiver, bytes(head)) == []
    assert receiver.in_payload
    target = receiver.target()
    assert len(target) == len(place)
    target[5:6] = b"!"
    assert place[5:6] == b"!"


class Sizes:
    """A hasher that records the sizes of its inputs."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self._real = xxhash.xxh3_64()

    def update(self, data: memoryview) -> None:
        self.sizes.append(len(data))
        self._real.update(data)

    def digest(self) -> bytes:
        return self._real.digest()


@pytest.mark.parametrize("piece", [PIECE_NBYTES, 4 * PIECE_NBYTES])
@pytest.mark.parametrize("arriving", [1000, 65_536, 300_001, 10**9])
@pytest.mark.parametrize("nbytes", [1000, PIECE_NBYTES, 2 * 2**20, 9 * PIECE_NBYTES + 17])
def test_payloads_are_hashed_in_large_pieces_as_they_arrive(
    monkeypatch, piece: int, arriving: int, nbytes: int
) -> None:
    hashers: list[Sizes] = []

    def hasher(self: Digest) -> Sizes:
        hashers.append(Sizes())
        return hashers[-1]

    frame = joined(encode(PART, [bytes(nbytes)], digest=Digest.XXH3))
    monkeypatch.setattr(Digest, "hasher", hasher)
    receiver = decoder()
    receiver.piece_nbytes = piece
    (got,) = feed(receiver, frame, itertools.repeat(arriving))
    assert got[1] == bytes(nbytes)
    sizes = hashers[-1].sizes
    assert sum(sizes) == nbytes
    assert min(sizes) >= min(nbytes, 256 * 1024)
    assert max(sizes) < 2 * piece
    assert len(sizes) > 1 or nbytes < 2 * piece


def test_a_payload_without_a_place_is_received_into_the_decoders_buffer() -> None:
    receiver = decoder()
    receiver.land = lambda message, nbytes: None
    (got,) = feed(receiver, joined(encode(PART, [b"abc"], digest=Digest.XXH3, timestamp_ns=0)))
    assert got[1] == b"abc"


def test_references_are_never_written_to_a_tensor() -> None:
    receiver = decoder()

    def land(message: m.Message, nbytes: int) -> memoryview:
        raise AssertionError("asked where a reference lands")

    receiver.land = land
    frame = encode(PART, [b"ref"], digest=Digest.XXH3, timestamp_ns=0, flags=FLAG_REFERENCE)
    (got,) = feed(receiver, joined(frame))
    assert got[1] == b"ref"


def test_a_damaged_head_is_refused_before_memory_is_chosen_for_its_payload() -> None:
    frame = bytearray(joined(encode(PART, [b"x" * 9], digest=Digest.NONE, timestamp_ns=0)))
    frame[header_nbytes(Digest.NONE) + 3] ^= 1
    receiver = decoder(Digest.NONE)

    def land(message: m.Message, nbytes: int) -> memoryview:
        raise AssertionError("a damaged head chose where bytes land")

    receiver.land = land
    with pytest.raises(FrameError, match="head does not match"):
        feed(receiver, bytes(frame))


def test_a_decoder_is_idle_between_frames() -> None:
    receiver = decoder()
    assert receiver.idle
    frame = joined(encode(m.Alive(), digest=Digest.XXH3, timestamp_ns=0))
    feed(receiver, frame[:3])
    assert not receiver.idle
    feed(receiver, frame[3:])
    assert receiver.idle


# -- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize("nbytes", range(1, 9))
def test_a_wrong_preamble_is_refused_at_its_first_wrong_byte(nbytes: int) -> None:
    wrong = PREAMBLE[: nbytes - 1] + bytes([PREAMBLE[nbytes - 1] ^ 0xFF])
    with pytest.raises(FrameError, match="wrong preamble"):
        feed(decoder(), wrong)


@pytest.mark.parametrize("text", [b"GET / HTTP/1.1\r\n", b"\0", b"SSH-2.0-OpenSSH"])
def test_other_protocols_are_refused(text: bytes) -> None:
    with pytest.raises(FrameError, match="not a polyrhythm frame"):
        feed(decoder(), text)


@pytest.mark.parametrize("limits", [STRANGER, MEMBER])
def test_a_payload_with_a_stated_length_of_2_to_the_60_bytes_is_refused(limits: Limits) -> None:
    with pytest.raises(FrameError, match=f"payload of {2**60 - 10} bytes"):
        feed(decoder(Digest.NONE, limits), header(m.EVENT_TYPES[m.Contribution], 10, 2**60))


def test_a_head_above_the_limit_is_refused() -> None:
    size = STRANGER.head_nbytes + 1
    with pytest.raises(FrameError, match=f"head of {size} bytes"):
        feed(decoder(Digest.NONE, STRANGER), header(m.EVENT_TYPES[m.Alive], size, size))


def test_a_head_longer_than_its_body_is_refused() -> None:
    with pytest.raises(FrameError, match="head of 11 bytes"):
        feed(decoder(Digest.NONE), header(m.EVENT_TYPES[m.Alive], 11, 10))


def test_a_payload_at_the_limit_is_accepted_and_above_it_refused() -> None:
    limits = Limits(1024, 8)
    (got,) = feed(
        decoder(Digest.XXH3, limits),
        joined(encode(PART, [bytes(8)], digest=Digest.XXH3, timestamp_ns=0)),
    )
    assert got[1] == bytes(8)
    with pytest.raises(FrameError, match="at most 8"):
        feed(
            decoder(Digest.XXH3, limits),
            joined(encode(PART, [bytes(9)], digest=Digest.XXH3, timestamp_ns=0)),
        )


def test_limits_are_checked_before_a_byte_is_allocated() -> None:
    asked = []
    receiver = Decoder(Digest.NONE, MEMBER, lambda message, nbytes: asked.append(nbytes))
    before = len(receiver._scratch)
    with pytest.raises(FrameError):
        feed(receiver, header(m.EVENT_TYPES[m.Contribution], 10, 2**60))
    assert len(receiver._scratch) == before
    assert asked == []


def test_an_unknown_event_type_is_refused() -> None:
    assert 250 not in m.DECODERS
    with pytest.raises(FrameError, match="unknown event type 250"):
        feed(decoder(Digest.NONE), header(250, 0, 0))


@pytest.mark.parametrize("head", [b"\xc1", b"", msgspec.msgpack.encode({"term": 1})])
def test_a_head_that_cannot_be_read_is_refused(head: bytes) -> None:
    event = m.EVENT_TYPES[m.Alive]
    fixed = struct.pack(
        "<8sBBHIQQI", PREAMBLE, event, 0, 0, len(head), len(head), 0, zlib.crc32(head)
    )
    frame = fixed + struct.pack("<I", zlib.crc32(fixed)) + head
    with pytest.raises(FrameError, match="cannot be read"):
        feed(decoder(Digest.NONE), frame)


def test_another_digest_than_agreed_is_refused() -> None:
    frame = joined(encode(m.Alive(), digest=Digest.SHA1, timestamp_ns=0))
    with pytest.raises(FrameError, match="another digest"):
        feed(decoder(Digest.XXH3), frame + bytes(64))


@pytest.mark.parametrize("digest", [Digest.XXH3, Digest.SHA1, Digest.BLAKE2B])
def test_the_error_for_a_damaged_payload_names_the_digest(digest: Digest) -> None:
    frame = joined(encode(PART, [b"abc"], digest=digest, timestamp_ns=0))
    with pytest.raises(FrameError, match=f"{digest.name.lower()} digest"):
        feed(decoder(digest), frame[:-1] + b"d")


def test_a_name_that_is_not_text_is_refused() -> None:
    """The checksums are valid, but the head is not. Such a frame must not end the process that
    reads it."""
    head = m.encode_head(m.WorkerHello(name="abc", job="j", identity="")).replace(
        b"abc", b"\xff\xfe\xfd"
    )
    fixed = frames._FIXED.pack(
        PREAMBLE, EventType.WRK_BONJOUR, 0, 0, len(head), len(head), 0, zlib.crc32(head)
    )
    fixed += Digest.XXH3.over((head,)) + Digest.XXH3.over(())
    whole = fixed + frames._CHECKSUM.pack(zlib.crc32(fixed)) + head
    decoder = Decoder(Digest.XXH3, STRANGER)
    decoder.target()[: len(whole)] = whole
    decoder.on_landed(len(whole))
    with pytest.raises(FrameError, match="cannot be read"):
        decoder.next()


@pytest.mark.parametrize(("kind", "words"), [(m.Report, "a Report"), (m.Admitted, "an Admitted")])
def test_the_error_for_an_unreadable_frame_names_its_message_type(
    kind: type[m.Message], words: str
) -> None:
    assert m.frame_of(m.EVENT_TYPES[kind]) == f"{words} frame"
