"""Ratings: lines of a person, a thing and a rating, as a sparse matrix with a row per person."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from polyrhythm.errors import DataError, UsageError
from polyrhythm.learn.data.tables import open_points


@dataclass(frozen=True, slots=True)
class Ratings:
    """Ratings as a sparse matrix with a row for each person.

    Attributes:
        matrix: a scipy CSR matrix.
        people: the number in the file for each row.
        things: the number in the file for each column.

    Example:
        >>> from polyrhythm.data import open_ratings
        >>> np.save("ratings.npy", np.array([[7, 1, 5.0], [7, 2, 3.0], [9, 1, 4.0]]))
        >>> ratings = open_ratings("ratings.npy")
        >>> ratings.people.tolist(), ratings.things.tolist()
        ([7, 9], [1, 2])
    """

    matrix: Any
    people: npt.NDArray[np.int64]
    things: npt.NDArray[np.int64]


def open_ratings(path: str | Path, columns: tuple[str | int, ...] = (0, 1, 2)) -> Ratings:
    """Read ratings from a table, such as MovieLens's `ratings.csv`, in which each row has a
    person, a thing and a rating. Use the matrix with `NMF(observed_only=True)`.

    Args:
        path: the file, as for `open_points`.
        columns: the columns of the person, the thing and the rating.

    Returns:
        The ratings.

    Raises:
        DataError: the file cannot be read, or has two ratings of one person for one thing.
        UsageError: scipy is missing (`pip install 'polyrhythm[sklearn]'`).

    Example:
        >>> from polyrhythm.data import open_ratings
        >>> np.save("ratings.npy", np.array([[7, 1, 5.0], [7, 2, 3.0], [9, 1, 4.0]]))
        >>> open_ratings("ratings.npy").matrix.toarray().tolist()
        [[5.0, 3.0], [4.0, 0.0]]
    """
    try:
        from scipy import sparse
    except ImportError:
        raise UsageError(
            "ratings need scipy: pip install 'polyrhythm[sklearn]', which contains it"
        ) from None
    source = open_points(path, features=columns, dtype=np.float64)
    table = source.read(0, len(source)).x
    people, row = np.unique(table[:, 0].astype(np.int64), return_inverse=True)
    things, column = np.unique(table[:, 1].astype(np.int64), return_inverse=True)
    matrix = sparse.csr_matrix((table[:, 2], (row, column)), shape=(len(people), len(things)))
    if matrix.nnz != len(table):
        raise DataError(f"{path} has two ratings of one person for one item: remove one of them")
    return Ratings(matrix, people, things)
