"""A frame that waits to be sent. It is hashed when it is written, not when it is queued."""

import os
from collections.abc import Callable, Sequence

from polyrhythm.io.fingerprint import Fingerprint
from polyrhythm.io.link import Sendable
from polyrhythm.io.segments import Piece
from polyrhythm.wire.digests import Buffer, Digest
from polyrhythm.wire.frames import FLAG_REFERENCE, Draft

_NO_DIGEST = Digest.NONE  # a module variable is looked up faster than an enum member


class Descriptor:
    """A duplicate of a file descriptor that is to be sent. The owner may close the original before
    the frame is written, and the original's number could then belong to another file."""

    __slots__ = ("fd",)

    def __init__(self, fd: int) -> None:
        self.fd: int | None = None
        self.fd = os.dup(fd)

    def close(self) -> None:
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None

    def __del__(self) -> None:
        self.close()  # the descriptor is still open only if its frame was never written


class Outgoing:
    """A frame in the outbox of a link. `seal` adds the header."""

    __slots__ = ("_draft", "_fingerprint", "buffers", "descriptors", "done", "nbytes")

    def __init__(
        self,
        draft: Draft,
        payload: list[Buffer],
        fingerprint: Fingerprint | None = None,
        descriptors: tuple[Descriptor, ...] = (),
        done: Callable[[], None] | None = None,
    ) -> None:
        self._draft: Draft | None = draft
        self._fingerprint = fingerprint
        self.buffers = payload
        self.descriptors = descriptors
        self.done = done
        self.nbytes = draft.nbytes

    @property
    def hashes_nbytes(self) -> int:
        """How many bytes `seal` will hash, or will wait for because another link hashes them; 0 if
        the frame is sealed or has no digest."""
        draft = self._draft
        return 0 if draft is None or draft.digest is _NO_DIGEST else self.nbytes

    def seal(self) -> None:
        """Hash the payload, and put the header and the head in front of it."""
        draft, self._draft = self._draft, None
        if draft is None:
            return
        digest, known = b"", self._fingerprint
        if draft.digest is not _NO_DIGEST:
            digest = draft.digest.over(self.buffers) if known is None else known.by(draft.digest)
        self.buffers = [draft.sealed(digest), *self.buffers]


def fingerprint_of(payload: Sequence[Sendable], flags: int) -> Fingerprint | None:
    """The shared digest of a payload that is sent as bytes to several peers; None if the payload
    has no shared digest."""
    if flags & FLAG_REFERENCE or len(payload) != 1:
        return None
    part = payload[0]
    return part.fingerprint if isinstance(part, Piece) else None
