"""Which points of KMeans cannot change their cluster, by the triangle inequality (Hamerly 2010).

A point is nearer to its own centre than to every other one, by some margin. If its own centre moves by
a, and no other centre by more than b, the margin shrinks by at most a + b. *The drift of a cluster is
the sum of these a + b over all moves of the centres. A point keeps its cluster until the drift
exceeds the drift at its last visit plus the margin.*

Distances are computed with rounding errors. The bounds allow for these errors, so a point is left
out only if a visit would not change its cluster. The result has the same bits as without bounds.
"""

import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from polyrhythm.learn.pointwise.layout import Array

_lock = threading.Lock()
"""One lock for all objects. An object with its own lock could not be pickled, and the lock is
held only for microseconds."""
_ROUNDING = 2.0**-20
"""A bound is first reduced by this fraction, because rounding it to float32 must not make it
larger."""
_EPSILON = float(np.finfo(np.float32).eps)
"""Squared norms are kept as float32, whatever the type of the points is."""
_FAR = 1e15
"""The bounds of points that are further from the origin than this would exceed the range of
float32."""


@dataclass(frozen=True, slots=True)
class Drifted:
    """The drift of every cluster for certain positions of the centres."""

    now: npt.NDArray[np.float64]
    """The drift of each cluster."""
    limit: npt.NDArray[np.float32]
    """The drift of each cluster, rounded up."""
    radius: float
    """The largest allowed distance of a centre from the origin. When a centre exceeds this radius,
    the radius grows, and all bounds become invalid."""
    features: int

    def reach(self, square: npt.NDArray[Any]) -> float:
        """An upper limit of the distances between points and centres. `square`: |x|^2 of the
        points."""
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
        with np.errstate(invalid="ignore"):  # rounding errors may make a squared distance negative
            best += square
            best += error
            near = np.sqrt(best, out=best)
            second += square
            second -= error
            far = np.sqrt(second, out=second)
        # Two squared distances are compared correctly if they differ by more than 2 * error, so
        # far^2 - near^2 = (far - near) * (far + near) must exceed 2 * error. Because far + near >=
        # 2 * near, it is enough that far - near exceeds error / near. Because (far - near)^2 <=
        # far^2 - near^2, it is also enough that far - near exceeds sqrt(2 * error).
        least, lowest = float(np.sqrt(2.0 * error)), float(near.min())
        if lowest > 0.0:
            least = min(least, error / lowest)
        least += _ROUNDING * (2.0 * reach + float(self.limit.max()))
        found: npt.NDArray[np.floating[Any]] = np.subtract(far, near, out=far)
        found += np.take((self.now - least).astype(np.float32), label)
        return found


class Drift:
    """Adds up the moves of the centres between visits of points."""

    def __init__(self) -> None:
        self._centers: Array | None = None
        self._drifted: Drifted | None = None

    def to(self, centers: Array) -> Drifted:
        """The drift at these centres. The centres may come in any order: the sum of all moves of a
        centre is never less than the distance between its first and its last position."""
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
                # No margin exceeds the distance between two centres, which is at most twice the
                # radius. So adding twice the radius to the drift makes all bounds invalid.
                now, radius = now + 2.0 * radius, 2.0 * largest
            limit = np.nextafter(now.astype(np.float32), np.float32(np.inf))
            self._drifted = Drifted(now, limit, radius, centers.shape[1])
            self._centers = centers.copy()
            return self._drifted


def _move(old: Array, new: Array) -> npt.NDArray[np.float64]:
    """For each cluster, the distance that its centre has moved, plus the largest distance that
    another centre has moved."""
    apart: npt.NDArray[np.float64] = np.sqrt(((new - old) ** 2).sum(1))
    if len(apart) == 1:
        return apart
    order = np.argsort(apart)
    others = np.full(len(apart), apart[order[-1]])
    others[order[-1]] = apart[order[-2]]
    found: npt.NDArray[np.float64] = (apart + others) * (1.0 + 1e-9)
    return found
