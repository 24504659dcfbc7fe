"""FSP's patience with micro-batches that take long (FSP §3.1): `--abandon`.

When the interval is over, the workers at the barrier wait for the others no longer than the
patience. A worker leaves out a micro-batch that ends later than its interval plus the patience, and
visits the points again later. Points that it visited earlier in the round still count. The first
micro-batch of a round is never left out. Otherwise a worker whose micro-batches all take too long
would make no progress.
"""

from polyrhythm.core.values import parse_duration
from polyrhythm.errors import UsageError

OFF = "off"


def parse_patience(text: str) -> int | None:
    """The patience in nanoseconds; None: the barrier waits for all workers."""
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

    `gathered`: the points that the worker had visited in this round before that micro-batch.
    """
    return patience_ns is not None and late_ns > patience_ns and gathered > 0
