"""How many bytes a link hashes at a time.

With many cores, small amounts are faster: the peer reads the first bytes while the next ones are
hashed. With one or two cores, nothing runs at the same time, and each amount costs a switch between
the two processes. Large amounts are faster there.
"""

from dataclasses import dataclass

from polyrhythm.wire.digests import PIECE_NBYTES

_FEW_CORES = 2


@dataclass(frozen=True)
class Amounts:
    written_nbytes: int
    """Before each write, the link hashes at least this many bytes, if that many are queued."""
    arriving_nbytes: int
    """A payload is hashed in pieces of this size while it arrives."""


_SMALL = Amounts(256 * 1024, PIECE_NBYTES)
_LARGE = Amounts(8 * 1024 * 1024, 4 * 1024 * 1024)


def amounts_for(cores: int) -> Amounts:
    """Return the amounts for a process that may use this many cores."""
    return _LARGE if cores <= _FEW_CORES else _SMALL
