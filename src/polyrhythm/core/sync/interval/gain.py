"""What an interval is worth (FSP §3.3, Eq. 7), and the one that is worth most.

Per second of work training gains `g(eta) = a eta + b` of the objective: fresher parameters after
short intervals make it better, so a is usually negative. Each interval costs a barrier, phi. So a
second gains `gain(eta) = eta / (eta + phi) (a eta + b)`.
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Line:
    """g(eta) = a eta + b: what a second of work gains, by the length of the interval in seconds."""

    a: float
    b: float

    @classmethod
    def through(cls, first: tuple[float, float], second: tuple[float, float]) -> "Line":
        (x1, y1), (x2, y2) = first, second
        a = (y2 - y1) / (x2 - x1)
        return cls(a, y1 - a * x1)

    def gain(self, eta: float, phi: float) -> float:
        return eta / (eta + phi) * (self.a * eta + self.b)

    def best_within(self, low: float, high: float, phi: float) -> float:
        """The interval of the highest gain from low to high.

        The derivative's sign is that of `a eta^2 + 2 a phi eta + b phi`. For a < 0 < b it changes
        once from plus to minus: there is a peak. Otherwise it never does, so no interior point
        beats both ends.
        """
        peak = best_interval(self.a, self.b, phi)
        if peak is not None and peak > 0:
            return max(low, min(high, peak))
        return max(high, low, key=lambda eta: self.gain(eta, phi))


def best_interval(a: float, b: float, phi: float) -> float | None:
    """Where the gain peaks, in seconds: None for a >= 0, the longer the better; 0 where the shorter
    the better, which is b <= 0 (nothing is gained anyway: least harm) or a barrier that is free."""
    if a >= 0:
        return None
    if b <= 0 or phi <= 0:
        return 0.0
    square = -b * phi / a
    return None if math.isinf(square) else square / (phi + math.sqrt(phi * phi + square))
