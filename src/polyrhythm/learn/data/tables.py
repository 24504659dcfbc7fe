"""Tables of numbers in files, as sources of points: `.npy`, CSV and Parquet.

A file is divided into *row groups*: the row groups of Parquet, or ranges of a CSV file that have
similar sizes and contain whole lines. *A worker parses only the row groups that contain points of
its chunks*, and keeps the last ones. It parses a few more to choose the type of the points, which
must be the same on all workers. A CSV file is also searched for line ends once, which is much
faster than parsing it.

pyarrow reads CSV and Parquet (`pip install 'polyrhythm[files]'`).
"""

import gzip
import mmap
import re
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from polyrhythm.errors import DataError, UsageError
from polyrhythm.learn.pointwise.algorithm import Batch, joined
from polyrhythm.learn.pointwise.source import ArraySource, Source

RANGE_NBYTES = 4 * 1024 * 1024
"""The size of a range of lines of a CSV file."""
KEPT_NBYTES = 256 * 1024 * 1024
"""How many bytes of parsed row groups a table keeps."""
_PART = 10_000
"""The type of a table's values is decided from about this many rows."""
_SAMPLED = 4
"""The type of a table's values is decided from this many row groups."""
_STEP = 2.0**-13
"""float32 is too coarse for a column if the distance between neighbouring float32 values exceeds
this fraction of the column's standard deviation."""
_COARSE = 2.0**-7
"""The same limit for the points of one row group that is read after float32 was chosen. It differs
because the file may be sorted by the column: then each group has a small part of the values."""
_FEW = 20
"""The fewest points with which the standard deviation of a row group is meaningful."""


def open_points(
    path: str | Path,
    *,
    label: str | int | None = None,
    features: Sequence[str | int] | None = None,
    dtype: npt.DTypeLike | None = None,
) -> Source:
    """Open a table of points in a file, as a source for point-wise algorithms. For
    `worker.batches`, use `RowGroups`.

    Args:
        path: a `.npy` file, a `.csv` or `.csv.gz` file, a `.parquet` file, or a folder of Parquet
            files.
        label: the name or number of the column with the label; -1 is the last column.
        features: the columns of the point; all others by default.
        dtype: the type of the points. None: float32, or float64 if the points differ in digits
            that float32 does not have. A `.npy` file is not converted.

    Returns:
        A source of points. It reads only the parts of the file that are needed.

    Raises:
        DataError: there is no such file, or it cannot be read.
        UsageError: a column does not exist, or pyarrow, which reads CSV and Parquet, is missing
            (`pip install 'polyrhythm[files]'`).

    Example:
        >>> from polyrhythm.data import open_points
        >>> np.save("points.npy", np.arange(30.0).reshape(10, 3))
        >>> source = open_points("points.npy", label=-1)
        >>> len(source), source.read(0, 1).x.tolist()
        (10, [[0.0, 1.0]])
    """
    path = Path(path)
    if not path.exists():
        raise DataError(f"there is no file {path}")
    name = path.name.lower()
    if name.endswith(".npy"):
        return _open_array(path, label, features)
    if name.endswith((".csv", ".csv.gz")):
        return CsvTable(path, label, features, dtype)
    if path.is_dir() or name.endswith(".parquet"):
        return ParquetTable(path, label, features, dtype)
    raise UsageError(
        f"{path} is not a table that can be read: give a .npy, .csv, .csv.gz or .parquet file, or a"
        " folder of .parquet files"
    )


class Table:
    """What all tables share: the row groups, and the cache of parsed row groups in memory."""

    copies = True

    def __init__(self, path: Path, counts: Sequence[int], given: tuple[Any, ...]) -> None:
        """`given`: the arguments of the constructor. A table that is sent to another process is
        opened there again."""
        self.path = path
        self._given = given
        self._columns: Columns
        self._dtype: np.dtype[Any] | None
        """The type of the points; None until it was chosen."""
        self._sample: npt.NDArray[np.float64] | None = None
        """Some points of the table, if float32 was chosen because it is exact enough for these
        points."""
        self._edges = [0, *accumulate(counts)]
        self._kept: OrderedDict[int, Batch] = OrderedDict()
        self.parsed = 0
        """How many row groups were parsed."""
        if len(self) == 0:
            raise DataError(f"{path} has no rows")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._given

    def __len__(self) -> int:
        return self._edges[-1]

    def groups(self) -> list[int]:
        return self._edges[:-1]

    def read(self, first: int, last: int) -> Batch:
        parts = []
        number = bisect_right(self._edges, first) - 1
        while first < last:
            begin, end = self._edges[number], min(last, self._edges[number + 1])
            parts.append(self.group(number).part(slice(first - begin, end - begin)))
            first, number = end, number + 1
        return joined(parts)

    def rows(self, indices: npt.NDArray[np.int64]) -> Batch:
        """Read these points, in this order. Neighbouring points cost little, because their row
        group is parsed once."""
        numbers = np.searchsorted(self._edges, indices, side="right") - 1
        order = np.argsort(numbers, kind="stable")
        parts = []
        for number in np.unique(numbers):
            inside = indices[numbers == number] - self._edges[number]
            parts.append(self.group(int(number)).part(inside))
        back = np.empty(len(indices), np.int64)
        back[order] = np.arange(len(indices))
        return joined(parts).part(back)

    def group(self, number: int) -> Batch:
        """One row group."""
        found = self._kept.get(number)
        if found is None:
            found = self._typed(number)
            self.parsed += 1
            wanted = self._edges[number + 1] - self._edges[number]
            if len(found) != wanted:
                raise DataError(
                    f"{self.path} has {len(found)} rows where {wanted} lines were counted: remove"
                    " empty lines, and line ends inside of quotes"
                )
            self._check(found, self._edges[number])
            self._kept[number] = found
            size = max(1, found.x.nbytes)
            while len(self._kept) > max(2, KEPT_NBYTES // size):
                self._kept.popitem(last=False)
        self._kept.move_to_end(number)
        return found

    def _typed(self, number: int) -> Batch:
        """Parse a row group. The first call chooses the type of the points, by row groups from all
        parts of the table."""
        if self._dtype is None:
            self._choose()
        assert self._dtype is not None
        if self._sample is None:
            return self._parse(number, self._dtype)
        found = self._parse(number, np.dtype(np.float64))
        together = np.concatenate([self._sample, _some(found.x)])
        enough = len(found.x) >= _FEW
        if _is_too_fine(together, _STEP) or (enough and _is_too_fine(found.x, _COARSE)):
            raise DataError(
                f"{self.path}: the points of rows {self._edges[number]} to"
                f" {self._edges[number + 1] - 1} differ in digits that float32 does not have,"
                f" unlike the first ones that were read: shuffle the rows of the file, subtract a"
                f" constant"
                " from the columns, or read it with open_points(..., dtype='float64')"
            )
        return Batch(found.x.astype(np.float32), found.y)

    def _choose(self) -> None:
        numbers = np.unique(np.linspace(0, len(self._edges) - 2, _SAMPLED).astype(int))
        groups = [self._parse(int(number), np.dtype(np.float64)).x for number in numbers]
        together = np.concatenate([_some(group) for group in groups])
        enough = [group for group in groups if len(group) >= _FEW]
        if any(_is_too_fine(part, _STEP) for part in (together, *enough)):
            self._dtype = np.dtype(np.float64)
        else:
            self._dtype = np.dtype(np.float32)
            self._sample = _some(together)

    def _parse(self, number: int, dtype: np.dtype[Any]) -> Batch:
        raise NotImplementedError

    def _check(self, points: Batch, first: int) -> None:
        if np.isfinite(points.x.sum(dtype=np.float64)):
            return
        broken = ~np.isfinite(points.x)
        if broken.any():
            row, column = (int(index) for index in np.argwhere(broken)[0])
            raise DataError(
                f"{self.path}: row {first + row} has no finite number in column"
                f" {self._columns.features[column]!r}: remove or fill such values"
            )


def _some(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return x[:: max(1, len(x) // _PART)]


def _is_too_fine(x: npt.NDArray[np.float64], limit: float) -> bool:
    """Whether the values of a column differ in digits that float32 does not have. Example: map
    coordinates around 5,000,000 would be rounded by up to 0.25. A column of small whole numbers
    loses nothing. `limit`: see `_STEP`."""
    part = _some(x)
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = part.astype(np.float32)
        step = float(np.finfo(np.float32).eps) * np.abs(part).max(0)
        varies = part.max(0) > part.min(0)
        return bool((varies & (step > limit * part.std(0)) & (rounded != part).any(0)).any())


class CsvTable(Table):
    """A CSV file of numbers. The first line may contain the names of the columns."""

    def __init__(
        self,
        path: Path,
        label: str | int | None = None,
        features: Sequence[str | int] | None = None,
        dtype: npt.DTypeLike | None = None,
    ) -> None:
        pyarrow_part("csv")
        self._bytes = _bytes_of(path)
        end = _end_of(self._bytes)
        line = self._bytes.find(b"\n")
        self._names, named = names_of(path, bytes(self._bytes[: end if line < 0 else line]))
        begin = 0 if not named else end if line < 0 else min(end, line + 1)
        self._columns = Columns(path, self._names, label, features)
        self._dtype = None if dtype is None else np.dtype(dtype)
        self._ranges = _ranges(self._bytes, begin, end)
        counts = [_lines(self._bytes, *part) for part in self._ranges]
        super().__init__(path, counts, (path.absolute(), label, features, dtype))

    def _parse(self, number: int, dtype: np.dtype[Any]) -> Batch:
        arrow, csv = pyarrow_part(""), pyarrow_part("csv")
        first, last = self._ranges[number]
        kinds = {name: arrow.from_numpy_dtype(dtype) for name in self._columns.features}
        names = list(self._columns.features)
        if self._columns.label is not None:
            names.append(self._columns.label)
        try:
            table = csv.read_csv(
                arrow.BufferReader(bytes(self._bytes[first:last])),
                read_options=csv.ReadOptions(column_names=self._names, use_threads=False),
                convert_options=csv.ConvertOptions(column_types=kinds, include_columns=names),
            )
        except arrow.ArrowInvalid as error:
            rows = f"rows {self._edges[number]} to {self._edges[number + 1] - 1}"
            raise DataError(f"{self.path}, {rows}: {_with_name(str(error), self._names)}") from None
        return self._columns.batch(table, dtype)


def names_of(path: Path, line: bytes) -> tuple[list[str], bool]:
    """The names of the columns of a CSV file, and whether its first line contains them. If it does not,
    the names are numbers."""
    try:
        head = line.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise DataError(f"{path} is not a text file: give a file of numbers and commas") from None
    cells = [cell.strip().strip('"') for cell in head.split(",")]
    named = not all(_is_number(cell) for cell in cells)
    return cells if named else [str(number) for number in range(len(cells))], named


class ParquetTable(Table):
    """A Parquet file, or a folder of Parquet files, which are read in the order of their names."""

    def __init__(
        self,
        path: Path,
        label: str | int | None = None,
        features: Sequence[str | int] | None = None,
        dtype: npt.DTypeLike | None = None,
    ) -> None:
        parquet = pyarrow_part("parquet")
        files = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
        if not files:
            raise DataError(f"the folder {path} has no .parquet file")
        self._places: list[tuple[Path, int]] = []
        counts: list[int] = []
        names: list[str] | None = None
        for file in files:
            described = _readable(file, lambda file=file: parquet.read_metadata(file))
            found = list(described.schema.to_arrow_schema().names)
            if names is None:
                names = found
            if found != names:
                raise DataError(f"{file} has other columns than {files[0]}")
            for number in range(described.num_row_groups):
                self._places.append((file, number))
                counts.append(described.row_group(number).num_rows)
        assert names is not None
        self._columns = Columns(path, names, label, features)
        self._dtype = None if dtype is None else np.dtype(dtype)
        super().__init__(path, counts, (path.absolute(), label, features, dtype))

    def _parse(self, number: int, dtype: np.dtype[Any]) -> Batch:
        parquet = pyarrow_part("parquet")
        file, group = self._places[number]
        names = list(self._columns.features)
        if self._columns.label is not None:
            names.append(self._columns.label)

        def read() -> Any:
            with parquet.ParquetFile(file) as opened:
                return opened.read_row_group(group, columns=names, use_threads=False)

        return self._columns.batch(_readable(file, read), dtype)


class Columns:
    """Which columns of a table are features, and which one is the label."""

    def __init__(
        self,
        path: Path,
        names: Sequence[str],
        label: str | int | None,
        features: Sequence[str | int] | None,
    ) -> None:
        def named(column: str | int) -> str:
            if isinstance(column, int) and -len(names) <= column < len(names):
                return names[column]
            if column in names:
                return str(column)
            raise UsageError(f"{path} has no column {column!r}: it has {', '.join(names)}")

        self.path = path
        self.label = None if label is None else named(label)
        self.features = (
            [name for name in names if name != self.label]
            if features is None
            else [named(column) for column in features]
        )
        if not self.features:
            raise UsageError(f"{path} has no column beside the label: points need features")

    def batch(self, table: Any, dtype: np.dtype[Any]) -> Batch:
        x = np.empty((table.num_rows, len(self.features)), dtype)
        for number, name in enumerate(self.features):
            column = table.column(name)
            try:
                x[:, number] = column.to_numpy()
            except (TypeError, ValueError):
                raise DataError(
                    f"{self.path}: the column {name!r} is {column.type}, not numbers; choose the"
                    " columns with features"
                ) from None
        y = None
        if self.label is not None:
            y = table.column(self.label).to_numpy()
            if np.issubdtype(y.dtype, np.floating) and (y == np.floor(y)).all():
                y = y.astype(np.int64)
        return Batch(x, y)


def pyarrow_part(name: str) -> Any:
    from importlib import import_module

    try:
        return import_module(f"pyarrow.{name}" if name else "pyarrow")
    except ImportError:
        raise UsageError("CSV and Parquet need pyarrow: pip install 'polyrhythm[files]'") from None


def _open_array(
    path: Path, label: str | int | None, features: Sequence[str | int] | None
) -> ArraySource:
    try:
        x = np.load(path, mmap_mode="r")
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read {path}: {error}") from None
    if x.ndim != 2 or not len(x):
        raise DataError(f"{path} has the shape {x.shape}: a table with rows is needed")
    if isinstance(label, str) or any(isinstance(column, str) for column in features or ()):
        raise UsageError(f"{path} has no names of columns: give their numbers")
    if label is None and features is None:
        return ArraySource(Batch(x))
    numbers = list(range(x.shape[1])) if features is None else [int(c) for c in features]
    y = None
    if label is not None:
        at = int(label) % x.shape[1]
        y = np.asarray(x[:, at])
        numbers = [number for number in numbers if number != at]
    ordered = numbers == list(range(numbers[0], numbers[0] + len(numbers))) if numbers else False
    x = x[:, numbers[0] : numbers[-1] + 1] if ordered else x[:, numbers]
    return ArraySource(Batch(x, y))


def _with_name(message: str, names: Sequence[str]) -> str:
    """pyarrow's message, with the name of a column in place of its number."""

    def named(found: re.Match[str]) -> str:
        number = int(found[1])
        return f"column {names[number]!r}" if number < len(names) else found[0]

    return re.sub(r"In CSV column #(\d+)", named, message)


def _readable(file: Path, read: Any) -> Any:
    try:
        return read()
    except Exception as error:  # pyarrow raises errors of many kinds for a damaged file
        line = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(f"cannot read {file}: {line}") from None


def _bytes_of(path: Path) -> Any:
    try:
        if path.name.lower().endswith(".gz"):
            return gzip.decompress(path.read_bytes())
        if path.stat().st_size == 0:
            raise DataError(f"{path} is empty")
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from None


def _end_of(data: Any) -> int:
    """The position at which the last line that is not empty ends."""
    end = len(data)
    while end and data[end - 1 : end] in (b"\n", b"\r", b" "):
        end -= 1
    return end


def _ranges(data: Any, begin: int, end: int) -> list[tuple[int, int]]:
    """Ranges of similar size that contain whole lines."""
    count = max(1, round((end - begin) / RANGE_NBYTES))
    edges = [begin]
    for number in range(1, count):
        at = data.find(b"\n", begin + (end - begin) * number // count, end)
        if at >= 0 and at + 1 > edges[-1]:
            edges.append(at + 1)
    edges.append(end)
    return [(first, last) for first, last in pairwise(edges) if last > first]


def _lines(data: Any, first: int, last: int) -> int:
    part = bytes(data[first:last])
    return part.count(b"\n") + (not part.endswith(b"\n"))


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


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
