"""The state that the user's code adds to a checkpoint with `worker.keep`: its greatest size, and the
parts in which it is sent."""

from collections.abc import Iterator

from polyrhythm.core.model import nbytes_of
from polyrhythm.wire.messages import ModelSpec

PART_NBYTES = 4 * 1024 * 1024
"""A state is sent in parts of this size, so that heartbeats are sent between them and no frame is
large."""
_ALWAYS_NBYTES = 64 * 1024 * 1024
_COPIES = 4


def most_nbytes(spec: ModelSpec) -> int:
    """The greatest size of a kept state. The lead's process holds one state in memory, so the limit
    depends on the size of the job's model."""
    return _ALWAYS_NBYTES + _COPIES * nbytes_of(spec)


def parts_of(nbytes: int) -> Iterator[tuple[int, int]]:
    """Where each part of a state begins and ends."""
    for first in range(0, nbytes, PART_NBYTES):
        yield first, min(nbytes, first + PART_NBYTES)
