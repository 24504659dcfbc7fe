"""Memory that tensors live in: anonymous, or a memfd that another process can map.

A memfd is sealed against shrinking and growing before it is passed on, because a shrunken segment
kills its reader with SIGBUS; for the same reason an unsealed one is refused. Later maps are sealed
against writing. A segment vanishes with its last process: `kill -9` leaves nothing behind.
"""

import fcntl
import itertools
import mmap
import os
import sys
import warnings
from dataclasses import dataclass, field, replace

from polyrhythm.errors import LinkError
from polyrhythm.io.fingerprint import Fingerprint

SHAREABLE = sys.platform == "linux" and hasattr(os, "memfd_create")

_F_SEAL_FUTURE_WRITE = 0x0010
_ids = itertools.count(1)


class Segment:
    """`nbytes` of zeroed memory. `fd` is None where it cannot be shared."""

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
        """Give the descriptor back; the memory goes when its last view does."""
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None

    def __del__(self) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a segment, ready to be sent: by reference where the link can, else as bytes. Memory
    of no segment always travels as bytes."""

    segment: Segment | None
    offset: int
    nbytes: int
    memory: memoryview
    fingerprint: Fingerprint | None = field(default=None, compare=False)
    """Of memory that is sent to several peers before it changes. None: every link hashes it."""

    def for_many(self) -> "Piece":
        """The same memory as it is now, for several links to send."""
        return replace(self, fingerprint=Fingerprint(self.memory))


def piece_for_many(memory: memoryview) -> Piece:
    """Memory of no segment, for several links to send."""
    return Piece(None, 0, memory.nbytes, memory, Fingerprint(memory))


def _seal(fd: int) -> None:
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    try:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _F_SEAL_FUTURE_WRITE)
    except OSError as error:  # Linux before 5.1 has no such seal
        warnings.warn(f"segments cannot be sealed against writing here: {error}", stacklevel=2)


def map_segment(fd: int, nbytes: int) -> memoryview:
    """Map a peer's segment for reading; takes the descriptor over. Refuses what could shrink."""
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
            raise LinkError("the peer offered a memory segment smaller than it says")
        return memoryview(mmap.mmap(fd, max(1, nbytes), prot=mmap.PROT_READ))[:nbytes]
    except (OSError, ValueError, OverflowError) as error:
        raise LinkError(
            f"the peer offered a memory segment that cannot be mapped: {error}"
        ) from None
    finally:
        os.close(fd)
