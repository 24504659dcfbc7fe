"""The memory of a server's slices by slot: a segment each, with every slice in it as it travels.

A slot is made when it is first named.
"""

from collections.abc import Callable, Sequence

import torch

from polyrhythm.core.placement.slices import Slice, pack
from polyrhythm.io.segments import Piece, Segment
from polyrhythm.tensors.dtypes import tensor_over

Allocate = Callable[[int], Segment]


class Slot:
    def __init__(
        self, segment: Segment, places: Sequence[tuple[int, int]], dtypes: Sequence[torch.dtype]
    ) -> None:
        self.segment = segment
        self.whole = segment.piece(0, segment.nbytes)
        self.pieces: list[Piece] = [
            segment.piece(offset, nbytes).for_many() for offset, nbytes in places
        ]
        self.tensors = [
            tensor_over(piece.memory, dtype)
            for piece, dtype in zip(self.pieces, dtypes, strict=True)
        ]

    def rewrite(self, index: int) -> None:
        """A slice is about to be written: what was hashed of it is the digest of other bytes."""
        self.pieces[index] = self.pieces[index].for_many()

    def rewrite_all(self) -> None:
        self.pieces = [piece.for_many() for piece in self.pieces]


class Slots:
    def __init__(
        self, slices: Sequence[Slice], dtypes: Sequence[torch.dtype], allocate: Allocate
    ) -> None:
        self.dtypes = dtypes
        self.places, self.nbytes = pack(slices, [dtype.itemsize for dtype in dtypes])
        self._allocate = allocate
        self._slots: dict[int, Slot] = {}

    def at(self, number: int) -> Slot:
        slot = self._slots.get(number)
        if slot is None:
            slot = Slot(self._allocate(self.nbytes), self.places, self.dtypes)
            self._slots[number] = slot
        return slot

    def free(self, numbers: Sequence[int]) -> list[Segment]:
        """These are not needed: their memory, for links to withdraw."""
        freed = [slot.segment for n in numbers if (slot := self._slots.pop(n, None)) is not None]
        for segment in freed:
            segment.close()
        return freed

    def close(self) -> list[Segment]:
        return self.free(list(self._slots))
