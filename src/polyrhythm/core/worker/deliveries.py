"""The rules for a worker that sends or receives the points of chunks.

They say how many points a part has, how many bytes may wait in a link, how long sending may delay
training, whether a chunk fits into memory, and whether points may leave this worker at all.
"""

from polyrhythm.wire.messages.reasons import Reason

PART_NBYTES = 256 * 1024
"""A part of a chunk has about this size, so that reading it delays the training loop only briefly."""
MOST_WAITING_NBYTES = 4 * 1024 * 1024
"""The most bytes that wait to be sent to one worker."""
_FIRST_POINTS = 16
_MOST_POINTS = 4096
_SHARE = 0.1
_FREE_SHARE = 0.5


def refusal(*, private: bool, shares: bool) -> Reason | None:
    """Why this worker sends no points to others, even if the lead orders it; None if it may send
    them. `private`: every worker has its own data set. `shares`: this worker was started with
    `--share-data`."""
    return Reason("move-not-shared") if private and not shares else None


def part_points(left: int, point_nbytes: float | None) -> int:
    """The number of points of the next part. `left`: how many points of the chunk are not sent yet.
    `point_nbytes`: the size of a point, or None if it is not known yet."""
    if point_nbytes is None:
        return min(left, _FIRST_POINTS)
    return min(left, _MOST_POINTS, max(1, int(PART_NBYTES / max(1.0, point_nbytes))))


def may_send_more(spent_ns: int, since_ns: int) -> bool:
    """Whether the worker may read another part now, between two batches. `spent_ns`: how long it
    has already read parts between these two batches. `since_ns`: the time since it last read parts.
    One part may always be read."""
    return spent_ns == 0 or spent_ns < _SHARE * since_ns


def fits_into_memory(nbytes: int, available_nbytes: int | None) -> bool:
    """Whether a chunk of this size may be received. Half of the free memory stays free."""
    return available_nbytes is None or nbytes <= _FREE_SHARE * available_nbytes
