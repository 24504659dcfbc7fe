"""Schemes decide which server should be the primary of each slice, and which servers should hold
copies of it.

*A scheme only states the goal. The lead then moves the slices there one by one (`steps.py`), so a
scheme need not consider the cost of moves.* A scheme is a pure function: for the same servers,
sizes, routes and forecast it returns the same goal.

`ring` gives all servers the same number of slices, `average` the same number of bytes. `elastic`
and `aware` distribute the bytes so that a round takes equally long on all servers. They use
different forecasts, which the lead makes from measurements (`forecast.py`). Without a forecast both
act like `average`.
"""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Protocol

from polyrhythm.core.placement.assignment import assign_slices
from polyrhythm.core.placement.load import LoadLine, water_fill
from polyrhythm.core.placement.ring import Ring
from polyrhythm.wire.messages import Route

Lines = Mapping[int, LoadLine]
"""Per server, how the time of a round depends on the bytes of slices that it holds."""


class Scheme(Protocol):
    def place(
        self,
        sizes: Sequence[int],
        servers: Sequence[int],
        replicas: int,
        stays: Mapping[int, Sequence[int]],
        lines: Lines,
    ) -> tuple[Route, ...]:
        """Choose for each slice a primary, and `replicas` other servers (fewer if there are not
        enough servers). `sizes` are in bytes. `stays` lists, for each slice that is on servers
        already, the servers that can be its primary without copying, the best server first; the
        slices are in the order in which their servers got them. `lines` is the forecast, in which
        servers may be missing."""


class RingScheme:
    """Gives servers equal numbers of slices, by consistent hashing with bounded loads
    (`ring.py`)."""

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
    """Makes the rounds of all servers equally long: water-filling (`load.py`) chooses the bytes of
    each server, and `assignment.py` the slices. Replicas are on the same servers as with `ring`."""

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
    """The line for a server without a forecast: the median of the known lines."""
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
"""The schemes that use measurements."""
