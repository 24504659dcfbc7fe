"""Chooses the size of a batch if the policy leaves that to the worker. Under FSP, rounds end by the
clock, and `MicroBatch` chooses the size of micro-batches. `UsedSizes` learns which sizes the user's
training loop accepts."""

import math

_AIM_NS = 8_000_000
_FIRST = 8
"""The number of points in a micro-batch while no micro-batch has been measured. A slow worker would
delay the first rounds with a whole batch."""
_MEMORY = 0.9
"""When a measurement is added, the weight of all earlier ones is multiplied by this factor."""
_START, _START_OF_SHORTEST = 0.25, 0.5
"""The largest share of a micro-batch's time that its start may take. The second, larger number
holds for the shortest micro-batch."""
_VARIED = 0.2
"""Micro-batches are alternately larger and smaller than planned by this share, so that the fit can
separate the cost of the start from the cost of the points."""
_ALIKE = 0.003
_HICCUP = 3.0
"""A measured time counts as at most this many times the expected time. A longer time means that the
host was busy with other work."""


class MicroBatch:
    """Chooses the sizes of micro-batches from measured times.

    *A worker can stop only at the end of a micro-batch. In the FSP paper it stops after any data
    point, but larger micro-batches can use vector instructions. A micro-batch should take a few
    milliseconds. The rest of the interval is divided into equal micro-batches, so that the last one
    ends with the interval.*

    A micro-batch has at most as many points as the user's batch. With `whole` it is as near to this
    size as an equal division of the interval allows, for two reasons. With kind local, every
    micro-batch is a step of the user's optimizer, whose learning rate was chosen for the user's
    batch. With kind gradient, small batches waste a device that computes a whole batch in the same
    time. *A GPU is such a device, and its times vary so much that the fit below cannot find this
    from small batches alone.* With `whole`, a micro-batch whose start takes more than half of its
    time has at least half of the user's batch, even if the interval is over sooner. With
    `--abandon`, which leaves out a late micro-batch, micro-batches of kind gradient stay short.

    The time of a micro-batch is modelled as `start + points * point`, fitted to the measured times.
    Without `start`, the model would fail for a slow worker with small micro-batches: it would take
    the cost of the start for a cost of points, and choose ever smaller micro-batches, down to one
    point. If `start` is large, a micro-batch takes longer than a few milliseconds, so that its
    start is at most a quarter of its time. The first micro-batch takes many times as long as any
    other and is not counted.
    """

    def __init__(
        self, most: int, least: int = 1, *, whole: bool = False, first: int = _FIRST
    ) -> None:
        """`most`: the points of the user's batch. `least`: the fewest points of a micro-batch.
        `whole`: make micro-batches as large as the user's batch. `first`: the points of a
        micro-batch while none has been measured."""
        self.most = most
        self._first = first
        self._least = self._allowed = least
        self._whole = whole
        self._weight = 0.0
        self._points = self._took = 0.0
        self._square = self._product = 0.0
        self._line = (0.0, 0.0)
        """The last result of `_fit`. It is read only after the first measurement."""
        self._larger = False
        self._warm = False

    def at_least(self, points: int) -> None:
        """From now on, plan no micro-batch with fewer points than this. A later call replaces the
        number."""
        self._least = max(self._allowed, points)

    @property
    def usual_ns(self) -> float:
        """The time of a full-length micro-batch, which the end of the interval does not shorten; 0
        if unknown."""
        return self._takes(self._usual()) if self._weight else 0.0

    @property
    def shortest_ns(self) -> int:
        """The time of the shortest allowed micro-batch: its start takes no more than the allowed
        share of its time, and it has at least `least` points. Half of the user's batch is always
        allowed. 0 if the time is unknown."""
        if not self._weight:
            return 0
        return max(1, round(self._takes(max(1.0, self._least, self._fewest()))))

    def takes_ns(self, points: float) -> float:
        """The expected time of a micro-batch of this many points; 0 if unknown."""
        return self._takes(points) if self._weight else 0.0

    def size(self, left_ns: int) -> int:
        """The points of the next micro-batch when `left_ns` of the interval are left."""
        parts, points = self._divide(left_ns)
        if parts > 1:
            self._larger = not self._larger
            points *= 1 + _VARIED if self._larger else 1 - _VARIED
        return self._bounded(points)

    def divide(self, left_ns: int) -> tuple[int, int]:
        """How many equal micro-batches fit into the rest of the interval, and the number of points
        of each."""
        parts, points = self._divide(left_ns)
        return parts, self._bounded(points)

    def _divide(self, left_ns: int) -> tuple[int, float]:
        if not self._weight:
            return 1, self._first
        whole_ns = self._takes(self.most)
        parts = max(1, round(left_ns / self.usual_ns), math.ceil(left_ns / whole_ns - _VARIED))
        start, point = self._line
        return parts, (left_ns / parts - start) / point

    def _bounded(self, points: float) -> int:
        if self._whole:
            points = max(points, self._fewest())
        return max(self._least, min(self.most, round(points)))

    def on_measured(self, points: float, took_ns: int, times: int = 1) -> None:
        """Add a measurement, or `times` equal ones in a row."""
        if points > 0 and times > 0 and not self._warm:
            self._warm = True
            times -= 1
        if points <= 0 or times <= 0:
            return
        took = float(max(1, took_ns))
        if self._weight:
            took = min(took, _HICCUP * self._takes(points))
        kept = _MEMORY**times
        new = 1.0 if times == 1 else (1 - kept) / (1 - _MEMORY)
        self._weight = kept * self._weight + new
        share = new / self._weight
        self._points += (points - self._points) * share
        self._took += (took - self._took) * share
        self._square += (points * points - self._square) * share
        self._product += (points * took - self._product) * share
        self._line = self._fit()

    def _usual(self) -> int:
        if self._whole:
            return self.most
        start, point = self._line
        aimed = (_AIM_NS - start) / point
        return self._bounded(max(aimed, self._efficient()))

    def _fewest(self) -> float:
        """The points of the shortest micro-batch; 0 while no micro-batch has been measured."""
        return min(self.most / 2, self._efficient(_START_OF_SHORTEST)) if self._weight else 0.0

    def _efficient(self, share: float = _START) -> float:
        """The number of points of a micro-batch whose start takes this share of its time."""
        start, point = self._line
        return start * (1 - share) / (share * point)

    def _takes(self, points: float) -> float:
        start, point = self._line
        return start + points * point

    def _fit(self) -> tuple[float, float]:
        """`start` and `point`, by least squares over the recent measurements; neither is below
        zero. If all measurements have nearly the same size, the start cannot be found, and the time
        counts as proportional to the points."""
        mean = self._took / self._points
        alike = _ALIKE * self._points**2
        spread = self._square - self._points**2 + alike
        slope = (self._product - self._points * self._took + alike * mean) / spread
        point = max(1e-3 * mean, min(mean, slope))
        return self._took - point * self._points, point


MANY = 0.2
"""If a loop drops more than this share of its points, a warning is given."""
_ENOUGH = 20
"""The share of dropped points is judged only after this many batches."""
_NONE_USED = 3
"""If a loop has dropped all of its batches, the warning comes after this many batches."""


class UsedSizes:
    """Learns which batch sizes a training loop uses.

    A loop may drop batches that are too small for it: `if len(batch) < 32: continue`. If the policy
    chooses the batch size, such a loop would get small batches again and again, and make few steps.
    *After a dropped batch, the next one has the full size. If every used batch was larger than
    every dropped batch, no planned batch is smaller than the smallest used one.* A loop that drops
    batches because of their contents also uses small batches, so the second rule soon stops
    applying to it.
    """

    def __init__(self) -> None:
        self.points = 0
        self.dropped_points = 0
        self._batches = 0
        self._smallest_used = 0
        """The points of the smallest batch that was used; 0 if none was used."""
        self._largest_dropped = 0
        self._full = False
        """Whether the last batch was dropped, so that the next one has the full size."""
        self._warned = False

    def on_used(self, points: int) -> None:
        """Note a batch of this many points with which the loop has computed a gradient."""
        self._count(points)
        self._smallest_used = min(self._smallest_used or points, points)
        self._full = False

    def on_dropped(self, points: int) -> None:
        """Note that the loop has asked for the next batch without computing a gradient with this
        one."""
        self._count(points)
        self.dropped_points += points
        self._largest_dropped = max(self._largest_dropped, points)
        self._full = True

    def _count(self, points: int) -> None:
        self._batches += 1
        self.points += points

    def least(self, batch: int) -> int:
        """The fewest points that the next batch should have, if the loop asks for batches of this
        size."""
        if self._full:
            return batch
        return max(1, min(batch, self.least_used))

    @property
    def least_used(self) -> int:
        """The size of the smallest batch that the loop has used, if the loop drops all smaller
        batches; otherwise 0."""
        return self._smallest_used if self._smallest_used > self._largest_dropped > 0 else 0

    def warns(self) -> bool:
        """Whether to warn now that the loop drops many points. A loop is warned only once."""
        enough = _ENOUGH if self._smallest_used else _NONE_USED
        many = self._batches >= enough and self.dropped_points > MANY * self.points
        if self._warned or not many:
            return False
        self._warned = True
        return True
