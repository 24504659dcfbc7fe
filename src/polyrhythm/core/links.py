"""Links to servers: which are wanted, which were asked for, which are there.

*A server that comes back is another incarnation, and needs another link; the end of the older one's
says nothing of it.*
"""

from collections.abc import Iterable

from polyrhythm.wire.messages import ServerSpec


class Links:
    def __init__(self) -> None:
        self._wanted: dict[int, int] = {}
        """Of every server that must be linked, its incarnation; and of those that are linked."""
        self._linked: dict[int, int] = {}
        self._dialed: dict[int, int] = {}

    def __bool__(self) -> bool:
        """Some are wanted."""
        return bool(self._wanted)

    def __contains__(self, server: int) -> bool:
        return server in self._wanted

    @property
    def complete(self) -> bool:
        return self._wanted.items() <= self._linked.items()

    @property
    def absent(self) -> list[int]:
        return sorted(server for server, _ in self._wanted.items() - self._linked.items())

    def want(self, specs: Iterable[ServerSpec]) -> None:
        """These, and no others."""
        self._wanted = {spec.server: spec.incarnation for spec in specs}

    def wants(self, server: int, incarnation: int) -> bool:
        """Whether the end of that one's link is felt; 0: whichever is there."""
        return server in self._wanted and incarnation in (0, self._wanted[server])

    def incarnation(self, server: int) -> int:
        return self._wanted[server]

    def dial(self, specs: Iterable[ServerSpec]) -> tuple[ServerSpec, ...]:
        """Which of them were not asked for yet."""
        missing = tuple(s for s in specs if self._dialed.get(s.server) != s.incarnation)
        self._dialed.update((spec.server, spec.incarnation) for spec in missing)
        return missing

    def linked(self, server: int, incarnation: int) -> None:
        self._linked[server] = incarnation

    def came(self, server: int, incarnation: int) -> None:
        """Linked, from either side: it need not be asked for."""
        self._linked[server] = self._dialed[server] = incarnation

    def ended(self, server: int, incarnation: int) -> bool:
        """A link has; False if another is in its place."""
        if 0 < incarnation < self._linked.get(server, 0):
            return False
        self._linked.pop(server, None)
        if incarnation == 0 or self._dialed.get(server, 0) <= incarnation:
            self._dialed.pop(server, None)  # or it is another that is on its way
        return True
