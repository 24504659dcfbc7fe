"""Patience of FSP with micro-batches that take long (FSP §3.1): `--abandon`.

Once the interval is over, workers at the barrier wait for the others no longer than the patience. A
worker whose micro-batch ends later than that after its own interval leaves the micro-batch out and
visits its points again; what it gathered before still counts. The first micro-batch of a round is never
left out, so that a worker whose micro-batches all take longer than that makes progress.
"""

from polyrhythm.core.durations import parse_duration
from polyrhythm.errors import UsageError

OFF = "off"


def parse_patience(text: str) -> int | None:
    """The patience in nanoseconds; None: wait for all workers."""
    if text.strip() == OFF:
        return None
    try:
        return parse_duration(text)
    except ValueError as error:
        raise UsageError(
            f"--abandon {text!r} is not understood: give off or a duration such as 50ms ({error})"
        ) from None


def abandons(late_ns: int, patience_ns: int | None, gathered: float) -> bool:
    """Whether a worker leaves out a micro-batch that ended `late_ns` after the interval.

    `gathered`: the points that the worker has gathered in this round before.
    """
    return patience_ns is not None and late_ns > patience_ns and gathered > 0
