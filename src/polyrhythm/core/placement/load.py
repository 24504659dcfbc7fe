"""How long a round takes on each host, and how many bytes of slices each host should hold (Aware,
§3.3).

*A host's time is a linear function of the bytes of slices that it holds (Eq. 11). Water-filling gives
every host the bytes for which all times are equal, and no host less than nothing. No other division
of the model makes the slowest host faster.* The paper's Algorithm 1 comes to the same division where
all bytes are positive. On most clusters it makes some of them negative.

In a round, a host with w of the job's W workers receives and sends the parameters of its workers,
except those that its own servers hold. Each byte of slices that it holds goes to and from the W - w
other workers, and to k replicas. So the load of a host with m bytes of slices is
w (M - m) + (W - w + k) m bytes, in each direction.
"""

import math
from collections.abc import Sequence

import msgspec


class Line(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The time of a round on a host with m bytes of slices: `fixed_s` + `byte_s` * m seconds, and no
    less than m / `most` seconds."""

    fixed_s: float
    byte_s: float
    most: float = math.inf
    """The bytes of slices per second that the slowest of the host's links can carry."""

    def seconds(self, nbytes: float) -> float:
        return max(self.fixed_s + self.byte_s * nbytes, nbytes / self.most)

    def holds(self, seconds: float) -> float:
        """The most bytes with which a round takes at most this long."""
        return min(max(0.0, (seconds - self.fixed_s) / self.byte_s), seconds * self.most)


def host_line(
    nbytes: float,
    rate: float,
    *,
    workers: int,
    all_workers: int,
    replicas: int = 0,
    most: float = math.inf,
) -> Line:
    """The line of a host with this many of the job's workers, for a model of `nbytes`. `rate`: the
    bytes per second that the host can send and receive at the same time (Eq. 8)."""
    return Line(workers * nbytes / rate, (all_workers - 2 * workers + replicas) / rate, most)


def water_fill(lines: Sequence[Line], nbytes: float) -> list[float]:
    """Divide so many bytes such that the slowest host is as fast as possible, the next slowest too,
    and so on (Eq. 10)."""
    free = [line.byte_s <= 0 for line in lines]
    if any(free):
        return _share_freely(lines, free, nbytes)
    level = _level(lines, nbytes)
    held = [line.holds(level) for line in lines]
    scale = nbytes / sum(held) if sum(held) else 0.0  # corrects the rounding of floats
    return [part * scale for part in held]


def _share_freely(lines: Sequence[Line], free: Sequence[bool], nbytes: float) -> list[float]:
    """The division if some hosts are not slower with more slices, because at least half of the
    workers run there: these hosts hold everything, in proportion to their rates."""
    weights = [
        1 / max(line.fixed_s, 1e-300) if is_free else 0.0
        for line, is_free in zip(lines, free, strict=True)
    ]
    largest = max(weights)
    weights = [weight / largest for weight in weights]
    return [nbytes * weight / sum(weights) for weight in weights]


def _level(lines: Sequence[Line], nbytes: float) -> float:
    """The time at which the hosts together hold so many bytes. The bytes of every host are a piecewise
    linear function of the time: it begins to rise at `fixed_s`, and rises more slowly once a link is
    the limit."""
    turns: list[tuple[float, float, float]] = []
    for line in lines:
        slope = 1 / line.byte_s
        turns.append((line.fixed_s, slope, -line.fixed_s * slope))
        if line.most < slope:
            limited_s = line.fixed_s * slope / (slope - line.most)
            turns.append((limited_s, line.most - slope, line.fixed_s * slope))
    turns.sort()
    rise = offset = 0.0
    for (_, more, shift), following in zip(turns, [*turns[1:], None], strict=True):
        rise += more
        offset += shift
        level = (nbytes - offset) / rise if rise > 0 else math.inf
        if following is None or level <= following[0]:
            return level
    raise ValueError("no host can hold slices")
