"""The ring: the primary and the replicas of a slice, by consistent hashing with bounded loads
(RayPS, §3.2).

The primary of a slice is the first server, clockwise from the slice's hash, that has fewer slices
than its bound. The bound is slices / servers, rounded down; if there is a remainder of r slices, r
servers have a bound that is higher by one. So no server is idle while another is the primary of two
slices. The replicas are the first k other servers clockwise. When a server leaves, only its slices
move. A server that joins takes only as many slices as its bound allows. Slices choose their servers
in the order that the caller gives. The slice that came to a server last chooses last, so a server
over its bound gives up this slice.
"""

import functools
import hashlib
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from polyrhythm.wire.messages import Route

VIRTUAL_NODES = 64


def _point(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


@functools.cache
def _nodes(server: int) -> tuple[tuple[int, int], ...]:
    """The positions of the server's virtual nodes on the ring, each with the server's number."""
    return tuple((_point(f"server {server} node {node}"), server) for node in range(VIRTUAL_NODES))


class Ring:
    def __init__(self, servers: Sequence[int]) -> None:
        self.servers = tuple(sorted(servers))
        points = sorted(node for server in self.servers for node in _nodes(server))
        self._points = [point for point, _ in points]
        self._owners = [server for _, server in points]

    def clockwise(self, slice_: int) -> Iterator[int]:
        """Every server once, in clockwise order from the slice's hash."""
        step = bisect_right(self._points, _point(f"slice {slice_}"))
        seen: set[int] = set()
        while len(seen) < len(self.servers):
            server = self._owners[step % len(self._owners)]
            if server not in seen:
                seen.add(server)
                yield server
            step += 1

    def place(
        self, slices: int, replicas: int = 0, current: Mapping[int, Sequence[int]] | None = None
    ) -> tuple[Route, ...]:
        """Choose a route for each slice. `current`: per slice, the servers that can be its primary
        without copying, the best one first. The slice goes to the first of them that is below its
        bound, so a change moves few slices. Slices choose in the order of `current`."""
        bound, extras = divmod(slices, len(self.servers))
        load = dict.fromkeys(self.servers, 0)
        primaries: dict[int, int] = {}

        def takes(slice_: int, server: int) -> bool:
            nonlocal extras
            if load.get(server, bound + 1) > bound or (load[server] == bound and not extras):
                return False
            extras -= load[server] == bound
            load[server] += 1
            primaries[slice_] = server
            return True

        for slice_, candidates in (current or {}).items():
            any(takes(slice_, server) for server in candidates)
        for slice_ in range(slices):
            if slice_ not in primaries:
                next(server for server in self.clockwise(slice_) if takes(slice_, server))
        return tuple(
            Route(primaries[slice_], self.replicas(slice_, primaries[slice_], replicas))
            for slice_ in range(slices)
        )

    def replicas(self, slice_: int, primary: int, replicas: int) -> tuple[int, ...]:
        """The first `replicas` servers clockwise that are not the slice's primary."""
        others = (server for server in self.clockwise(slice_) if server != primary)
        return tuple(islice(others, replicas))
