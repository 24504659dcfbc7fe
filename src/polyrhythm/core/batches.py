"""How points are cut into batches: none is smaller than the minimum.

*A batch takes the rest of a chunk when less than the minimum would be left of it. So every chunk has
either nothing left or enough for a batch of its own, whichever worker visits it next, and a batch has
at most `least` - 1 points more than was asked for.* BatchNorm, for one, cannot train on a single point.
A whole data set that is smaller than the minimum is visited as one batch.
"""

from polyrhythm.errors import UsageError

DEFAULT = 2


def least_of(min_batch: int, batch_size: int) -> int:
    """The fewest points of a batch where the user asks for batches of this size. Batches of one point
    are allowed where the user asks for them."""
    if min_batch > max(DEFAULT, batch_size):
        raise UsageError(
            f"batch_size is {batch_size}, and --min-batch is {min_batch}: it must not be larger"
        )
    return min(min_batch, batch_size)


def take(count: int, left: int, least: int) -> int:
    """How many of the points left in a chunk go into a batch that lacks `count` points."""
    return left if left - count < least else count


def wanted(batch_size: int, missing: float, least: int) -> int:
    """How many points the next batch has when this many are missing for a contribution."""
    rest = int(missing)
    return max(least, rest if rest - batch_size < least else batch_size)


def steps_of(points: int, size: int, least: int) -> int:
    """Into how many batches of `size` this many points are divided."""
    whole, rest = divmod(points, size)
    return max(1, whole + (rest >= least))


def too_few(points: int, min_batch: int) -> bool:
    """Whether the data set is too small for a single batch of the size that was asked for."""
    return points < min_batch and min_batch > DEFAULT
