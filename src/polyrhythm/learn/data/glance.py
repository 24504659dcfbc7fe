"""Checks a table before any process starts, without reading all of it."""

import gzip
from collections.abc import Sequence
from pathlib import Path

from polyrhythm.errors import DataError
from polyrhythm.learn.data.tables import Columns, names_of, open_points, pyarrow_part


def check_table(
    path: Path, label: str | int | None, features: Sequence[str | int] | None = None
) -> None:
    """Raise an error if the file cannot be a table with these columns (`open_points`). Of a CSV file
    only the first lines are read."""
    if not path.name.lower().endswith((".csv", ".csv.gz")) or not path.is_file():
        open_points(path, label=label, features=features)
        return
    pyarrow_part("csv")
    packed = path.name.lower().endswith(".gz")
    try:
        with gzip.open(path) if packed else path.open("rb") as file:
            first, second = file.readline(), file.readline()
    except (OSError, EOFError) as error:
        raise DataError(f"cannot read {path}: {error}") from None
    if not first.strip():
        raise DataError(f"{path} is empty, or begins with an empty line")
    names, named = names_of(path, first)
    Columns(path, names, label, features)
    if named and not second.strip():
        raise DataError(f"{path} has no rows")
