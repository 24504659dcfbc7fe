"""Measures the seconds per point of every worker, from fold to fold.

*The whole time of a round counts, including the time that the worker waits, because a worker's
passes depend on the number of points that it visits per round. Two kinds of rounds are left out:
rounds in which the worker has no points, and its first round, because its process is still warming
up.*

*A machine is slower than usual for some seconds, then faster, so consecutive rounds are not
independent measurements. Therefore the mean covers many seconds, and its standard error assumes
only a few independent measurements, each with an error of 10% or more. Only a large change of speed
counts at once.*

*The first rounds of a job are not typical. So after 8, 16 and 32 rounds the first half of these
rounds is forgotten. The variation of the speed is measured only from the 32nd round on.*
"""

import math
from collections.abc import Iterable

import msgspec

from polyrhythm.core.lead.data.balance.decision import Key

_RECENT = 16
"""The recent mean of a worker's time per point covers about this many rounds."""
_LONG_S, _LONG_ROUNDS = 20.0, 64
"""The long mean covers about `_LONG_S` seconds, or `_LONG_ROUNDS` rounds if these take longer."""
_HALVES = (4, 8, 16, 32)
"""After each of these numbers of rounds, the rounds up to the previous number in the list are
forgotten."""
WANDER, WANDER_S = 0.1, 6.0
"""The share by which the speed of a machine usually differs from its mean, and the number of
seconds for which such a difference lasts."""
_CHANGED, _CHANGED_S = 2.0, 2.0
"""The speed of a worker has changed if its time per point is more than `_CHANGED` times the usual
time, or less than the usual time divided by `_CHANGED`, for `_CHANGED_S` seconds."""
ENOUGH = 4
"""The speed of a worker counts as known after this many measured rounds."""


class Speed(msgspec.Struct):
    """The seconds per point of a worker and their standard error. `walk_s`: by how many seconds of
    work the worker may be ahead or behind merely because its speed varies."""

    seconds: float
    error: float
    walk_s: float = 0.0


class _Rounds(msgspec.Struct):
    """The measurements of consecutive rounds of a worker. All sums are positive, because nothing is
    ever subtracted from a sum."""

    count: int = 0
    mean: float = 0.0
    variance: float = 0.0
    """The variance of the seconds per point over the recent rounds."""
    long_s: float = 0.0
    long_points: float = 0.0
    """The sums of time and of points from which the long mean is computed; older rounds count
    less."""

    def add(self, took_s: float, points: int) -> float:
        """Add a round that took `took_s` seconds and had this many points. Returns the factor by
        which this reduces the weight of earlier rounds in the long mean."""
        self.count += 1
        share = 1 / min(self.count, _RECENT)
        apart = took_s / points - self.mean
        self.mean += share * apart
        self.variance = (1 - share) * (self.variance + share * apart * apart)
        kept = math.exp(-took_s / max(_LONG_S, _LONG_ROUNDS * took_s))
        self.long_s = kept * self.long_s + took_s
        self.long_points = kept * self.long_points + points
        return kept

    @property
    def seconds(self) -> float:
        """The seconds per point."""
        return self.long_s / self.long_points

    @property
    def noise(self) -> float:
        """The standard error of the recent mean."""
        return math.sqrt(self.variance / (min(self.count, _RECENT) - 1))


class _Measured(msgspec.Struct):
    since_ns: int
    points: int = 0
    warm: bool = False
    """Whether the first round is over, in which the process was warming up."""
    rounds: int = 0
    """The number of measured rounds, including forgotten ones."""
    counted: _Rounds = msgspec.field(default_factory=_Rounds)
    """The rounds from which the speed is computed. Forgotten rounds are not among them."""
    late: _Rounds = msgspec.field(default_factory=_Rounds)
    """The rounds since the last time that rounds were forgotten. The next time, only these are
    kept."""
    wander: float = 0.0
    """The mean of the squared difference between the recent mean and the long mean, as a share of
    the long mean."""
    walked_s: float = 0.0
    """The seconds of rounds since points last moved."""
    side: int = 0
    away_s: float = 0.0
    away: _Rounds = msgspec.field(default_factory=_Rounds)
    """The time and the measurements of the last rounds, if all of them were much slower (`side` 1)
    or all were much faster (-1) than the mean."""

    def add(self, took_s: float, points: int) -> None:
        """Add a round that took `took_s` seconds and had this many points."""
        self.walked_s += took_s
        if self.rounds >= ENOUGH and self._changed(took_s, points):
            return
        self.rounds += 1
        counted = self.counted
        kept = counted.add(took_s, points)
        if self.rounds <= _HALVES[-1]:
            self.late.add(took_s, points)
            if self.rounds in _HALVES:
                self.counted, self.late = self.late, _Rounds()
        else:
            off = counted.mean / counted.seconds - 1
            self.wander = kept * self.wander + (1 - kept) * off * off

    def _changed(self, took_s: float, points: int) -> bool:
        """Whether the speed of the worker has changed: the last few rounds were all much slower
        than the mean, or all much faster. If so, forget all earlier rounds."""
        times = took_s / points / self.counted.seconds
        side = (times > _CHANGED) - (times < 1 / _CHANGED)
        if self.away.count and side != self.side:
            self.away_s, self.away = 0.0, _Rounds()
        self.side = side
        if side:
            self.away_s += took_s
            self.away.add(took_s, points)
        if self.away.count < ENOUGH or self.away_s < _CHANGED_S:
            return False
        self.counted, self.away_s, self.away = self.away, 0.0, _Rounds()
        self.rounds, self.side = _HALVES[-1], 0
        return True

    @property
    def speed(self) -> Speed:
        counted = self.counted
        wander = max(WANDER, math.sqrt(self.wander))
        error = wander * counted.seconds / math.sqrt(1 + counted.long_s / WANDER_S)
        walk_s = wander * math.sqrt(WANDER_S * self.walked_s)
        return Speed(counted.seconds, math.hypot(counted.noise, error), walk_s)


class Speeds(msgspec.Struct):
    _measured: dict[Key, _Measured] = {}
    round_s: float = 0.0
    """The duration of a round."""
    _folded_ns: int | None = None

    def on_visited(self, key: Key, points: int) -> None:
        """Count this many points of a contribution of this member."""
        if (measured := self._measured.get(key)) is not None:
            measured.points += points

    def on_folded(self, members: Iterable[tuple[Key, bool]], now_ns: int) -> None:
        """Measure the round that has just been folded. `members`: every member, and whether it had
        no points to visit."""
        present = dict(members)
        for key in self._measured.keys() - present.keys():
            del self._measured[key]
        for key, resting in present.items():
            measured = self._measured.get(key)
            if measured is None:
                self._measured[key] = _Measured(now_ns)
            elif resting:
                measured.since_ns, measured.points = now_ns, 0
            elif measured.points and now_ns > measured.since_ns:
                if measured.warm:
                    measured.add((now_ns - measured.since_ns) / 1e9, measured.points)
                measured.warm = True
                measured.since_ns, measured.points = now_ns, 0
        if self._folded_ns is not None:
            took_s = (now_ns - self._folded_ns) / 1e9
            self.round_s += (took_s - self.round_s) / (_RECENT if self.round_s else 1)
        self._folded_ns = now_ns

    def on_moved(self) -> None:
        """Note that points have begun to move so that all passes become equal."""
        for measured in self._measured.values():
            measured.walked_s = 0.0

    def of(self, key: Key) -> Speed | None:
        """The speed of this member; None if it is not known yet."""
        measured = self._measured.get(key)
        if measured is None or measured.rounds < ENOUGH:
            return None
        return measured.speed
