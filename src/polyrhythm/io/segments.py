"""Memory for tensors: anonymous, or a memfd that another process can map.

A memfd is sealed against shrinking and growing before its descriptor is sent, because a segment
that shrinks kills its reader with SIGBUS. For the same reason a peer's segment without these seals
is refused. Another seal makes every map that is made later read-only. The kernel frees a segment
when the last process that uses it has ended, so `kill -9` leaves nothing behind.
"""

import fcntl
import itertools
import mmap
import os
import sys
import threading
import warnings
from dataclasses import dataclass, field, replace

from polyrhythm.errors import LinkError
from polyrhythm.io.limits import none_left, too_few
from polyrhythm.wire.digests import Digest


class Fingerprint:
    """The first link that needs the digest computes it, on its own thread; the other links wait for
    the result. The memory must not change while this object is in use. After a change, a new
    fingerprint is made."""

    __slots__ = ("_known", "_lock", "_memory")

    def __init__(self, memory: memoryview) -> None:
        self._memory = memory
        self._known: dict[Digest, bytes] = {}
        self._lock = threading.Lock()

    def by(self, digest: Digest) -> bytes:
        known = self._known.get(digest)
        if known is not None:
            return known
        with self._lock:
            known = self._known.get(digest)
            if known is None:
                known = self._known[digest] = digest.over((self._memory,))
            return known


SHAREABLE = sys.platform == "linux" and hasattr(os, "memfd_create")

_F_SEAL_FUTURE_WRITE = 0x0010
_ids = itertools.count(1)


class Segment:
    """`nbytes` of zeroed memory. `fd` is None if the memory cannot be shared."""

    def __init__(self, nbytes: int, *, shared: bool) -> None:
        self.id = next(_ids)
        self.nbytes = nbytes
        self.fd: int | None = None
        size = max(1, nbytes)
        if shared and SHAREABLE:
            flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
            self.fd = os.memfd_create("polyrhythm", flags)
            os.ftruncate(self.fd, size)
            self._map = mmap.mmap(self.fd, size)
            _seal(self.fd)
        else:
            self._map = mmap.mmap(-1, size)
        self.memory = memoryview(self._map)[:nbytes]

    def piece(self, offset: int, nbytes: int) -> "Piece":
        return Piece(self, offset, nbytes, self.memory[offset : offset + nbytes])

    def close(self) -> None:
        """Close the descriptor. The memory is freed when its last memoryview is gone."""
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None

    def __del__(self) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a segment that can be sent: by reference if the link supports it, otherwise as
    bytes. Memory that is in no segment is always sent as bytes."""

    segment: Segment | None
    offset: int
    nbytes: int
    memory: memoryview
    fingerprint: Fingerprint | None = field(default=None, compare=False)
    """The digest that all links share when they send this memory; None if every link computes its
    own."""

    def for_many(self) -> "Piece":
        """This piece with a digest that several links share. The digest is valid until the memory
        changes."""
        return replace(self, fingerprint=Fingerprint(self.memory))


def piece_for_many(memory: memoryview) -> Piece:
    """A piece of memory that is in no segment, with a digest that several links share."""
    return Piece(None, 0, memory.nbytes, memory, Fingerprint(memory))


def _seal(fd: int) -> None:
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    try:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _F_SEAL_FUTURE_WRITE)
    except OSError as error:  # Linux before 5.1 has no such seal
        warnings.warn(f"segments cannot be sealed against writing here: {error}", stacklevel=2)


def map_segment(fd: int, nbytes: int) -> memoryview:
    """Map a peer's segment for reading, and close the descriptor. Raises LinkError if the segment
    could still shrink."""
    try:
        needed = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
        try:
            seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
        except OSError:
            seals = 0
        if seals & needed != needed:
            raise LinkError(
                "the peer offered a memory segment that is not sealed against shrinking"
            )
        if os.fstat(fd).st_size < nbytes:
            raise LinkError("the peer offered a memory segment that is smaller than the offer says")
        return memoryview(mmap.mmap(fd, max(1, nbytes), prot=mmap.PROT_READ))[:nbytes]
    except (OSError, ValueError, OverflowError) as error:
        if none_left(error):
            raise LinkError(too_few()) from None
        raise LinkError(
            f"the peer offered a memory segment that cannot be mapped: {error}"
        ) from None
    finally:
        os.close(fd)
