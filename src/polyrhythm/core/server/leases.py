"""Which buffer holds which version, and who still reads it.

*A version is leased from the pull until the reader has copied it, or its link closes; a fold writes
in place if nothing is leased, otherwise into a spare.* Slots are numbers here; the interpreter owns
the memory behind them and makes a slot when it is first named.
"""

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import TypeVar

from polyrhythm.errors import InvariantBroken

_CURRENT_AND_SPARE = 2
_IDLE_NBYTES = 4 * 2**20
_MOST_IDLE = 16
Key = TypeVar("Key", bound=Hashable)


class Versions:
    """`rotating`: the updater grows the next version beside the current one (plain addition), so
    the slot of the next version is chosen when a round opens and not when it closes."""

    def __init__(self, rotating: bool = False, version: int = 0) -> None:
        self.version = version
        self.slot = 0
        self._rotating = rotating
        self._fill = 1 if rotating else 0
        self._leases: dict[int, tuple[int, int]] = {}
        """Per reader, the version it was sent and the slot that it lies in."""
        self._readers: Counter[int] = Counter()
        """Per slot, how many look at it."""
        self._made = {self.slot, self._fill}

    @property
    def slots(self) -> int:
        """How many slots are in use: the current one, what is leased, what is being filled."""
        return len({self.slot, self._fill, *self._readers})

    def surplus(self) -> tuple[int, ...]:
        """Slots that nobody needs, but for one spare: the next slow reader will want it."""
        if len(self._made) <= _CURRENT_AND_SPARE:
            return ()
        idle = sorted(self._made - {self.slot, self._fill, *self._readers})[1:]
        self._made.difference_update(idle)
        return tuple(idle)

    def leased(self, slot: int) -> bool:
        return slot in self._readers

    def target(self) -> tuple[int, int]:
        """(the slot to fold into, the slot to grow the aggregate after that in)."""
        if self._rotating:
            return self._fill, self._free(self._fill)
        if not self.leased(self.slot):
            return self.slot, self.slot
        spare = self._free(self.slot)
        return spare, spare

    def _free(self, taken: int) -> int:
        slot = 0
        while slot == taken or self.leased(slot):
            slot += 1
        return slot

    def folded(self, version: int, slot: int, fill: int) -> None:
        self.version, self.slot, self._fill = version, slot, fill
        self._made |= {slot, fill}

    def lease(self, reader: int) -> bool:
        """`reader` is sent the current version and may look at its slot until `release`. It asked
        for it, or has contributed, so it needs no earlier one. False if it was sent it already."""
        before = self._leases.get(reader)
        if before is not None:
            if before[0] == self.version:
                return False
            self.forget(reader)
        self._leases[reader] = (self.version, self.slot)
        self._readers[self.slot] += 1
        return True

    def leases(self) -> set[tuple[int, int]]:
        """Who still reads which version."""
        return {(reader, version) for reader, (version, _) in self._leases.items()}

    def release(self, reader: int, version: int) -> bool:
        """`reader` has copied `version`, and needs none before it either. True if nobody else
        looks at that slot."""
        lease = self._leases.get(reader)
        if lease is None or lease[0] > version:
            return False
        return self.forget(reader)

    def forget(self, reader: int) -> bool:
        lease = self._leases.pop(reader, None)
        if lease is None:
            return False
        slot = lease[1]
        self._readers[slot] -= 1
        if self._readers[slot]:
            return False
        del self._readers[slot]
        return True

    def check(self) -> None:
        if self._rotating and self.leased(self._fill):
            raise InvariantBroken(f"slot {self._fill} is being filled while a reader leases it")
        if any(version > self.version for version, _ in self._leases.values()):
            raise InvariantBroken("a version is leased that was never folded")
        if Counter(slot for _, slot in self._leases.values()) != self._readers:
            raise InvariantBroken("readers were miscounted")


class SliceVersions:
    """The same where contributions are folded as they come: each slice has its own slot, and a
    reader leases every slice in the slot that it is in when it asks.

    It is asked under the fold's lock by whoever folds and whoever answers readers; it has no lock
    of its own.
    """

    def __init__(self, slices: Sequence[int], nbytes: int = _IDLE_NBYTES) -> None:
        """`nbytes`: what a slot takes."""
        self._slots = dict.fromkeys(slices, 0)
        self._idle = max(1, min(_MOST_IDLE, _IDLE_NBYTES // max(1, nbytes)))
        self._leases: dict[int, dict[int, tuple[int, ...]]] = {}
        """Per reader and ticket, the slots of all slices."""
        self._readers: Counter[tuple[int, int]] = Counter()
        self._made = {0}

    def slot(self, slice_: int) -> int:
        return self._slots[slice_]

    def target(self, slice_: int) -> int:
        """Where to fold: in place if nobody reads it, otherwise into a spare."""
        slot = self._slots[slice_]
        if not self._readers[slice_, slot]:
            return slot
        spare = 0
        while spare == slot or self._readers[slice_, spare]:
            spare += 1
        return spare

    def folded(self, slice_: int, slot: int) -> None:
        self._slots[slice_] = slot
        self._made.add(slot)

    def lease(self, reader: int, ticket: int) -> tuple[int, ...]:
        """`reader` is sent every slice as it is now, and may look until `release`; its slots. What
        it asked for before may still be leaving for it, and stays leased."""
        slots = tuple(self._slots.values())
        self._leases.setdefault(reader, {})[ticket] = slots
        for held in zip(self._slots, slots, strict=True):
            self._readers[held] += 1
        return slots

    def release(self, reader: int, ticket: int | None) -> None:
        """`reader` has copied what it got with `ticket`, and needs nothing before it either; None:
        it is gone."""
        leases = self._leases.get(reader)
        if leases is None:
            return
        for old in [old for old in leases if ticket is None or old <= ticket]:
            for held in zip(self._slots, leases.pop(old), strict=True):
                _drop(self._readers, held)
        if not leases:
            del self._leases[reader]

    @property
    def used(self) -> set[int]:
        """Slots that hold a slice as it is now, or that a reader still looks at."""
        return {*self._slots.values(), *(slot for _, slot in self._readers)}

    def surplus(self) -> tuple[int, ...]:
        """Slots that nobody needs, but for one spare, which the next slow reader will want, or a few
        where they are small: to make one and show it to every reader costs more than its memory."""
        if len(self._made) <= self._idle + 1:
            return ()
        idle = sorted(self._made - self.used)[self._idle :]
        self._made.difference_update(idle)
        return tuple(idle)

    def check(self) -> None:
        leased = Counter(
            held
            for leases in self._leases.values()
            for slots in leases.values()
            for held in zip(self._slots, slots, strict=True)
        )
        if leased != self._readers:
            raise InvariantBroken("leases of slices were miscounted")


def _drop(readers: Counter[Key], key: Key) -> None:
    """One reader less."""
    readers[key] -= 1
    if not readers[key]:
        del readers[key]
