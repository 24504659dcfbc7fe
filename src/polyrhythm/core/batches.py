"""Divides points into batches that have at least the minimum number of points.

*If a batch would leave fewer points in a chunk than the minimum, it takes these points too.* So a
chunk has either no points left or enough for another batch, whichever worker visits it next. A
batch has at most `least` - 1 points more than the loop asked for. The minimum exists because some
layers, such as BatchNorm, cannot train on a single point. A data set that is smaller than the
minimum is visited as one batch.
"""

from polyrhythm.errors import UsageError

DEFAULT = 2


def least_of(min_batch: int, batch_size: int) -> int:
    """The fewest points of a batch if the user asks for batches of `batch_size`. It is 1 only if
    the user asks for batches of one point. Raises UsageError if `--min-batch` is larger than
    `batch_size`."""
    if min_batch > max(DEFAULT, batch_size):
        raise UsageError(
            f"--min-batch is {min_batch}: it must not be larger than batch_size, which is {batch_size}"
        )
    return min(min_batch, batch_size)


def take(count: int, left: int, least: int) -> int:
    """How many points a batch takes from a chunk with `left` unvisited points, if the batch still
    needs `count` points."""
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
