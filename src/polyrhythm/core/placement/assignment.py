"""Which server gets which slice, when it is known how many bytes each server should hold (Aware,
Algorithm 2).

*Every server first gets its probe slices, so that its links are measured even if it should hold
nothing. Every other slice goes to a server that holds less than its share. So no server, apart from
its probe slices, holds more than its share and a part of one slice.* Unlike in the paper, slices stay
where they are while they fit, large slices choose first, and of the servers with room the slice goes
to the one whose round is then the shortest. At the end, the slowest server gives slices away as long as
that makes rounds shorter: a part of a slice too much costs a slow server more time than a fast one.
"""

import math
from collections.abc import Mapping, Sequence

from polyrhythm.core.placement.load import LoadLine

PROBES = 2
"""The probe slices of each server (the paper's `num_probe`)."""
PROBE_NBYTES = 40_000
"""A slice that is not larger is a probe slice: 10,000 values of float32 (the paper's `size_probe`)."""


def assign_slices(
    shares: Mapping[int, float],
    sizes: Sequence[int],
    stays: Mapping[int, Sequence[int]],
    lines: Mapping[int, LoadLine],
) -> list[int]:
    """The server of each slice. `shares`: the bytes that each server should hold. `stays`: per slice,
    the servers to which it can go without being copied, the best one first; slices are listed in the
    order in which they came to their servers. `lines`: the time of a round on each server."""
    plan = _Plan(shares, sizes, lines)
    probes = [slice_ for slice_, nbytes in enumerate(sizes) if nbytes <= PROBE_NBYTES]
    for most in range(1, PROBES + 1):  # no server gets a second one before the others have one
        for slice_ in probes:  # those that stay come first
            for server in stays.get(slice_, ()):
                if plan.probes.get(server, most) < most and slice_ not in plan.servers:
                    plan.give_probe(slice_, server)
        for slice_ in probes:
            server = min(shares, key=lambda server: plan.probes[server])
            if plan.probes[server] < most and slice_ not in plan.servers:
                plan.give_probe(slice_, server)
    for slice_, servers in stays.items():
        for server in servers:
            # a slice of which more than half is inside the share stays
            if slice_ not in plan.servers and plan.room.get(server, 0.0) >= sizes[slice_] / 2:
                plan.give(slice_, server)
    for slice_ in sorted(range(len(sizes)), key=lambda slice_: (-sizes[slice_], slice_)):
        if slice_ not in plan.servers:
            plan.give(slice_, plan.best(slice_, stays.get(slice_, ())))
    plan.relieve()
    return [plan.servers[slice_] for slice_ in range(len(sizes))]


class _Plan:
    """An assignment that is being made."""

    def __init__(
        self,
        shares: Mapping[int, float],
        sizes: Sequence[int],
        lines: Mapping[int, LoadLine],
    ) -> None:
        self._sizes = sizes
        self._lines = lines
        self._held = dict.fromkeys(shares, 0)
        self.room = dict(shares)
        """Per server, the part of its share that is not assigned yet; negative if it holds more."""
        self.probes = dict.fromkeys(shares, 0)
        self.servers: dict[int, int] = {}

    def give(self, slice_: int, server: int) -> None:
        self.servers[slice_] = server
        self.room[server] -= self._sizes[slice_]
        self._held[server] += self._sizes[slice_]

    def give_probe(self, slice_: int, server: int) -> None:
        self.probes[server] += 1
        self.give(slice_, server)

    def relieve(self) -> None:
        """Let the slowest server give slices to servers with room, as long as that makes rounds
        shorter."""
        while (found := self._relief()) is not None:
            slice_, server = found
            self.room[self.servers[slice_]] += self._sizes[slice_]
            self._held[self.servers[slice_]] -= self._sizes[slice_]
            self.give(slice_, server)

    def _relief(self) -> tuple[int, int] | None:
        """The slice that the slowest server should give away next, and to which server."""
        slowest = max(self._held, key=lambda server: (self._seconds(server, 0), -server))
        of_size = {
            self._sizes[slice_]: slice_
            for slice_, server in self.servers.items()
            if server == slowest and self._sizes[slice_] > PROBE_NBYTES
        }
        options = [
            (max(self._seconds(slowest, -nbytes), self._seconds(server, nbytes)), slice_, server)
            for nbytes, slice_ in of_size.items()
            for server, room in self.room.items()
            if server != slowest and room > 0
        ]
        then_s, slice_, server = min(options, default=(math.inf, 0, 0))
        return (slice_, server) if then_s < self._seconds(slowest, 0) else None

    def _seconds(self, server: int, more: int) -> float:
        """The time of a round on a server that holds so many bytes more."""
        return self._lines[server].seconds(self._held[server] + more)

    def best(self, slice_: int, stays: Sequence[int]) -> int:
        """The best server with room for a slice. There always is one: the room of all servers
        together is as large as the slices that are not assigned yet."""
        roomy = [server for server, room in self.room.items() if room > 0]

        def cost(server: int) -> tuple[float, float, bool, int]:
            then_s = self._seconds(server, self._sizes[slice_])
            return then_s, -self.room[server], server not in stays, server

        return min(roomy or self.room, key=cost)
