"""Why the data set that a member announces is refused."""

from polyrhythm.core.batches import too_few
from polyrhythm.core.machine import Reason


def too_small(name: str, points: int, least: int) -> Reason | None:
    """Why a data set with this many points is too small for batches of `least` points; None if it is
    large enough."""
    if points < 1:
        return Reason("data-empty", {"name": name})
    if too_few(points, least):
        return Reason("data-too-small", {"name": name, "points": points, "least": least})
    return None


def unexpected(code: str, name: str, points: int, expected: int) -> Reason:
    """The data set has another number of points than expected. `code`: what it was compared with."""
    return Reason(code, {"name": name, "points": points, "expected": expected})
