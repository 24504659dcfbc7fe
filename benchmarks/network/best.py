"""How long a round takes at least for given rates: the solution of the linear program of Aware
(Eq. 10) in closed form, for hosts whose rates in both directions are equal.

Where servers hold the optimizer, a slice can be sent back only after all contributions have arrived
completely, so pushes and pulls of a round do not overlap. Then each half of the round has a limit of
its own.
"""

from collections.abc import Sequence

from polyrhythm.core.placement.load import host_line, water_fill

BYTES = 1e6 / 8
"""The bytes per second of 1 Mbit/s."""


def colocated_s(nbytes: float, rates: Sequence[float]) -> float:
    """A server and a worker on each host, pushes and pulls at the same time. Rates in Mbit/s."""
    lines = [host_line(nbytes, rate * BYTES, workers=1, all_workers=len(rates)) for rate in rates]
    held = water_fill(lines, nbytes)
    return max(line.seconds(part) for line, part in zip(lines, held, strict=True))


def colocated_apart_s(nbytes: float, rates: Sequence[float]) -> float:
    """The same, if pulls begin when all pushes have ended."""
    others = len(rates) - 1

    def feasible(half_s: float) -> bool:
        least = [max(0.0, nbytes - half_s * rate * BYTES) for rate in rates]
        most = [half_s * rate * BYTES / others for rate in rates]
        fits = all(low <= high for low, high in zip(least, most, strict=True))
        return fits and sum(least) <= nbytes <= sum(most)

    low, high = 0.0, nbytes / (min(rates) * BYTES)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if feasible(middle) else (middle, high)
    return 2 * high


def colocated_average_s(nbytes: float, rates: Sequence[float]) -> float:
    """The slowest host, if all servers hold equally much."""
    return (nbytes + (len(rates) - 2) * nbytes / len(rates)) / (min(rates) * BYTES)


def dedicated_s(nbytes: float, rates: Sequence[float], workers: int) -> float:
    """Servers on hosts of their own, with workers whose links are no limit."""
    return workers * nbytes / (sum(rates) * BYTES)


def dedicated_average_s(nbytes: float, rates: Sequence[float], workers: int) -> float:
    return workers * nbytes / len(rates) / (min(rates) * BYTES)
