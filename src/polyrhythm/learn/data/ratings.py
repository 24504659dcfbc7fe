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
    """`matrix`: a scipy CSR matrix. `people` and `things`: the numbers in the file that belong to its
    rows and columns."""

    matrix: Any
    people: npt.NDArray[np.int64]
    things: npt.NDArray[np.int64]


def open_ratings(path: str | Path, columns: tuple[str | int, ...] = (0, 1, 2)) -> Ratings:
    """Read ratings, such as MovieLens's `ratings.csv`. `columns`: the columns of the person, the
    thing and the rating. A pair that occurs twice is an error, because its ratings would be added
    up."""
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
