"""The memory of a server's slices. It has several slots, each for one version; every slice has a
place in every slot, in the dtype in which it is sent.

A slot is allocated, as one segment, when it is first used. When slices move between servers, the
slices that stay keep their places. The slices that come are placed in a new segment in every slot.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import torch

from polyrhythm.core.placement.slices import Slice, pack
from polyrhythm.io.segments import Piece, Segment
from polyrhythm.tensors.dtypes import tensor_over

Allocate = Callable[[int], Segment]


class SlicePlace(NamedTuple):
    """The memory of a slice in one slot."""

    piece: Piece
    tensor: torch.Tensor


def place_side_by_side(
    slices: Sequence[Slice], dtypes: Sequence[torch.dtype], allocate: Allocate
) -> dict[int, SlicePlace]:
    """Place these slices one after the other in a new segment. Returns their places by slice."""
    places, nbytes = pack(slices, [dtype.itemsize for dtype in dtypes])
    segment = allocate(nbytes)
    found = {}
    for slice_, dtype, (offset, size) in zip(slices, dtypes, places, strict=True):
        piece = segment.piece(offset, size).for_many()
        found[slice_.id] = SlicePlace(piece, tensor_over(piece.memory, dtype))
    return found


class Slot:
    """The memory of one version. `pieces` and `tensors` have an item for each slice, in the order
    of the server's slices."""

    def __init__(self, segment: Segment, places: Mapping[int, SlicePlace]) -> None:
        self.segments = [segment]
        self.whole: Piece | None = segment.piece(0, segment.nbytes)
        """The memory of all slices as one piece; None if they are in several segments, because
        slices have moved between servers."""
        self.pieces = [place.piece for place in places.values()]
        self.tensors = [place.tensor for place in places.values()]

    def change(
        self, before: Sequence[int], now: Sequence[int], coming: Mapping[int, SlicePlace]
    ) -> list[Segment]:
        """Hold the slices `now` instead of the slices `before`. `coming`: the places of new slices.
        Returns the segments that are no longer used."""
        stay = map(SlicePlace, self.pieces, self.tensors)
        places = dict(zip(before, stay, strict=True)) | dict(coming)
        kept = [places[slice_] for slice_ in now]
        self.pieces = [place.piece for place in kept]
        self.tensors = [place.tensor for place in kept]
        known = {s.id: s for s in (*self.segments, *_segments_of(coming))}
        used = {piece.segment.id for piece in self.pieces if piece.segment is not None}
        self.segments = [segment for id_, segment in known.items() if id_ in used]
        together = coming.keys() == set(now) and len(self.segments) == 1
        self.whole = self.segments[0].piece(0, self.segments[0].nbytes) if together else None
        return [segment for id_, segment in known.items() if id_ not in used]

    def rewrite(self, index: int) -> None:
        """Call this before a slice is overwritten: the digest of its old bytes becomes invalid."""
        self.pieces[index] = self.pieces[index].for_many()

    def rewrite_all(self) -> None:
        self.pieces = [piece.for_many() for piece in self.pieces]


class Slots:
    def __init__(
        self, slices: Sequence[Slice], dtypes: Sequence[torch.dtype], allocate: Allocate
    ) -> None:
        self._allocate = allocate
        self._slots: dict[int, Slot] = {}
        self._hold(slices, dtypes)

    def _hold(self, slices: Sequence[Slice], dtypes: Sequence[torch.dtype]) -> None:
        self._slices, self.dtypes = slices, dtypes
        _, self.nbytes = pack(slices, [dtype.itemsize for dtype in dtypes])

    def at(self, number: int) -> Slot:
        slot = self._slots.get(number)
        if slot is None:
            segments: list[Segment] = []

            def allocate(nbytes: int) -> Segment:
                segments.append(self._allocate(nbytes))
                return segments[0]

            places = place_side_by_side(self._slices, self.dtypes, allocate)
            slot = self._slots[number] = Slot(segments[0], places)
        return slot

    def change(
        self,
        slices: Sequence[Slice],
        dtypes: Sequence[torch.dtype],
        filled: Mapping[int, Mapping[int, SlicePlace]],
    ) -> list[Segment]:
        """Hold these slices from now on. Slices that stay keep their places. `filled`: per slot,
        the places of new slices, if these are allocated already. Returns the segments that are no
        longer used, so that links withdraw them."""
        before = [slice_.id for slice_ in self._slices]
        now = [slice_.id for slice_ in slices]
        pairs = zip(slices, dtypes, strict=True)
        coming = [pair for pair in pairs if pair[0].id not in set(before)]
        self._hold(slices, dtypes)
        freed: list[Segment] = []
        for number, slot in self._slots.items():
            places = filled.get(number)
            if places is None:
                places = {}
                if coming:
                    new, their_dtypes = zip(*coming, strict=True)
                    places = place_side_by_side(new, their_dtypes, self._allocate)
            freed += slot.change(before, now, places)
        for segment in freed:
            segment.close()
        return freed

    def free(self, numbers: Sequence[int]) -> list[Segment]:
        """Free these slots. Returns their segments, which links must withdraw."""
        slots = [slot for n in numbers if (slot := self._slots.pop(n, None)) is not None]
        freed = [segment for slot in slots for segment in slot.segments]
        for segment in freed:
            segment.close()
        return freed

    def close(self) -> list[Segment]:
        return self.free(list(self._slots))


def _segments_of(places: Mapping[int, SlicePlace]) -> list[Segment]:
    return [place.piece.segment for place in places.values() if place.piece.segment is not None]


class SliceLocks:
    """One lock for every slice of the model, whether this server is its primary, a replica, or
    neither."""

    def __init__(self, slices: int) -> None:
        self._locks = [threading.Lock() for _ in range(slices)]
        self._unknown = threading.Lock()

    def of(self, slice_: int) -> threading.Lock:
        """The lock of a slice. Invalid numbers, which a peer may send, share one lock."""
        return self._locks[slice_] if 0 <= slice_ < len(self._locks) else self._unknown

    @contextmanager
    def all_of(self, slices: Iterable[int]) -> Iterator[None]:
        """Hold the locks of these slices. The slices must be in ascending order, so that two
        threads that each take several locks cannot deadlock."""
        with ExitStack() as locks:
            for slice_ in slices:
                locks.enter_context(self._locks[slice_])
            yield
