"""The digests of frames: their names, their lengths, and the digest of data in several parts."""

import hashlib

import pytest
import xxhash

from polyrhythm.errors import FrameError
from polyrhythm.wire.digests import Digest


@pytest.mark.parametrize("digest", list(Digest))
def test_the_digest_of_parts_is_the_digest_of_their_concatenation(digest: Digest) -> None:
    value = digest.over([b"one", bytearray(b"two"), memoryview(b"three")])
    assert value == digest.over([b"onetwothree"])
    assert len(value) == digest.nbytes


def test_each_digest_equals_that_of_its_library() -> None:
    data = b"polyrhythm"
    assert Digest.NONE.over([data]) == b""
    assert Digest.XXH3.over([data]) == xxhash.xxh3_64(data).digest()
    assert Digest.SHA1.over([data]) == hashlib.sha1(data).digest()
    assert Digest.BLAKE2B.over([data]) == hashlib.blake2b(data).digest()


@pytest.mark.parametrize("digest", list(Digest))
def test_digests_are_found_by_name(digest: Digest) -> None:
    assert Digest.named(digest.name.lower()) is digest


def test_the_error_for_an_unknown_digest_names_the_known_ones() -> None:
    with pytest.raises(FrameError, match="'md5': choose one of none, xxh3, sha1, blake2b"):
        Digest.named("md5")
