"""Kind statistics: the chunks that were moved together with the memory of their points, and that may
be missing from the sum.

*The old holder has subtracted the points of such a chunk. The new holder adds them when it takes a
lease with the chunk. So the points are in the sum when the new holder has contributed under such a
lease.*
"""

from collections.abc import Collection

from polyrhythm.core.lead.chunks import Holder
from polyrhythm.wire.messages import Leased


class Adoptions:
    def __init__(self) -> None:
        self._chunks: dict[int, tuple[Holder, int]] = {}
        """Per chunk: its new holder, and the number of the first lease with this chunk that was
        sent to this holder (0 if none was sent yet)."""

    def __bool__(self) -> bool:
        return bool(self._chunks)

    def moved(self, chunk: int, holder: Holder) -> None:
        """The move of a chunk is complete, and this member holds the chunk now."""
        self._chunks[chunk] = (holder, 0)

    def leased(self, lease: Leased) -> None:
        """This lease is sent to its member, which may be the new holder of moved chunks."""
        if not self._chunks:
            return
        active = {each.chunk for each in lease.chunks} | {each.chunk for each in lease.sends}
        for chunk, (holder, number) in self._chunks.items():
            if holder == (lease.worker, lease.incarnation):
                # With `--migrate blocking`, a member that waits for points visits no chunk, so it
                # adds nothing to the sum yet.
                first = (number or lease.number) if chunk in active else 0
                self._chunks[chunk] = (holder, first)

    def confirmed(self, holder: Holder, number: int) -> None:
        """A member has contributed under this lease, so the chunks that it got with the lease are
        in the sum."""
        self._chunks = {
            chunk: (other, first)
            for chunk, (other, first) in self._chunks.items()
            if other != holder or not 0 < first <= number
        }

    def forget(self, gone: Collection[Holder]) -> None:
        """These members were removed: forget the chunks that moved to them."""
        self._chunks = {chunk: each for chunk, each in self._chunks.items() if each[0] not in gone}
