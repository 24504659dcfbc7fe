"""Which servers there are, what each of them holds, and whose parameters begin.

*Round 1 opens on the parameters of one worker, the seeder. If it dies before every server has all of
them, the routing epoch rises and the servers make room anew. What was said under an older epoch is
not listened to, so that seeds still on their way never mix with another worker's.*
"""

from polyrhythm.core.placement.ring import Ring
from polyrhythm.core.placement.slices import lay_out
from polyrhythm.errors import InvariantBroken
from polyrhythm.wire.messages import Address, ModelSpec, Placed, Route, Seeded


class Placing:
    def __init__(self, servers: int, slice_nbytes: int) -> None:
        self.addresses: dict[int, Address] = {}
        self.spec: ModelSpec | None = None
        self.nbytes = 0
        self.routes: tuple[Route, ...] = ()
        self.epoch = 0
        self.holders: frozenset[int] = frozenset()
        """The servers that hold slices: with few slices, not every server does."""
        self.seeder: int | None = None
        self._awaited = servers
        self._slice_nbytes = slice_nbytes
        self._placed: set[int] = set()
        self._seeded: set[int] = set()

    @property
    def servers(self) -> list[int]:
        return sorted(self.addresses)

    @property
    def gathered(self) -> bool:
        """Every server of the job is here."""
        return len(self.addresses) >= self._awaited

    @property
    def all_placed(self) -> bool:
        return self.spec is not None and self._placed >= set(self.addresses)

    @property
    def all_seeded(self) -> bool:
        return self.spec is not None and self._seeded >= self.holders

    def seat(self, asked: int) -> int | None:
        """The number of a server that comes: the one it asks for, or, if it leaves that open, the
        highest free one, because the lead's host numbers its own from 0. None: there is no seat."""
        free = [number for number in range(self._awaited) if number not in self.addresses]
        return max(free, default=None) if asked < 0 else asked if asked in free else None

    def vacate(self, server: int) -> bool:
        """A server is gone. True if nobody was told of it: then another may take its seat."""
        if self.gathered or server not in self.addresses:
            return False
        del self.addresses[server]
        return True

    def place(self, spec: ModelSpec) -> None:
        """Cut the first worker's model and route its slices."""
        self.spec = spec
        layout = lay_out(spec, self._awaited, self._slice_nbytes)
        self.nbytes = layout.nbytes
        self.routes = Ring(self.servers).place(len(layout.slices))
        self.holders = frozenset(route.primary for route in self.routes)
        self.epoch = 1

    def slice_counts(self) -> list[int]:
        """How many slices each server holds."""
        return [sum(route.primary == server for route in self.routes) for server in self.servers]

    def placed(self, message: Placed) -> bool:
        """A server has made room; True if that was the last one."""
        if message.routing != self.epoch:
            return False
        self._placed.add(message.server)
        return self.all_placed

    def seeds(self, worker: int) -> bool:
        """Whether this worker, which is about to be routed, must seed: the first one must."""
        if self.seeder is None:
            self.seeder = worker
        return self.seeder == worker and not self.all_seeded

    def seeded(self, message: Seeded) -> None:
        if message.routing == self.epoch:
            self._seeded.add(message.server)

    def lose(self, worker: int) -> bool:
        """A worker is gone; True if it was still seeding, and the servers must place anew."""
        if self.seeder != worker or self.all_seeded:
            return False
        self.seeder = None
        self.epoch += 1
        self._placed.clear()
        self._seeded.clear()
        return True

    def check(self) -> None:
        if self.seeder is not None and not self.all_placed:
            raise InvariantBroken(f"w{self.seeder} seeds servers that have made no room yet")
        if not self._seeded <= self._placed:
            raise InvariantBroken("a server is seeded that has made no room in this epoch")
