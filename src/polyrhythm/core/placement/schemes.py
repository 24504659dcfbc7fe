"""Schemes: which server should be the primary of each slice, and which servers should hold its
copies.

*A scheme only names the goal of placement. The lead leads the slices there one by one
(`steps.py`), so a scheme need not know what moves cost, or in which order servers came.* A scheme is
a pure function: for the same servers, sizes, routes and forecast it gives the same goal.

`ring` gives servers equal numbers of slices, `average` equal bytes. `elastic` and `aware` give every
server the bytes with which its rounds take as long as those of the others. They differ in the
forecast (`forecast.py`), which the lead makes from what it has measured; without one, they do as
`average`.
"""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Protocol

from polyrhythm.core.placement.assignment import assign_slices
from polyrhythm.core.placement.load import LoadLine, water_fill
from polyrhythm.core.placement.ring import Ring
from polyrhythm.wire.messages import Route

Lines = Mapping[int, LoadLine]
"""Per server, the time of a round with so many bytes of slices."""


class Scheme(Protocol):
    def place(
        self,
        sizes: Sequence[int],
        servers: Sequence[int],
        replicas: int,
        stays: Mapping[int, Sequence[int]],
        lines: Lines,
    ) -> tuple[Route, ...]:
        """The goal for slices of these sizes in bytes: for each slice, its primary and `replicas`
        other servers, or as many as there are. `stays`: per slice that is on servers already, those
        that can be its primary without copying, the best one first. Slices are listed in the order
        in which they came to their servers. `lines`: the forecast; it may lack servers."""


class RingScheme:
    """Consistent hashing with bounded loads (`ring.py`)."""

    def place(
        self,
        sizes: Sequence[int],
        servers: Sequence[int],
        replicas: int,
        stays: Mapping[int, Sequence[int]],
        lines: Lines,
    ) -> tuple[Route, ...]:
        return Ring(servers).place(len(sizes), replicas, stays)


class LoadScheme:
    """Equal times of rounds: water-filling (`load.py`), and then slices (`assignment.py`). Replicas
    are on the same servers of the ring as with `ring`."""

    def place(
        self,
        sizes: Sequence[int],
        servers: Sequence[int],
        replicas: int,
        stays: Mapping[int, Sequence[int]],
        lines: Lines,
    ) -> tuple[Route, ...]:
        ring = Ring(servers)
        known = [lines[server] for server in ring.servers if server in lines]
        usual = _usual(known)
        expected = {server: lines.get(server, usual) for server in ring.servers}
        shares = water_fill(list(expected.values()), sum(sizes))
        primaries = assign_slices(dict(zip(expected, shares, strict=True)), sizes, stays, expected)
        return tuple(
            Route(primary, ring.replicas(slice_, primary, replicas))
            for slice_, primary in enumerate(primaries)
        )


def _usual(known: Sequence[LoadLine]) -> LoadLine:
    """The line of a server without a forecast."""
    if not known:
        return LoadLine(0.0, 1.0)
    return LoadLine(median(line.fixed_s for line in known), median(line.byte_s for line in known))


RING, AVERAGE, ELASTIC, AWARE = "ring", "average", "elastic", "aware"
SCHEMES: dict[str, Scheme] = {
    RING: RingScheme(),
    AVERAGE: LoadScheme(),
    ELASTIC: LoadScheme(),
    AWARE: LoadScheme(),
}
MEASURING = frozenset({ELASTIC, AWARE})
"""The schemes that follow measurements."""
