"""Kind statistics: where a worker continues in a chunk of its lease.

*A worker that knows what the points of a chunk have added continues at its own position, if that is
further than the position in the lease because of contributions in flight. A worker that does not know
it begins where the lease says. If a worker has finished a chunk, and the lease says that its last pass
is not over, the lease is right: the lead could not know whether the worker still knows the points.*
"""

from typing import TypeAlias

from polyrhythm.wire.messages import ChunkLease

Position: TypeAlias = tuple[int, int]
"""The passes, and the cursor in the present pass."""


def position(lease: ChunkLease, own: Position | None, epochs: int | None) -> Position:
    """Where a worker continues. `own`: the worker's position; None if it does not know what the points
    have added. `epochs`: the number of passes; None: there is no last pass."""
    leased = (lease.passes, lease.cursor)
    if own is None or (epochs is not None and own[0] >= epochs > lease.passes):
        return leased
    return max(own, leased)
