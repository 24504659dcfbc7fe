"""Computes how long a round takes on each host, and how many bytes of slices each host should hold
(Aware, §3.3).

*Water-filling distributes the bytes so that a round takes equally long on all hosts. A host that is
slower even without slices gets none. No other distribution makes the slowest host faster.* The
paper's Algorithm 1 gives the same distribution if all of its results are positive. On most clusters
some results are negative, and then the algorithm cannot be used.

Two kinds of transfers load a host. The model has M bytes. The host holds m of them, and runs w of
the job's W workers.

- Its workers exchange the bytes that other hosts hold: w (M - m) bytes in each direction.
- Its servers exchange their m bytes with the W - w other workers, and send them to k replicas:
  (W - w + k) m bytes.

If workers push and pull at the same time, the load is the sum of the two (Eq. 7), and the time is a
linear function of m (Eq. 11). *If workers pull only after all have pushed, the larger of the two
loads decides in each direction.* In that case a slow host with a worker should hold slices until
its two loads are equal. If all slow hosts have workers, equal shares are the best distribution.
"""

import math
from collections.abc import Sequence

import msgspec

_PRECISION = 1e-9
_HALVINGS = 50


class LoadLine(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How the time of a round on a host depends on m, the bytes of slices that it holds. The time
    is the largest of three values: `fixed_s` + `byte_s` * m, m / `most`, and `away_s` -
    `away_byte_s` * m."""

    fixed_s: float
    byte_s: float
    most: float = math.inf
    """The bytes of slices per second that the slowest of the host's links can carry."""
    away_s: float = 0.0
    away_byte_s: float = 0.0
    """Used if workers pull only after all have pushed. `away_s` is how long the transfers of the
    host's own workers take if the host holds no slice. Each byte that the host holds saves
    `away_byte_s`."""

    def seconds(self, nbytes: float) -> float:
        away_s = self.away_s - self.away_byte_s * nbytes
        return max(self.fixed_s + self.byte_s * nbytes, nbytes / self.most, away_s)

    def holds(self, seconds: float) -> float:
        """The most bytes that the host can hold if a round may take this long. The time must be at
        least `fixed_s`."""
        return min((seconds - self.fixed_s) / self.byte_s, seconds * self.most)

    def range_within(self, seconds: float, nbytes: float) -> tuple[float, float] | None:
        """The least and the most bytes, up to `nbytes`, with which a round takes at most this long.
        None if no number of bytes is possible."""
        least, most = 0.0, min(nbytes, seconds * self.most)
        lines = ((self.fixed_s, self.byte_s), (self.away_s, -self.away_byte_s))
        for at_nothing_s, slope in lines:
            if slope > 0:
                most = min(most, (seconds - at_nothing_s) / slope)
            elif slope < 0:
                least = max(least, (seconds - at_nothing_s) / slope)
            elif at_nothing_s > seconds:
                return None
        return None if least > most else (least, most)

    @property
    def lowest(self) -> tuple[float, float]:
        """The shortest possible time of a round on this host, and the number of bytes that gives
        it."""
        if not self.away_byte_s:
            return self.fixed_s, 0.0
        rises = (self.away_s - self.fixed_s) / (self.away_byte_s + self.byte_s)
        limited = self.away_s / (self.away_byte_s + 1 / self.most)
        nbytes = max(0.0, min(rises, limited))
        return self.seconds(nbytes), nbytes


def host_line(
    nbytes: float,
    rate: float,
    *,
    workers: int,
    all_workers: int,
    replicas: int = 0,
    overlaps: bool = True,
    most: float = math.inf,
) -> LoadLine:
    """The line of a host that runs this many of the job's workers, for a model of `nbytes`. `rate`
    is the bytes per second that the host can send and receive at the same time (Eq. 8). `overlaps`
    says whether workers push and pull at the same time."""
    others = all_workers - workers
    if overlaps:
        return LoadLine(workers * nbytes / rate, (others - workers + replicas) / rate, most)
    away_s = 2 * workers * nbytes / rate
    return LoadLine(0.0, (2 * others + replicas) / rate, most / 2, away_s, 2 * workers / rate)


def water_fill(lines: Sequence[LoadLine], nbytes: float) -> list[float]:
    """Distribute `nbytes` over the hosts so that the slowest host is as fast as possible, then the
    next slowest, and so on (Eq. 10)."""
    free = [line.byte_s <= 0 for line in lines]
    if any(free):
        return _share_freely(lines, free, nbytes)
    held = [0.0] * len(lines)
    # A host whose shortest possible round is longer than the round of the others holds the bytes
    # that give its shortest round.
    slow = sorted(range(len(lines)), key=lambda at: lines[at].lowest)
    left = nbytes
    while True:
        level = _level([lines[at] for at in slow], left)
        if len(slow) == 1 or level >= lines[slow[-1]].lowest[0]:
            break
        at = slow.pop()
        held[at] = min(left, lines[at].lowest[1])
        left -= held[at]
    for at in slow:
        held[at] = lines[at].holds(level)
    scale = nbytes / sum(held) if sum(held) else 0.0  # corrects the rounding of floats
    return [part * scale for part in held]


def _share_freely(lines: Sequence[LoadLine], free: Sequence[bool], nbytes: float) -> list[float]:
    """Distribute the bytes if some hosts run so many workers (at least half of them) that more
    slices do not make these hosts slower. Usually these hosts hold everything, in proportion to
    their rates. If one of their links would then be too slow, each of them holds what its links can
    carry in the shortest possible round, and the other hosts hold the rest."""
    weights = [
        1 / max(line.fixed_s, line.away_s, 1e-300) if is_free else 0.0
        for line, is_free in zip(lines, free, strict=True)
    ]
    largest = max(weights)
    weights = [weight / largest for weight in weights]
    held = [nbytes * weight / sum(weights) for weight in weights]
    slowest_s = max(line.seconds(part) for line, part in zip(lines, held, strict=True))
    shortest_s = _shortest_s(lines, nbytes, slowest_s)
    ranges = _ranges_within(lines, nbytes, shortest_s)
    if ranges is None or slowest_s <= shortest_s * (1 + _PRECISION):
        return held
    needed = sum(least for (least, _), is_free in zip(ranges, free, strict=True) if not is_free)
    parts = _between(
        [r for r, is_free in zip(ranges, free, strict=True) if is_free], nbytes - needed
    )
    others = [line for line, is_free in zip(lines, free, strict=True) if not is_free]
    rest = water_fill(others, max(0.0, nbytes - sum(parts))) if others else []
    taken = {True: iter(parts), False: iter(rest)}
    held = [max(0.0, next(taken[is_free])) for is_free in free]
    return [nbytes * part / sum(held) for part in held]  # corrects the rounding of floats


def _ranges_within(
    lines: Sequence[LoadLine], nbytes: float, seconds: float
) -> list[tuple[float, float]] | None:
    """The least and the most bytes that each host can hold if a round must take at most `seconds`.
    None if the hosts together cannot hold exactly `nbytes` in that time."""
    ranges = [line.range_within(seconds, nbytes) for line in lines]
    found = [each for each in ranges if each is not None]
    if len(found) < len(lines):
        return None
    fits = sum(least for least, _ in found) <= nbytes <= sum(most for _, most in found)
    return found if fits else None


def _shortest_s(lines: Sequence[LoadLine], nbytes: float, possible_s: float) -> float:
    """The shortest possible time of a round, found by bisection. `possible_s` is a time that is
    known to be possible."""
    low, high = 0.0, possible_s * (1 + _PRECISION / 2)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        fits = _ranges_within(lines, nbytes, middle) is not None
        low, high = (low, middle) if fits else (middle, high)
    return high


def _between(ranges: Sequence[tuple[float, float]], nbytes: float) -> list[float]:
    """Distribute as many of these bytes as the ranges allow. Every host's part lies at the same
    relative position in its range."""
    least, most = sum(low for low, _ in ranges), sum(high for _, high in ranges)
    share = min(1.0, (nbytes - least) / (most - least)) if most > least else 0.0
    return [low + share * (high - low) for low, high in ranges]


def _level(lines: Sequence[LoadLine], nbytes: float) -> float:
    """The time of a round in which the hosts together can hold `nbytes`. The bytes that one host
    can hold are a piecewise linear function of the time: they begin to rise at `fixed_s`, and rise
    more slowly once a link is the limit."""
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
