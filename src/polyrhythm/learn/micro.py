"""How many points a worker takes at a time where rounds end by the clock.

*A worker stops at the end of a micro-batch, whose size adapts so that it takes a few milliseconds:
FSP's "one data point" at vector speed. What is left of the interval is divided into micro-batches of
equal length, so that the last one ends with it.* A micro-batch is never more than the user's batch.

A micro-batch takes `start + points * point`. Were it taken to be in proportion to its points, the
start alone would make a slow worker's small micro-batches look like expensive points, and smaller
ones would be chosen, down to one point. The very first takes many times as long as any other, and is
not counted. So that starting costs a quarter of the time at most, a
micro-batch may take longer than was aimed at.
"""

import math

_AIM_NS = 8_000_000
_FIRST = 8
_MEMORY = 0.9
_START = 0.25
"""Of a micro-batch's time: what starting it may cost."""
_VARIED = 0.2
"""By so much one is larger and the next smaller than meant, so that their start can be told apart from
their points."""
_ALIKE = 0.003
_HICCUP = 3.0
"""Something that took so many times as long as expected says more about the machine's other duties."""


class MicroBatch:
    def __init__(self, most: int, least: int = 1) -> None:
        self._most = most
        self._least = least
        self._weight = 0.0
        self._points = self._took = 0.0
        self._square = self._product = 0.0
        self._larger = False
        self._warm = False

    @property
    def usual_ns(self) -> float:
        """What a micro-batch takes where nothing ends soon; 0: nobody knows."""
        return self._takes(self._usual()) if self._weight else 0.0

    def size(self, left_ns: int) -> int:
        """How many points come next, when so much of the interval is left."""
        if not self._weight:
            return max(self._least, min(self._most, _FIRST))
        whole_ns = self._takes(self._most)
        many = max(1, round(left_ns / self.usual_ns), math.ceil(left_ns / whole_ns - _VARIED))
        start, point = self._fit()
        points = (left_ns / many - start) / point
        if many > 1:
            self._larger = not self._larger
            points *= 1 + _VARIED if self._larger else 1 - _VARIED
        return max(self._least, min(self._most, round(points)))

    def measured(self, points: float, took_ns: int) -> None:
        if points <= 0:
            return
        if not self._warm:
            self._warm = True
            return
        took = float(max(1, took_ns))
        if self._weight:
            took = min(took, _HICCUP * self._takes(points))
        self._weight = _MEMORY * self._weight + 1
        self._points += (points - self._points) / self._weight
        self._took += (took - self._took) / self._weight
        self._square += (points * points - self._square) / self._weight
        self._product += (points * took - self._product) / self._weight

    def _usual(self) -> int:
        start, point = self._fit()
        aimed = (_AIM_NS - start) / point
        efficient = start * (1 - _START) / (_START * point)
        return max(self._least, min(self._most, round(max(aimed, efficient))))

    def _takes(self, points: float) -> float:
        start, point = self._fit()
        return start + points * point

    def _fit(self) -> tuple[float, float]:
        """Least squares over what was measured lately; neither part below zero. As far as sizes
        were alike, they say nothing of the start, and time is in proportion to points."""
        mean = self._took / self._points
        alike = _ALIKE * self._points**2
        spread = self._square - self._points**2 + alike
        slope = (self._product - self._points * self._took + alike * mean) / spread
        point = max(1e-3 * mean, min(mean, slope))
        return self._took - point * self._points, point
