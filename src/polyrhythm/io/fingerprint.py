"""The digest of memory that several links send, computed once for all of them."""

import threading

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
