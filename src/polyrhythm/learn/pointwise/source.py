"""Where points come from: anything that has a number of points and can read a range of them.

A source of a file is read in *row groups*: parts that cost little to find and to read as a whole. A
worker reads only the row groups of its chunks.
"""

from typing import Protocol

from polyrhythm.learn.pointwise.algorithm import Batch


class Source(Protocol):
    """Where points come from: anything that has a number of points and can read a range of them.
    Write such a class for your own format.

    Example:
        >>> from polyrhythm.pointwise import Batch
        >>> class Squares:
        ...     copies = True
        ...     def __len__(self):
        ...         return 1_000
        ...     def groups(self):
        ...         return [0]
        ...     def read(self, first, last):
        ...         return Batch(np.arange(first, last, dtype=float)[:, None] ** 2)
        >>> Squares().read(2, 4).x.ravel().tolist()
        [4.0, 9.0]
    """

    copies: bool
    """Whether the points that `read` returns are in memory for this worker alone. They may then be put
    into another order, which costs one more copy of them while they are read."""

    def __len__(self) -> int:
        """The number of points."""

    def groups(self) -> list[int]:
        """Return the first point of every row group, ascending, beginning with 0. A source that
        can read any range equally fast has one group."""

    def read(self, first: int, last: int) -> Batch:
        """Return the points from `first` up to `last`, in the order of the source."""


class ArraySource:
    """Points in memory, or in an array that is mapped from a file (`np.load(...,
    mmap_mode="r")`): the system then reads only the pages of the rows that are used.

    Args:
        points: all points.

    Example:
        >>> from polyrhythm.pointwise import ArraySource, Batch
        >>> source = ArraySource(Batch(np.zeros((100, 2))))
        >>> len(source)
        100
    """

    copies = False

    def __init__(self, points: Batch) -> None:
        self.points = points

    def __len__(self) -> int:
        return len(self.points)

    def groups(self) -> list[int]:
        """Return the first point of every row group: an array is one group."""
        return [0]

    def read(self, first: int, last: int) -> Batch:
        """Return the points from `first` up to `last`. Nothing is copied."""
        return self.points.part(slice(first, last))
