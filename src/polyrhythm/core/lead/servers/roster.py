"""The servers of the job: their numbers, addresses and incarnations, and which of them must leave."""

import msgspec

from polyrhythm.wire.messages import Address, ServerSpec


class Roster(msgspec.Struct):
    expected: int
    """How many servers the job begins with."""
    addresses: dict[int, Address] = {}
    incarnations: dict[int, int] = {}
    """Per server, the routing epoch in which it joined."""
    draining: set[int] = set()
    """The servers that must leave, and whose slices move to the others."""
    _drained: set[int] = set()
    """The numbers of servers that were drained and have left."""
    _next: int = 0
    """The number of the next server that joins while all of the first servers are present."""
    _gathered: bool = False

    @property
    def servers(self) -> list[int]:
        return sorted(self.addresses)

    @property
    def specs(self) -> tuple[ServerSpec, ...]:
        return tuple(
            ServerSpec(server, self.addresses[server], self.incarnations[server])
            for server in self.servers
        )

    @property
    def gathered(self) -> bool:
        """Whether every server of the job has joined at some time."""
        return self._gathered or len(self.addresses) >= self.expected

    @property
    def staying(self) -> tuple[int, ...]:
        """The servers that are not drained."""
        return tuple(server for server in self.servers if server not in self.draining)

    def seat(self, asked: int) -> int | None:
        """The number for a server that joins; None if it cannot have the number that it asks for. A
        server without a request (-1) gets the highest free number of the first servers of the job,
        because the lowest ones belong to the lead's host. If none is free, it gets the lowest
        number that no server has had."""
        most = max(self._next, self.expected)
        if asked >= 0:
            return asked if asked <= most and asked not in self.addresses else None
        free = set(range(self.expected)) - self.addresses.keys() - self._drained
        return max(free, default=most)

    def join(self, server: int, address: Address, incarnation: int) -> None:
        self.addresses[server] = address
        self.incarnations[server] = incarnation
        self._next = max(self._next, server + 1)
        self._gathered = self.gathered

    def vacate(self, server: int) -> bool:
        """Remove a lost server that may be replaced. Returns True if no other process knows of the
        server: its number is then free again."""
        if self.gathered or server not in self.addresses:
            return False
        del self.addresses[server]
        return True

    def remove(self, server: int, *, drained: bool = False) -> None:
        """Remove a server that was lost, or one that was drained and holds nothing any more."""
        del self.addresses[server]
        self.draining.discard(server)
        if drained:
            self._drained.add(server)

    def has_left(self, server: int) -> bool:
        """Whether this server was drained and removed."""
        return server in self._drained and server not in self.addresses
