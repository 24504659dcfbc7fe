"""dSyncPS, §3.3.1: the message format. Each test quotes the sentence that it checks."""

import struct
import zlib

from polyrhythm.wire import messages as m
from polyrhythm.wire.digests import Digest
from polyrhythm.wire.events import EventType
from polyrhythm.wire.frames import MEMBER, PREAMBLE, Decoder, encode

PAYLOAD = b"gradient"
MESSAGE = m.Contribution(worker=1, sequence=2, slices=1)


def frame(digest: Digest = Digest.SHA1) -> bytes:
    return b"".join(encode(MESSAGE, [PAYLOAD], digest=digest, timestamp_ns=123456789))


def body() -> bytes:
    return m.encode_head(MESSAGE) + PAYLOAD


def test_preamble() -> None:
    """ "the preamble specifies the message delimiter, which is a fixed string of size
    PREAMBLE_SIZE (8 bytes by default)" """
    assert len(PREAMBLE) == 8
    assert frame()[:8] == PREAMBLE


def test_event_type() -> None:
    """ "The evtType represents the type of a message. The specific types of message are shown in
    Table 1." """
    assert frame()[8] == EventType.WRK_UPDATE
    table_1 = "SRV_BONJOUR ALIVE TRAINMF BONJOUR_MDES SRV_SYNC WRK_BONJOUR WRK_REQ_SRVS WRK_UPDATE"
    assert [event.name for event in EventType][:8] == table_1.split()


def test_body_and_its_length() -> None:
    """ "The msgBody contains the message data of variable length and msgBodyLen shows the length of
    this message." The paper's 32 bits stop at 4 GB; ours are 64."""
    (length,) = struct.unpack_from("<Q", frame(), 16)
    assert length == len(body())
    assert frame().endswith(body())


def test_digest() -> None:
    """ "To guarantee message integrity, a 64-byte long SHA-1 hash value is included in hashVal,
    where SHA_DIGEST_LENGTH is 64 by default, and can be adjusted." SHA-1 has 20 bytes; the 64 are
    blake2b's."""
    for digest, nbytes in ((Digest.SHA1, 20), (Digest.BLAKE2B, 64), (Digest.XXH3, 8)):
        assert frame(digest)[36 : 36 + nbytes] == digest.over([body()])
        assert digest.nbytes == nbytes


def test_timestamp() -> None:
    """ "The ts represents the timestamp when this message is generated." """
    (timestamp_ns,) = struct.unpack_from("<Q", frame(), 24)
    assert timestamp_ns == 123456789


def test_stream() -> None:
    """ "given that TCP is a stream-oriented protocol, a delimiter is necessary for a receiving node
    to determine the end of message in a data stream" """
    decoder = Decoder(Digest.SHA1, MEMBER)
    stream = frame() + frame()
    decoder.target()[: len(stream)] = stream
    decoder.landed(len(stream))
    for _ in range(2):
        got = decoder.next()
        assert got is not None and got.message == MESSAGE and got.payload == PAYLOAD
    assert decoder.next() is None


def test_ours_beside_theirs() -> None:
    """The header's own checksum, which the paper has not: a flipped length is refused and not
    waited for."""
    header = frame()[: 36 + 20]
    (checksum,) = struct.unpack_from("<I", frame(), len(header))
    assert checksum == zlib.crc32(header)
