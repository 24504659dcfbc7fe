"""Forecasts how long a round would take on each server if the servers held other slices.

*A forecast needs a measurement. A host or server without one counts as average. If there is no
measurement at all, there is no forecast, and slices stay where they are.*

`aware` computes the load of each host from the slices of its servers and from the number of workers
on each host, and divides it by the measured throughput of the host (Eq. 9). A link that is much
slower than both of its hosts is a limit, too. The forecast ignores hosts without a server: slow
servers limit what such a host receives, so its measured rate is too low.

`elastic` does not measure the network. It measures how long after the beginning of a round all
contributions have arrived at each server, and fits t = a + b * bytes to the last rounds.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import TypeGuard

from polyrhythm.core.placement.load import LoadLine, host_line

_EXPLAINED = 0.5
"""A link counts as a limit if its rate is below this share of the rate that its two hosts could
give it."""
_VARIED = 0.02
"""A line is fitted only if the bytes on a server have varied by more than this share of their
mean."""

Rate = Callable[[str, str], float | None]


@dataclass(frozen=True, slots=True)
class Forecast:
    lines: Mapping[int, LoadLine]
    """Per server, how the time of a round depends on the bytes that the server holds."""
    rates: Mapping[int, float] = field(default_factory=dict)
    """Per server, the bytes per second that it can send or receive."""

    def seconds(self, held: Mapping[int, float]) -> float:
        """The time of a round if the servers hold these numbers of bytes."""
        times = [line.seconds(held.get(server, 0)) for server, line in self.lines.items()]
        return max(times)

    def slowest(self, held: Mapping[int, float]) -> int:
        """The server whose part of a round takes longest."""
        return max(self.lines, key=lambda server: self.lines[server].seconds(held.get(server, 0)))


def is_rate(rate: float | None) -> TypeGuard[float]:
    """Whether this is a possible rate: a finite positive number."""
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
    """The forecast of `aware` for a model of `nbytes`; None if no host was measured. `servers`
    gives the host of each server, `workers` the number of workers on each host that has workers,
    `throughputs` the measured throughput of hosts, and `rate` the measured rate from one host to
    another. `sent` is the number of bytes that are transferred for each byte of a slice. `overlaps`
    says whether workers push and pull at the same time."""
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
        # the servers of one host share its throughput
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
    """The bytes of slices per second that can travel between this host's servers and the workers on
    other hosts. Only links that are slower than both of their hosts count. If both hosts of a link
    have workers and servers, the two directions share the link. `shares` is the rate that each host
    could give to each of its links."""
    most = math.inf
    for other, count in workers.items():
        measured = [each for each in (rate(host, other), rate(other, host)) if is_rate(each)]
        if other == host or not measured:
            continue
        slowest = min(measured) / sent
        if slowest < _EXPLAINED * min(shares[host], shares[other]):
            shared = 2 if host in workers and other in servers else 1
            most = min(most, slowest / (count * shared))
    return most


def _links(host: str, servers: Mapping[str, int], workers: Mapping[str, int]) -> int:
    """The number of other hosts with which this host exchanges slices."""
    peers: set[str] = set()
    if host in servers:
        peers |= workers.keys()
    if host in workers:
        peers |= servers.keys()
    return max(1, len(peers - {host}))


def forecast_elastic(
    servers: Sequence[int], observed: Mapping[int, Sequence[tuple[float, float]]]
) -> Forecast | None:
    """The forecast of `elastic`. It is computed from the last rounds: for each server, the bytes of
    its slices and the seconds until all contributions had arrived."""
    fits = {server: fit(observed[server]) for server in servers if observed.get(server)}
    if not fits:
        return None
    usual = LoadLine(median(a for a, _ in fits.values()), median(b for _, b in fits.values()))
    lines = {server: LoadLine(*fits[server]) if server in fits else usual for server in servers}
    return Forecast(lines, rates={server: 1 / line.byte_s for server, line in lines.items()})


def fit(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Fit the line t = a + b * bytes by least squares, with a >= 0 and b > 0. If the bytes have
    hardly varied, or the times did not depend on them, the line goes through the origin."""
    mean, mean_s = fmean(x for x, _ in points), fmean(t for _, t in points)
    spread = sum((x - mean) ** 2 for x, _ in points)
    if mean > 0 and spread > len(points) * (_VARIED * mean) ** 2:
        slope = sum((x - mean) * (t - mean_s) for x, t in points) / spread
        if 0 < slope * mean <= mean_s:
            return mean_s - slope * mean, slope
    return 0.0, max(mean_s, 1e-9) / max(mean, 1.0)
