"""The digests of frames. The two ends of a link choose one in the handshake (dSyncPS §3.3.1
prescribes SHA-1).

The hash functions release the interpreter's lock only for inputs of about 100 kB or more. A payload
is therefore hashed in pieces of at least `LEAST_PIECE_NBYTES`.
"""

import hashlib
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Protocol, TypeAlias

import xxhash

from polyrhythm.errors import FrameError

Buffer: TypeAlias = bytes | bytearray | memoryview

PIECE_NBYTES = 1024 * 1024
"""A payload is hashed in pieces of this size while it arrives, unless the link chooses another size.
Such a piece is still in the core's cache when it is hashed."""
LEAST_PIECE_NBYTES = 256 * 1024
"""The smallest piece. A payload may be smaller as a whole."""


class Hasher(Protocol):
    def update(self, data: Buffer, /) -> None: ...
    def digest(self) -> bytes: ...


class Digest(IntEnum):
    """The digests of frames. The handshake sends their numbers."""

    NONE = 0
    XXH3 = 1
    SHA1 = 2
    BLAKE2B = 3

    @property
    def nbytes(self) -> int:
        return _NBYTES[self]

    def over(self, parts: Sequence[Buffer]) -> bytes:
        """The digest of the concatenated parts. The parts are not copied."""
        if self is Digest.NONE:
            return b""
        if not parts:
            return _OVER_NOTHING[self]
        hasher = self.hasher()
        for part in parts:
            hasher.update(part)
        return hasher.digest()

    def hasher(self) -> Hasher:
        """A new hasher of this digest. Must not be called on NONE."""
        return _HASHERS[self]()

    @classmethod
    def named(cls, name: str) -> "Digest":
        try:
            return cls[name.upper()]
        except KeyError:
            known = ", ".join(digest.name.lower() for digest in cls)
            raise FrameError(f"unknown digest {name!r}: choose one of {known}") from None


_NBYTES = {Digest.NONE: 0, Digest.XXH3: 8, Digest.SHA1: 20, Digest.BLAKE2B: 64}
_HASHERS: dict[Digest, Callable[[], Hasher]] = {
    Digest.XXH3: xxhash.xxh3_64,
    Digest.SHA1: lambda: hashlib.sha1(usedforsecurity=False),
    Digest.BLAKE2B: hashlib.blake2b,
}
_OVER_NOTHING = {digest: make().digest() for digest, make in _HASHERS.items()}
