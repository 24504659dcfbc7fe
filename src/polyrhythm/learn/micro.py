"""How many points a worker takes at a time where rounds end by the clock.

*A worker stops at the end of a micro-batch, whose size adapts so that it takes a few milliseconds:
FSP's "one data point" at vector speed.* It is never more than the user's own batch.
"""

_AIM_NS = 4_000_000
_MEMORY = 0.7
_FIRST = 8


class MicroBatch:
    def __init__(self, most: int) -> None:
        self._most = most
        self._point_ns: float | None = None

    @property
    def size(self) -> int:
        if self._point_ns is None:
            return min(self._most, _FIRST)
        return max(1, min(self._most, round(_AIM_NS / self._point_ns)))

    def measured(self, points: float, took_ns: int) -> None:
        if points <= 0:
            return
        point_ns = took_ns / points
        before = self._point_ns
        self._point_ns = point_ns if before is None else _MEMORY * before + (1 - _MEMORY) * point_ns
