"""Which buffer holds which version, and who still reads it.

*A version is leased from the pull until the reader has copied it, or its link closes; a fold writes
in place if nothing is leased, otherwise into a spare.* Slots are numbers here; the interpreter owns
the memory behind them and makes a slot when it is first named.
"""

from polyrhythm.errors import InvariantBroken


class Versions:
    """`rotating`: the updater grows the next version beside the current one (plain addition), so
    the slot of the next version is chosen when a round opens and not when it closes."""

    def __init__(self, rotating: bool = False) -> None:
        self.version = 0
        self.slot = 0
        self._rotating = rotating
        self._fill = 1 if rotating else 0
        self._leases: dict[tuple[int, int], int] = {}

    @property
    def slots(self) -> int:
        """How many slots are in use: the current one, what is leased, what is being filled."""
        return len({self.slot, self._fill, *self._leases.values()})

    def leased(self, slot: int) -> bool:
        return slot in self._leases.values()

    def target(self) -> tuple[int, int]:
        """(the slot to fold into, the slot to grow the aggregate after that in)."""
        if self._rotating:
            return self._fill, self._free({self._fill})
        if not self.leased(self.slot):
            return self.slot, self.slot
        spare = self._free({self.slot})
        return spare, spare

    def _free(self, taken: set[int]) -> int:
        busy = taken | set(self._leases.values())
        slot = 0
        while slot in busy:
            slot += 1
        return slot

    def folded(self, version: int, slot: int, fill: int) -> None:
        self.version, self.slot, self._fill = version, slot, fill

    def lease(self, reader: int) -> None:
        """`reader` is sent the current version and may look at its slot until `release`. It asked
        for it, or has contributed, so it needs no earlier one."""
        self.release(reader, self.version)
        self._leases[reader, self.version] = self.slot

    def holds(self, reader: int) -> bool:
        """The current version was sent to `reader`, which has not released it yet."""
        return (reader, self.version) in self._leases

    def release(self, reader: int, version: int) -> None:
        """`reader` has copied `version`, and needs none before it either."""
        for key in [key for key in self._leases if key[0] == reader and key[1] <= version]:
            del self._leases[key]

    def forget(self, reader: int) -> None:
        self.release(reader, self.version)

    def check(self) -> None:
        if self._rotating and self.leased(self._fill):
            raise InvariantBroken(f"slot {self._fill} is being filled while a reader leases it")
        if any(version > self.version for _, version in self._leases):
            raise InvariantBroken("a version is leased that was never folded")
