"""How long a round would take on each server with other slices, from what was measured.

*A forecast needs a measurement. A host or a server of which nothing is known counts as an average one;
if nothing is known of any, there is no forecast, and slices stay where they are.*

`aware` computes the load of each host from the slices of its servers and the place of the workers,
and divides it by the host's measured throughput (Eq. 9). If a link carries much less than the two hosts
at its ends can send and receive, the link is a limit too. *Hosts without a server are left out:* what
is measured there is what slow servers send, and not what the host could receive.

`elastic` knows nothing of the network. It observes for each server how long the contributions of a
round took to arrive, and fits t = a + b * bytes over the last rounds.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import TypeGuard

from polyrhythm.core.placement.load import LoadLine, host_line

_EXPLAINED = 0.5
"""A link is a limit if it carries less than this part of what its hosts could give each of their
links."""
_VARIED = 0.02
"""A line is fitted only if the bytes of a server have varied by this part of their mean."""

Rate = Callable[[str, str], float | None]


@dataclass(frozen=True, slots=True)
class Forecast:
    lines: Mapping[int, LoadLine]
    """The time of a round on each server."""
    rates: Mapping[int, float] = field(default_factory=dict)
    """The bytes per second that each server can send and receive of anything."""

    def seconds(self, held: Mapping[int, float]) -> float:
        """The time of a round if servers hold so many bytes of slices."""
        times = [line.seconds(held.get(server, 0)) for server, line in self.lines.items()]
        return max(times)

    def slowest(self, held: Mapping[int, float]) -> int:
        """The server on which a round takes longest."""
        return max(self.lines, key=lambda server: self.lines[server].seconds(held.get(server, 0)))


def is_rate(rate: float | None) -> TypeGuard[float]:
    """Whether this can be a measured rate."""
    return rate is not None and math.isfinite(rate) and rate > 0


def forecast_aware(
    nbytes: float,
    servers: Mapping[int, str],
    workers: Mapping[str, int],
    throughputs: Mapping[str, float],
    rate: Rate = lambda source, target: None,
    replicas: int = 0,
    sent: float = 1.0,
    *,
    overlaps: bool = True,
) -> Forecast | None:
    """The forecast for a model of `nbytes`. `servers`: the host of each server. `workers`: how many
    workers each host has. `throughputs`: the measured throughput of hosts. `rate`: what the link from
    one host to another has carried. `sent`: how many bytes are sent for each byte of a slice.
    `overlaps`: whether workers push and pull at the same time."""
    known = {host: value / sent for host, value in throughputs.items() if is_rate(value)}
    hosts = {*servers.values(), *workers}
    if not hosts & known.keys():
        return None
    of_servers = [known[host] for host in set(servers.values()) & known.keys()]
    usual = median(of_servers or known.values())
    rates = {host: known.get(host, usual) for host in hosts}
    all_workers = max(1, sum(workers.values()))
    beside = Counter(servers.values())
    shares = {host: value / _links(host, beside, workers) for host, value in rates.items()}
    lines = {}
    for server, host in servers.items():
        line = host_line(
            nbytes,
            rates[host],
            workers=workers.get(host, 0),
            all_workers=all_workers,
            replicas=replicas,
            overlaps=overlaps,
            most=_slowest_link(host, beside, workers, shares, rate, sent),
        )
        # the servers of a host share its time
        beside_it = beside[host]
        lines[server] = LoadLine(
            line.fixed_s,
            line.byte_s * beside_it,
            line.most / beside_it,
            line.away_s,
            line.away_byte_s * beside_it,
        )
    return Forecast(lines, {s: rates[host] * sent for s, host in servers.items()})


def _slowest_link(
    host: str,
    servers: Mapping[str, int],
    workers: Mapping[str, int],
    shares: Mapping[str, float],
    rate: Rate,
    sent: float,
) -> float:
    """The bytes of slices per second that the links between a host and the workers on other hosts
    can carry. Only links count that are slower than their hosts are. A link is shared if workers at
    both ends use servers at the other. `shares`: what each host could give each of its links."""
    most = math.inf
    for other, count in workers.items():
        measured = [each for each in (rate(host, other), rate(other, host)) if is_rate(each)]
        if other == host or not count or not measured:
            continue
        slowest = min(measured) / sent
        if slowest < _EXPLAINED * min(shares[host], shares[other]):
            shared = 2 if workers.get(host) and other in servers else 1
            most = min(most, slowest / (count * shared))
    return most


def _links(host: str, servers: Mapping[str, int], workers: Mapping[str, int]) -> int:
    """How many other hosts this host exchanges slices with."""
    peers: set[str] = set()
    if host in servers:
        peers |= workers.keys()
    if workers.get(host):
        peers |= servers.keys()
    return max(1, len(peers - {host}))


def forecast_elastic(
    servers: Sequence[int], observed: Mapping[int, Sequence[tuple[float, float]]]
) -> Forecast | None:
    """The forecast from the bytes of slices of each server and the seconds until their contributions
    had arrived, in each of the last rounds."""
    fits = {server: fit(observed[server]) for server in servers if observed.get(server)}
    if not fits:
        return None
    usual = LoadLine(median(a for a, _ in fits.values()), median(b for _, b in fits.values()))
    lines = {server: LoadLine(*fits[server]) if server in fits else usual for server in servers}
    return Forecast(lines, rates={server: 1 / line.byte_s for server, line in lines.items()})


def fit(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """The line t = a + b * bytes of least squares, with a >= 0 and b > 0. If the bytes have hardly
    varied, or the times did not follow them, the line goes through the origin."""
    mean, mean_s = fmean(x for x, _ in points), fmean(t for _, t in points)
    spread = sum((x - mean) ** 2 for x, _ in points)
    if mean > 0 and spread > len(points) * (_VARIED * mean) ** 2:
        slope = sum((x - mean) * (t - mean_s) for x, t in points) / spread
        if 0 < slope * mean <= mean_s:
            return mean_s - slope * mean, slope
    return 0.0, max(mean_s, 1e-9) / max(mean, 1.0)
