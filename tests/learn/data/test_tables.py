"""Tables in files: CSV, Parquet and mapped arrays, their row groups and their bad input."""

import gzip
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from polyrhythm.errors import DataError, UsageError
from polyrhythm.learn.data import tables
from polyrhythm.learn.data.row_groups import RowGroups
from polyrhythm.learn.data.tables import CsvTable, ParquetTable, open_points

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

NAMES = ["a", "b", "c", "label"]


def numbers(n: int = 1_000) -> npt.NDArray[np.float64]:
    rng = np.random.default_rng(0)
    return np.column_stack([rng.normal(size=(n, 3)).round(4), rng.integers(0, 3, n)])


def write_csv(path: Path, x: npt.NDArray[np.float64], end: str = "\n", head: bool = True) -> Path:
    lines = [",".join(NAMES)] if head else []
    lines += [",".join(f"{value:g}" for value in row) for row in x]
    text = end.join(lines) + end
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_bytes(text.encode())
    return path


def write_parquet(path: Path, x: npt.NDArray[np.float64], rows: int = 100) -> Path:
    table = pyarrow.table({name: x[:, at] for at, name in enumerate(NAMES)})
    parquet.write_table(table, path, row_group_size=rows)
    return path


@pytest.fixture(autouse=True)
def _small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "RANGE_NBYTES", 2_000)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz"])
@pytest.mark.parametrize("head", [True, False])
def test_a_csv_file_is_read_by_ranges_of_whole_lines(
    tmp_path: Path, end: str, name: str, head: bool
) -> None:
    x = numbers()
    table = open_points(write_csv(tmp_path / name, x, end, head), label=-1)
    assert isinstance(table, CsvTable)
    assert len(table) == 1_000
    groups = [*table.groups(), 1_000]
    sizes = np.diff(groups)
    assert len(sizes) > 5
    assert sizes.max() < 1.3 * sizes.min()
    for first, last in [(0, 1_000), (0, 1), (999, 1_000), (groups[1] - 3, groups[3] + 2)]:
        batch = table.read(first, last)
        assert np.allclose(batch.x, x[first:last, :3], atol=1e-4)
        assert batch.y is not None
        assert np.array_equal(batch.y, x[first:last, 3])
    assert batch.x.dtype == np.float32


@pytest.mark.parametrize("folder", [False, True])
def test_a_parquet_file_is_read_by_its_row_groups(tmp_path: Path, folder: bool) -> None:
    x = numbers()
    if folder:
        write_parquet(tmp_path / "1.parquet", x[:370])
        write_parquet(tmp_path / "2.parquet", x[370:])
        table = open_points(tmp_path, label="label")
    else:
        table = open_points(write_parquet(tmp_path / "t.parquet", x), label="label")
    assert isinstance(table, ParquetTable)
    assert len(table.groups()) == (11 if folder else 10)
    batch = table.read(95, 505)
    assert batch.y is not None
    assert np.allclose(batch.x, x[95:505, :3], atol=1e-6)
    assert np.array_equal(batch.y, x[95:505, 3])
    order = np.random.default_rng(1).permutation(1_000)[:200]
    assert np.allclose(table.rows(order).x, x[order, :3], atol=1e-6)


def test_only_the_row_groups_of_the_wanted_rows_are_parsed(tmp_path: Path) -> None:
    table = ParquetTable(write_parquet(tmp_path / "t.parquet", numbers()))
    table.read(150, 250)
    assert table.parsed == 2
    table.read(120, 280)
    assert table.parsed == 2


def test_few_row_groups_stay_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "KEPT_NBYTES", 3 * 100 * 4 * 4)
    table = ParquetTable(write_parquet(tmp_path / "t.parquet", numbers()))
    table.read(0, 1_000)
    table.read(700, 1_000)
    assert table.parsed == 10
    table.read(0, 100)
    assert table.parsed == 11


def test_a_mapped_array_gives_features_and_label(tmp_path: Path) -> None:
    x = numbers()
    np.save(tmp_path / "t.npy", x)
    source = open_points(tmp_path / "t.npy", label=3)
    batch = source.read(10, 20)
    assert np.array_equal(batch.x, x[10:20, :3])
    assert isinstance(open_points(tmp_path / "t.npy").read(0, 9).x, np.memmap)
    some = open_points(tmp_path / "t.npy", features=[2, 0]).read(0, 5)
    assert np.array_equal(some.x, x[:5, [2, 0]])


def test_chosen_columns_and_a_second_process(tmp_path: Path) -> None:
    x = numbers()
    table = open_points(write_csv(tmp_path / "t.csv", x), features=["c", "a"])
    again = pickle.loads(pickle.dumps(table))
    assert np.allclose(again.read(5, 9).x, x[5:9, [2, 0]], atol=1e-4)
    data = pickle.loads(pickle.dumps(RowGroups(tmp_path / "t.csv", label="label")))
    features, labels = data.columns([3, 1])
    assert np.allclose(features, x[[3, 1], :3], atol=1e-4)
    assert labels.tolist() == x[[3, 1], 3].tolist()


def bad_csv(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "bad.csv"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("a,b\n", "has no rows"),
        ("a,b\n1,2\n3,x\n", r"bad.csv, rows 0 to 1: column 'b': .*invalid value 'x'"),
        ("a,b\n1,2\n3\n", r"rows 0 to 1: .*Expected 2 columns, got 1"),
        ("a,b\n1,2\n3,nan\n", r"row 1 has no finite number in column 'b'"),
        ("a,b\n1,2\n3,\n", r"row 1 has no finite number in column 'b'"),
        ("a,b\n1,2\n\n3,4\n", "2 rows where 3 lines were counted: remove empty lines"),
    ],
)
def test_a_bad_csv_file_is_one_clear_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        open_points(bad_csv(tmp_path, text)).read(0, 2)


def test_wrong_files_and_columns_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no file"):
        open_points(tmp_path / "none.csv")
    (tmp_path / "t.txt").write_text("1")
    with pytest.raises(UsageError, match="give a .npy, .csv"):
        open_points(tmp_path / "t.txt")
    (tmp_path / "t.parquet").write_bytes(b"nothing")
    with pytest.raises(DataError, match="cannot read .*t.parquet"):
        open_points(tmp_path / "t.parquet")
    write_csv(tmp_path / "t.csv", numbers(10))
    with pytest.raises(UsageError, match="no column 'd': it has a, b, c, label"):
        open_points(tmp_path / "t.csv", label="d")
    table = pyarrow.table({"a": [1.0], "t": ["x"]})
    parquet.write_table(table, tmp_path / "text.parquet")
    with pytest.raises(DataError, match="column 't' is string, not numbers"):
        open_points(tmp_path / "text.parquet").read(0, 1)
    if os.geteuid() != 0:
        (tmp_path / "t.csv").chmod(0)
        with pytest.raises(DataError, match="cannot read .*Permission denied"):
            open_points(tmp_path / "t.csv")


def test_row_groups_are_permuted_and_rows_shuffled_inside_a_buffer(tmp_path: Path) -> None:
    data = RowGroups(write_parquet(tmp_path / "t.parquet", numbers()), buffer=50)
    order = data.deal(np.random.default_rng(0))
    assert np.array_equal(np.sort(order), np.arange(1_000))
    groups = order.reshape(10, 100) // 100
    assert (groups == groups[:, :1]).all()
    assert groups[:, 0].tolist() != sorted(groups[:, 0])
    chunk = order[:250]
    shuffled = data.shuffle(chunk, np.random.default_rng(1))
    assert np.array_equal(np.sort(shuffled), np.sort(chunk))
    place = {point: at for at, point in enumerate(chunk)}
    windows = [place[point] // 50 for point in shuffled]
    assert [windows[at] for at in range(0, 250, 50)] != sorted(set(windows))
    assert all(len(set(windows[at : at + 50])) == 1 for at in range(0, 250, 50))


def test_ratings_become_a_sparse_matrix(tmp_path: Path) -> None:
    pytest.importorskip("scipy")
    from polyrhythm.learn.data.ratings import open_ratings

    lines = ["userId,movieId,rating,timestamp", "1,50,4.0,7", "1,10,3.5,8", "9,10,0.5,9"]
    path = bad_csv(tmp_path, "\r\n".join(lines) + "\r\n")
    found = open_ratings(path)
    assert found.people.tolist() == [1, 9]
    assert found.things.tolist() == [10, 50]
    assert found.matrix.toarray().tolist() == [[3.5, 4.0], [0.5, 0.0]]
    path = bad_csv(tmp_path, "\n".join([*lines, "9,10,1.0,1"]))
    with pytest.raises(DataError, match="two ratings of one person"):
        open_ratings(path)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_points_that_differ_in_the_last_digits_are_read_as_float64(
    tmp_path: Path, kind: str
) -> None:
    """A name for a column, and whether float32 has its digits: small numbers, years, temperatures, a
    constant, whole numbers that are large, and map coordinates."""
    rng = np.random.default_rng(0)
    fine = {
        "small": rng.normal(size=3_000),
        "year": rng.integers(1990, 2030, 3_000).astype(float),
        "kelvin": 293.15 + rng.normal(scale=5.0, size=3_000),
        "constant": np.full(3_000, 0.1),
        "number": rng.integers(0, 2**24, 3_000).astype(float),
    }
    east = 5e6 + 1e3 * rng.normal(size=3_000)
    for name, columns in (("fine", fine), ("far", {**fine, "east": east})):
        x = np.stack([*columns.values()], axis=1)
        path = tmp_path / f"{name}.{kind}"
        if kind == "csv":
            head = ",".join(columns)
            np.savetxt(path, x, delimiter=",", fmt="%.17g", header=head, comments="")
        else:
            parquet.write_table(pyarrow.table(columns), path, row_group_size=1_000)
        table = open_points(path)
        found = np.concatenate([table.read(first, first + 1_000).x for first in (2_000, 0, 1_000)])
        assert found.dtype == (np.float32 if name == "fine" else np.float64)
        if name == "far":
            assert np.array_equal(found, np.roll(x, 1_000, axis=0))
        assert open_points(path, dtype=np.float32).read(0, 5).x.dtype == np.float32


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_all_workers_read_a_table_with_one_type(tmp_path: Path, kind: str) -> None:
    """The first row groups of the file need no float64, and the last one does."""
    rng = np.random.default_rng(0)
    x = np.column_stack([rng.normal(size=(2_400, 3)), np.zeros(2_400)])
    x[1_800:, 1] += 5e6
    first, last = (_written(tmp_path, x, kind) for _ in range(2))
    assert first.read(0, 300).x.dtype == last.read(2_100, 2_400).x.dtype == np.float64
    assert np.array_equal(last.read(1_700, 1_900).x, x[1_700:1_900, :3])


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_row_group_that_does_not_suit_the_type_of_the_table_is_refused(
    tmp_path: Path, kind: str
) -> None:
    rng = np.random.default_rng(0)
    x = np.column_stack([rng.normal(size=(12_000, 3)), np.zeros(12_000)])
    x[1_500:1_800, 1] += 5e6
    table = _written(tmp_path, x, kind)
    assert table.read(0, 900).x.dtype == np.float32
    with pytest.raises(DataError, match="digits that float32 does not have, unlike") as raised:
        table.read(1_500, 1_800)
    assert "open_points(..., dtype='float64')" in str(raised.value)
    assert table.read(2_100, 12_000).x.dtype == np.float32, "a sound part is read all the same"
    whole = _written(tmp_path, x, kind, dtype="float64")
    assert np.array_equal(whole.read(0, 12_000).x, x[:, :3])


def test_few_rows_at_the_end_do_not_change_the_type(tmp_path: Path) -> None:
    x = np.column_stack([np.full((1_003, 3), 293.15), np.zeros(1_003)])
    x[:, 0] += np.random.default_rng(0).normal(scale=5.0, size=1_003)
    x[1_000:, 0] = 293.1500001, 293.1500002, 293.1500003
    assert _written(tmp_path, x, "parquet").read(0, 1_003).x.dtype == np.float32


def _written(folder: Path, x: npt.NDArray[np.float64], kind: str, **options: Any) -> Any:
    path = folder / f"t.{kind}"
    if kind == "parquet":
        write_parquet(path, x, rows=300)
    else:
        np.savetxt(path, x, "%.17g", ",", header=",".join(NAMES), comments="")
    return open_points(path, label="label", **options)
