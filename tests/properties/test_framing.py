"""The decoder reads frames however the stream is split, and refuses a frame with a flipped bit.
Tests that switch a rule off must find a violation."""

import itertools
import random
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent.parent / "wire"))
from polyrhythm.errors import FrameError
from polyrhythm.wire import messages as m
from polyrhythm.wire.digests import PIECE_NBYTES, Digest
from polyrhythm.wire.frames import MEMBER, Decoder, encode, header_nbytes
from polyrhythm.wire.messages.reasons import refused
from tests.wire.samples import feed, joined, messages

SAMPLES = messages()
PART = m.Contribution(worker=1, sequence=2, slice=3, weight=4.0, slices=5)
BIG = bytes(range(256)) * 300  # larger than the decoder's buffer

digests = st.sampled_from(list(Digest))
payloads = st.one_of(
    st.none(), st.lists(st.binary(max_size=300), min_size=1, max_size=3), st.just([BIG])
)
frames = st.tuples(st.sampled_from(SAMPLES), payloads, st.integers(0, 255), st.integers(0, 2**60))


def check_splitting(
    several: list[tuple[m.Message, list[bytes] | None, int, int]],
    digest: Digest,
    chunks: list[int],
) -> None:
    data = b"".join(
        joined(encode(message, payload or (), digest=digest, timestamp_ns=ts, flags=flags))
        for message, payload, flags, ts in several
    )
    sent = [
        (message, joined(payload or ()) or None, flags, ts)
        for message, payload, flags, ts in several
    ]
    decoder = Decoder(digest, MEMBER)
    try:
        assert feed(decoder, data, chunks) == sent
    except FrameError as error:
        raise AssertionError("a whole frame was refused") from error
    assert decoder.idle


def check_flip(
    message: m.Message, payload: bytes, digest: Digest, bit: int, *, hello: bool = False
) -> None:
    """Flip one bit of one frame; the decoder must refuse it."""
    parts = [payload] if payload else []
    data = bytearray(joined(encode(message, parts, digest=digest, timestamp_ns=5, hello=hello)))
    data[bit // 8] ^= 1 << bit % 8
    try:
        got = feed(Decoder(digest, MEMBER, hello=hello), bytes(data))
    except FrameError:
        return
    raise AssertionError(f"bit {bit} was turned over and {got} came out")


def check_flips(payload: bytes, digest: Digest, nbytes: int) -> None:
    """Flip each bit of the first `nbytes` bytes of a frame, one at a time."""
    for bit in range(nbytes * 8):
        check_flip(PART, payload, digest, bit)


@given(several=st.lists(frames, min_size=1, max_size=5), digest=digests, data=st.data())
def test_frames_survive_any_splitting(several, digest, data) -> None:
    chunks = data.draw(st.lists(st.integers(1, 400), max_size=200), "chunks")
    check_splitting(several, digest, chunks)


@pytest.mark.parametrize("digest", list(Digest))
def test_frames_survive_byte_by_byte(digest: Digest) -> None:
    several = [(message, [b"tensor"], 0, 1) for message in SAMPLES[:4]]
    check_splitting(several, digest, [1] * 10_000)


@pytest.mark.parametrize("digest", list(Digest))
def test_heads_larger_than_the_staging_survive(digest: Digest) -> None:
    big = m.Placed(rows=tuple(m.Row(number, 1, 2**40) for number in range(8_000)))
    check_splitting([(big, None, 0, 1), (PART, [b"after"], 0, 2)] * 2, digest, [60_000, 7, 50_000])


def test_splitting_fails_if_incomplete_frames_are_accepted(monkeypatch) -> None:
    honest = Decoder.next

    def hasty(self: Decoder):
        if self._payload is not None:
            self._filled = len(self._payload)
        return honest(self)

    monkeypatch.setattr(Decoder, "next", hasty)
    with pytest.raises(AssertionError):
        check_splitting([(PART, [b"x" * 100], 0, 1)], Digest.NONE, [1] * 500)


SAFE = [digest for digest in Digest if digest is not Digest.NONE]


@pytest.mark.parametrize("digest", SAFE)
@pytest.mark.parametrize("payload", [b"", b"payload"])
def test_every_flipped_bit_of_a_frame_is_refused(digest: Digest, payload: bytes) -> None:
    check_flips(
        payload, digest, len(joined(encode(PART, [payload], digest=digest, timestamp_ns=5)))
    )


@pytest.mark.parametrize("message", [SAMPLES[0], m.Refusal(reason=refused("no")), m.Alive()])
def test_every_flipped_bit_of_a_handshake_frame_is_refused(message: m.Message) -> None:
    nbytes = len(joined(encode(message, digest=Digest.XXH3, timestamp_ns=5, hello=True)))
    for bit in range(nbytes * 8):
        check_flip(message, b"", Digest.XXH3, bit, hello=True)


@pytest.mark.parametrize("digest", SAFE)
def test_every_flipped_bit_of_the_smallest_frame_is_refused(digest: Digest) -> None:
    nbytes = len(joined(encode(m.Alive(), digest=digest, timestamp_ns=5)))
    for bit in range(nbytes * 8):
        check_flip(m.Alive(), b"", digest, bit)


# this payload is hashed in several pieces
LARGE = random.Random(7).randbytes(3 * PIECE_NBYTES + 12_345)
LARGE_FRAME = joined(encode(PART, [LARGE], digest=Digest.XXH3, timestamp_ns=5))


@settings(max_examples=40)
@given(bit=st.integers(0, len(LARGE_FRAME) * 8 - 1), arriving=st.integers(50_000, 2**21))
def test_any_flipped_bit_of_a_payload_in_pieces_is_refused(bit, arriving) -> None:
    data = bytearray(LARGE_FRAME)
    data[bit // 8] ^= 1 << bit % 8
    with pytest.raises(FrameError):
        feed(Decoder(Digest.XXH3, MEMBER), bytes(data), itertools.repeat(arriving))


@pytest.mark.parametrize("digest", SAFE)
def test_the_payload_of_another_frame_is_refused(digest: Digest) -> None:
    """Exchange the payloads of two valid frames."""
    one, other = (joined(encode(PART, [data], digest=digest)) for data in (b"12345", b"54321"))
    with pytest.raises(FrameError, match="payload does not match"):
        feed(Decoder(digest, MEMBER), one[:-5] + other[-5:])


@given(
    message=st.sampled_from(SAMPLES),
    payload=st.binary(max_size=200),
    digest=st.sampled_from(SAFE),
    data=st.data(),
)
def test_any_flipped_bit_is_refused(message, payload, digest, data) -> None:
    nbytes = len(joined(encode(message, [payload], digest=digest, timestamp_ns=5)))
    check_flip(message, payload, digest, data.draw(st.integers(0, nbytes * 8 - 1), "bit"))


@pytest.mark.parametrize("payload", [b"", b"payload"])
def test_without_a_digest_header_and_head_are_still_protected(payload: bytes) -> None:
    check_flips(payload, Digest.NONE, header_nbytes(Digest.NONE) + len(m.encode_head(PART)))


@given(data=st.binary(max_size=300), digest=digests)
def test_random_bytes_raise_only_frame_errors(data, digest) -> None:
    """Bytes that are not a frame give no message, and raise nothing but FrameError."""
    try:
        assert feed(Decoder(digest, MEMBER), data) == []
    except FrameError:
        pass


def test_flipped_bits_are_accepted_if_bodies_are_not_verified(monkeypatch) -> None:
    monkeypatch.setattr(Decoder, "_verify", lambda self, *arguments: None)
    for digest in SAFE:
        nbytes = len(joined(encode(PART, [b"payload"], digest=digest, timestamp_ns=5)))
        with pytest.raises(AssertionError, match="turned over"):
            check_flips(b"payload", digest, nbytes)


def test_flipped_bits_are_accepted_if_headers_are_not_verified(monkeypatch) -> None:
    monkeypatch.setattr(Decoder, "_refuse_header", lambda self, *arguments: None)
    with pytest.raises(AssertionError, match="turned over"):
        check_flips(b"payload", Digest.XXH3, header_nbytes(Digest.XXH3))
