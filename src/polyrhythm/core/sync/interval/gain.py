"""The gain of an interval (FSP §3.3, Eq. 7), and the interval with the highest gain.

With an interval of eta seconds, one second of work lowers the objective by `g(eta) = a eta + b`.
With short intervals workers compute on fresher parameters, so `a` is usually negative. Each
interval also costs a barrier of phi seconds. So one second of elapsed time lowers the objective by
`gain(eta) = eta / (eta + phi) (a eta + b)`.
"""

import math

import msgspec


class Line(msgspec.Struct, frozen=True):
    """The line g(eta) = a eta + b: the gain of one second of work with an interval of eta
    seconds."""

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
        """The interval from `low` to `high` with the highest gain.

        The derivative of the gain has the sign of `a eta^2 + 2 a phi eta + b phi`. For a < 0 < b
        this sign changes once, from plus to minus, so there is one peak. Otherwise one of the two
        ends is best.
        """
        peak = best_interval(self.a, self.b, phi)
        if peak is not None and peak > 0:
            return max(low, min(high, peak))
        return max(high, low, key=lambda eta: self.gain(eta, phi))


def best_interval(a: float, b: float, phi: float) -> float | None:
    """The interval with the highest gain, in seconds.

    None if a longer interval is always better (a >= 0). 0 if a shorter interval is always better:
    every interval has a negative gain (b <= 0), or barriers cost nothing.
    """
    if a >= 0:
        return None
    if b <= 0 or phi <= 0:
        return 0.0
    square = -b * phi / a
    return None if math.isinf(square) else square / (phi + math.sqrt(phi * phi + square))
