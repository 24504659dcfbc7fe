"""Divides points into batches, none of which is smaller than the minimum.

*A batch that would leave fewer points in a chunk than the minimum takes these points too.* So a
chunk has either no points left or enough for another batch, whichever worker visits it next, and a
batch has at most `least` - 1 points more than the loop asked for. The minimum exists because some
layers, such as BatchNorm, cannot train on a single point. A data set that is smaller than the
minimum is visited as one batch.
"""

from polyrhythm.errors import UsageError

DEFAULT = 2


def least_of(min_batch: int, batch_size: int) -> int:
    """The minimum for a user who asks for batches of `batch_size`. Batches of one point are allowed
    only if the user asks for them."""
    if min_batch > max(DEFAULT, batch_size):
        raise UsageError(
            f"--min-batch is {min_batch}: it must not be larger than batch_size, which is {batch_size}"
        )
    return min(min_batch, batch_size)


def take(count: int, left: int, least: int) -> int:
    """How many points a batch takes from a chunk. `count`: how many points the batch still needs.
    `left`: how many points of the chunk are not visited yet."""
    return left if left - count < least else count


def wanted(batch_size: int, missing: float, least: int) -> int:
    """The number of points of the next batch, if the contribution still needs `missing` points."""
    rest = int(missing)
    return max(least, rest if rest - batch_size < least else batch_size)


def steps_of(points: int, size: int, least: int) -> int:
    """The number of batches of `size` points into which this many points are divided."""
    whole, rest = divmod(points, size)
    return max(1, whole + (rest >= least))


def too_few(points: int, min_batch: int) -> bool:
    """Whether the data set has too few points for one batch of the `--min-batch` that the user
    set."""
    return points < min_batch and min_batch > DEFAULT
