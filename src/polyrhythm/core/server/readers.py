"""Who reads which version of a server's slices, and who has asked for one.

*A reader that was sent a version because it asked, or after slices moved, ends its lease with that
version's own word: that it contributes, or has read that version, may be said of what another primary
sent. Leases of the memory before slices moved end apart from those of the memory now.*
"""

from polyrhythm.core.server.leases import Versions
from polyrhythm.wire.messages import Pull


class Readers:
    """`rotating`: see `Versions`. `replicas`: slices may move."""

    def __init__(self, *, rotating: bool, replicas: bool) -> None:
        self._rotating = rotating
        self._replicas = replicas
        self.versions = Versions(rotating=rotating)
        self.pulls: dict[int, Pull] = {}
        """Per reader, what it asked for and cannot have yet."""
        self._moved_leases: set[tuple[int, int]] = set()
        """Of the memory before slices moved: which reader still reads which version."""
        self._moved = False
        """It is the primary of other slices than at the last fold."""
        self._apart: set[int] = set()
        """Who was sent a version because it asked, or after slices moved."""

    def ask(self, pull: Pull) -> None:
        """Keep a request until it can be answered. A `Pull` may overtake the slices of a contribution
        that asked earlier: the later request stays."""
        before = self.pulls.get(pull.worker)
        if before is None or before.round < pull.round:
            self.pulls[pull.worker] = pull

    def move(self, version: int) -> None:
        """The slices lie in new memory, which nobody reads yet."""
        self._moved = True
        self._moved_leases |= self.versions.leases()
        self.versions = Versions(rotating=self._rotating, version=version)

    def lease(self, reader: int, *, asked: bool = False) -> bool:
        """The current version, from now on; False if it is on its way to this one already: a second
        answer would outlive the first one's lease."""
        self.pulls.pop(reader, None)
        if not self.versions.lease(reader):
            return False
        if self._replicas:
            (self._apart.add if asked or self._moved else self._apart.discard)(reader)
        return True

    def published(self) -> None:
        """A fold's version is on its way to all who are waiting for it."""
        self._moved = False

    def says(self, reader: int) -> bool:
        """Whether what it says of a version is said of this server's."""
        return reader not in self._apart

    def contributed(self, reader: int) -> None:
        """It reads no more."""
        if reader not in self._apart:
            self.versions.forget(reader)

    def release(self, reader: int, version: int) -> bool:
        """True if nobody else looks at that slot."""
        if self._moved_leases and (reader, version) in self._moved_leases:
            # the same version may be leased to it again
            self._moved_leases.remove((reader, version))
            return False
        return self.versions.release(reader, version)

    def forget(self, reader: int) -> None:
        """Its link has ended."""
        self._moved_leases = {held for held in self._moved_leases if held[0] != reader}
        self.versions.forget(reader)
