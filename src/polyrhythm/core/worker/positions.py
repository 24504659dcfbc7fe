"""Kind statistics: where a worker continues in a chunk of its lease.

*A worker that knows what the points of a chunk have added continues at its own position, if that is
further than the position in the lease because of contributions in flight. A worker that has never
visited the points, or has given the chunk up since, does not know what they have added. It begins
at the position in the lease.*
"""

from typing import TypeAlias

from polyrhythm.wire.messages import ChunkLease

Position: TypeAlias = tuple[int, int]
"""The passes, and the cursor in the present pass."""


def position(lease: ChunkLease, own: Position | None) -> Position:
    """Where a worker continues. `own`: the worker's position; None if it does not know what the points
    have added."""
    leased = (lease.passes, lease.cursor)
    return leased if own is None else max(own, leased)
