"""The seconds per point of every worker, measured from fold to fold.

*The time of a round counts in full, with the waiting in it, because it is the number of points per
round that decides about passes. The rounds of a worker without points are left out. The first
round of a worker is left out too, because its process is still warming up.*
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from polyrhythm.core.lead.balance.pairs import Key

_RECENT = 16
"""A mean is over about this many rounds."""
ENOUGH = 4
"""A speed is known after this many rounds."""


@dataclass(slots=True)
class _Measured:
    since_ns: int
    points: int = 0
    rounds: int = 0
    """The number of measured rounds; 0 while the process is warming up."""
    warm: bool = False
    mean: float = 0.0
    variance: float = 0.0

    def add(self, seconds: float) -> None:
        self.rounds += 1
        share = 1 / min(self.rounds, _RECENT)
        apart = seconds - self.mean
        self.mean += share * apart
        self.variance = (1 - share) * (self.variance + share * apart * apart)

    @property
    def error(self) -> float:
        return math.sqrt(self.variance / min(self.rounds, _RECENT))


class Speeds:
    def __init__(self) -> None:
        self._measured: dict[Key, _Measured] = {}
        self.round_s = 0.0
        """The time of a round."""
        self._folded_ns: int | None = None

    def visited(self, key: Key, points: int) -> None:
        """A contribution of this member counts, with this many points."""
        if (measured := self._measured.get(key)) is not None:
            measured.points += points

    def folded(self, members: Iterable[tuple[Key, bool]], now_ns: int) -> None:
        """A round is folded. `members`: every member, and whether it had no points to visit."""
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
                    measured.add((now_ns - measured.since_ns) / 1e9 / measured.points)
                measured.warm = True
                measured.since_ns, measured.points = now_ns, 0
        if self._folded_ns is not None:
            took_s = (now_ns - self._folded_ns) / 1e9
            self.round_s += (took_s - self.round_s) / (_RECENT if self.round_s else 1)
        self._folded_ns = now_ns

    def of(self, key: Key) -> tuple[float, float] | None:
        """The seconds per point of this member and their standard error; None if they are not known
        yet."""
        measured = self._measured.get(key)
        if measured is None or measured.rounds < ENOUGH or measured.mean <= 0:
            return None
        return measured.mean, measured.error
