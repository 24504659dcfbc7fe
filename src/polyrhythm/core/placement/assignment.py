"""Assigns slices to servers, given how many bytes each server should hold: its share (Aware,
Algorithm 2).

*Every server first gets its probe slices, so its links are measured even if its share is zero. Each
other slice goes to a server that holds less than its share. So no server exceeds its share by more
than its probe slices and a part of one slice.*

This differs from the paper in four ways. A slice stays on its server while the server has room for
it. Large slices are assigned before small ones. If several servers have room for a slice, it goes
to the server with the shortest resulting round. At the end, the slowest server gives slices away as
long as rounds become shorter: a byte above the share costs a slow server more time than a fast one.
"""

import math
from collections.abc import Mapping, Sequence

from polyrhythm.core.placement.load import LoadLine

PROBES = 2
"""The number of probe slices of each server (the paper's `num_probe`)."""
PROBE_NBYTES = 40_000
"""A slice of at most this size is a probe slice: 10,000 values of float32 (the paper's
`size_probe`)."""


def assign_slices(
    shares: Mapping[int, float],
    sizes: Sequence[int],
    stays: Mapping[int, Sequence[int]],
    lines: Mapping[int, LoadLine],
) -> list[int]:
    """Choose a server for each slice. `shares` says how many bytes each server should hold. `stays`
    lists, per slice, the servers that hold it already, the best server first; the slices are in the
    order in which their servers got them. `lines` gives the time of a round on each server."""
    plan = _Plan(shares, sizes, lines)
    probes = [slice_ for slice_, nbytes in enumerate(sizes) if nbytes <= PROBE_NBYTES]
    # every server gets its first one before any gets a second one
    for most in range(1, PROBES + 1):
        for slice_ in probes:  # slices that stay are assigned first
            for server in stays.get(slice_, ()):
                if plan.probes.get(server, most) < most and slice_ not in plan.servers:
                    plan.give_probe(slice_, server)
        for slice_ in probes:
            server = min(shares, key=lambda server: plan.probes[server])
            if plan.probes[server] < most and slice_ not in plan.servers:
                plan.give_probe(slice_, server)
    for slice_, servers in stays.items():
        for server in servers:
            # a slice stays if more than half of it is inside the share
            if slice_ not in plan.servers and plan.room.get(server, 0.0) >= sizes[slice_] / 2:
                plan.give(slice_, server)
    for slice_ in sorted(range(len(sizes)), key=lambda slice_: (-sizes[slice_], slice_)):
        if slice_ not in plan.servers:
            plan.give(slice_, plan.best(slice_, stays.get(slice_, ())))
    plan.relieve()
    return [plan.servers[slice_] for slice_ in range(len(sizes))]


class _Plan:
    """An assignment in progress."""

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
        """Per server, the bytes of its share that are still free. Negative if the server holds more
        than its share."""
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
        """Move slices from the slowest server to servers with room, as long as this makes rounds
        shorter."""
        while (found := self._relief()) is not None:
            slice_, server = found
            self.room[self.servers[slice_]] += self._sizes[slice_]
            self._held[self.servers[slice_]] -= self._sizes[slice_]
            self.give(slice_, server)

    def _relief(self) -> tuple[int, int] | None:
        """The next slice that the slowest server should give away, and the server that should get
        it."""
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
        """The time of a round on a server if it held this many additional bytes."""
        return self._lines[server].seconds(self._held[server] + more)

    def best(self, slice_: int, stays: Sequence[int]) -> int:
        """The best server with room for a slice. One always exists, because the free room of all
        servers equals the size of the unassigned slices."""
        roomy = [server for server, room in self.room.items() if room > 0]

        def cost(server: int) -> tuple[float, float, bool, int]:
            then_s = self._seconds(server, self._sizes[slice_])
            return then_s, -self.room[server], server not in stays, server

        return min(roomy or self.room, key=cost)
