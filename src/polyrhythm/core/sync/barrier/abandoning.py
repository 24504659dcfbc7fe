"""Points that take long (FSP §3.1): nobody waits for them beyond the interval's end.

*Once the interval is over, nobody who is there waits for others longer than the patience. A worker
whose micro-batch ends later than that after its own interval leaves it out, whether or not somebody
waits, and visits those points again; what it had gathered before counts when it comes. What is begun
first in a round is never left out, so that a worker whose every point takes longer than that still gets
on.*
"""

from polyrhythm.core.durations import parse_duration
from polyrhythm.errors import UsageError

OFF = "off"


def parse_patience(text: str) -> int | None:
    """Nanoseconds; None: all are waited for."""
    if text.strip() == OFF:
        return None
    try:
        return parse_duration(text)
    except ValueError as error:
        raise UsageError(
            f"--abandon {text!r} is not understood: give off or a duration such as 50ms ({error})"
        ) from None


def abandons(late_ns: int, patience_ns: int | None, gathered: float) -> bool:
    """Whether a micro-batch that ended so long after the interval is left out, by a worker that has
    gathered so many points before it."""
    return patience_ns is not None and late_ns > patience_ns and gathered > 0
