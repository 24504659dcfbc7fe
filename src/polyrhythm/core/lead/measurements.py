"""The objective and the probe of a contribution, before the lead calculates with them.

*They are finite and so are their squares, or they are infinite.* A run that diverges in double
precision may report 1e200; its square overflows, and Python raises where it should say infinity. The
decoder does not refuse these two, because an objective that is not finite is news that the job's
learning is judged by (`learning.py`).
"""

import math

import msgspec

from polyrhythm.wire.messages import MOST_NUMBER, Trailer


def in_range(trailer: Trailer) -> Trailer:
    """The trailer, with infinity in place of what is too large to calculate with."""
    if not (_too_large(trailer.objective) or _too_large(trailer.probe)):
        return trailer
    return msgspec.structs.replace(
        trailer, objective=_bounded(trailer.objective), probe=_bounded(trailer.probe)
    )


def _too_large(value: float | None) -> bool:
    return value is not None and not abs(value) <= MOST_NUMBER  # NaN too


def _bounded(value: float | None) -> float | None:
    if value is None or math.isnan(value) or not _too_large(value):
        return value
    return math.copysign(math.inf, value)
