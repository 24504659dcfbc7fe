"""How many points a worker takes at a time where rounds end by the clock.

*A worker stops at the end of a micro-batch, whose size adapts so that it takes a few milliseconds:
FSP's "one data point" at vector speed. What is left of the interval is divided into micro-batches of
equal length, so that the last one ends with it.* A micro-batch is never more than the user's batch.
With kind local every micro-batch is a step of the user's optimizer, whose rate was chosen for the
user's batch. There micro-batches are as large as that (`whole`), or what is left of the interval is
divided into equal parts that are as near to it as possible.

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
_START, _START_OF_SHORTEST = 0.25, 0.5
"""Of a micro-batch's time: what starting it may cost, usually and at most."""
_VARIED = 0.2
"""By so much one is larger and the next smaller than meant, so that their start can be told apart from
their points."""
_ALIKE = 0.003
_HICCUP = 3.0
"""Something that took so many times as long as expected says more about the machine's other duties."""


class MicroBatch:
    def __init__(self, most: int, least: int = 1, *, whole: bool = False) -> None:
        """`most`: the points of the user's batch. `least`: no micro-batch is smaller. `whole`: aim at
        whole batches."""
        self.most = most
        self._least = least
        self._whole = whole
        self._weight = 0.0
        self._points = self._took = 0.0
        self._square = self._product = 0.0
        self._larger = False
        self._warm = False

    @property
    def usual_ns(self) -> float:
        """What a micro-batch takes where nothing ends soon; 0: nobody knows."""
        return self._takes(self._usual()) if self._weight else 0.0

    @property
    def shortest_ns(self) -> int:
        """What the shortest micro-batch takes that is worth starting; half of the user's batch always
        is. 0: unknown."""
        if not self._weight:
            return 0
        points = min(self.most / 2, self._efficient(_START_OF_SHORTEST))
        return max(1, round(self._takes(max(1.0, points))))

    def size(self, left_ns: int) -> int:
        """How many points come next, when so much of the interval is left."""
        if not self._weight:
            return self.most if self._whole else max(self._least, min(self.most, _FIRST))
        whole_ns = self._takes(self.most)
        many = max(1, round(left_ns / self.usual_ns), math.ceil(left_ns / whole_ns - _VARIED))
        start, point = self._fit()
        points = (left_ns / many - start) / point
        if many > 1:
            self._larger = not self._larger
            points *= 1 + _VARIED if self._larger else 1 - _VARIED
        return max(self._least, min(self.most, round(points)))

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
        if self._whole:
            return self.most
        start, point = self._fit()
        aimed = (_AIM_NS - start) / point
        return max(self._least, min(self.most, round(max(aimed, self._efficient()))))

    def _efficient(self, share: float = _START) -> float:
        """The points with which starting costs this share of the time."""
        start, point = self._fit()
        return start * (1 - share) / (share * point)

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
