"""Which points of KMeans cannot change their cluster, by the triangle inequality (Hamerly 2010).

A point is nearer to its own centre than to every other one, by some margin. If its own centre moves by
a, and no other centre by more than b, the margin shrinks by at most a + b. *The drift of a cluster is
the sum of these a + b over all moves of the centres. A point keeps its cluster until the drift
exceeds the drift at its last visit plus the margin.*

Distances are computed with rounding errors. The bounds contain these, so that a point is left out only
if its visit would not move it: the result has the same bits as without bounds.
"""

import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from polyrhythm.learn.pointwise.layout import Array

_lock = threading.Lock()
"""For all objects: a lock of an object could not be pickled, and it is held for microseconds."""
_ROUNDING = 2.0**-20
"""A bound is kept as float32, and must not grow by that. So it is made smaller by this part of it."""
_EPSILON = float(np.finfo(np.float32).eps)
"""Squared norms are kept as float32, whatever the type of the points."""
_FAR = 1e15
"""Bounds of points further from the origin would leave the range of float32."""


@dataclass(frozen=True, slots=True)
class Drifted:
    """The drift at some centres."""

    now: npt.NDArray[np.float64]
    """The drift of each cluster."""
    limit: npt.NDArray[np.float32]
    """The same, rounded up."""
    radius: float
    """No centre is further from the origin, until a larger radius invalidates all bounds."""
    features: int

    def reach(self, square: npt.NDArray[Any]) -> float:
        """No point is further from any centre. `square`: |x|^2 of the points."""
        return float(np.sqrt(square.max(initial=0.0))) + self.radius

    def bound(
        self,
        best: npt.NDArray[Any],
        second: npt.NDArray[Any],
        square: npt.NDArray[Any],
        label: npt.NDArray[np.int32],
        reach: float,
    ) -> npt.NDArray[np.floating[Any]]:
        """The drifts up to which points keep their clusters. `best` and `second`: |c|^2 - 2 x.c of the
        nearest and the second nearest centre; both are overwritten. `square`: |x|^2. A bound that is
        NaN holds for no drift."""
        if not reach < _FAR:
            return np.full(len(best), -np.inf, np.float32)
        error = (self.features + 8) * _EPSILON * reach * reach
        with np.errstate(invalid="ignore"):  # the root of a distance that is smaller than its error
            best += square
            best += error
            near = np.sqrt(best, out=best)
            second += square
            second -= error
            far = np.sqrt(second, out=second)
        # Squared distances that differ by more than two errors are compared rightly. While the
        # margin lasts, far + near is at least 2 near, so a margin of error / near is enough. And
        # (far - near)^2 <= far^2 - near^2, so a margin of the root of two errors is enough.
        least, lowest = float(np.sqrt(2.0 * error)), float(near.min())
        if lowest > 0.0:
            least = min(least, error / lowest)
        least += _ROUNDING * (2.0 * reach + float(self.limit.max()))
        found: npt.NDArray[np.floating[Any]] = np.subtract(far, near, out=far)
        found += np.take((self.now - least).astype(np.float32), label)
        return found


class Drift:
    """Follows the centres with which points are visited."""

    def __init__(self) -> None:
        self._centers: Array | None = None
        self._drifted: Drifted | None = None

    def to(self, centers: Array) -> Drifted:
        """The drift at these centres. The centres may come in any order: the way of the centres
        through all calls is never shorter than the straight one."""
        with _lock:
            if self._drifted is None or self._centers is None:
                now, radius = np.zeros(len(centers)), 0.0
            else:
                now, radius = self._drifted.now, self._drifted.radius
                if np.array_equal(centers, self._centers):
                    return self._drifted
                now = now + _move(self._centers, centers)
            largest = float(np.sqrt((centers * centers).sum(1).max()))
            if largest > radius:
                # margins were at most the distance of two centres
                now, radius = now + 2.0 * radius, 2.0 * largest
            limit = np.nextafter(now.astype(np.float32), np.float32(np.inf))
            self._drifted = Drifted(now, limit, radius, centers.shape[1])
            self._centers = centers.copy()
            return self._drifted


def _move(old: Array, new: Array) -> npt.NDArray[np.float64]:
    """For each cluster how far its centre has moved, plus the furthest move of another centre."""
    apart: npt.NDArray[np.float64] = np.sqrt(((new - old) ** 2).sum(1))
    if len(apart) == 1:
        return apart
    order = np.argsort(apart)
    others = np.full(len(apart), apart[order[-1]])
    others[order[-1]] = apart[order[-2]]
    found: npt.NDArray[np.float64] = (apart + others) * (1.0 + 1e-9)
    return found
