"""The fingerprint of a data set: equal for the same data, different for other data."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

from polyrhythm.core.fingerprints import alike, difference
from polyrhythm.learn.data.row_groups import RowGroups
from polyrhythm.learn.fingerprint import fingerprint_of
from polyrhythm.learn.loading import loading_of

ROWS = torch.arange(200.0).reshape(100, 2)


def fingerprint(*tensors: torch.Tensor) -> str:
    return fingerprint_of(TensorDataset(*tensors))


def test_the_same_tensors_have_the_same_fingerprint() -> None:
    found = fingerprint(ROWS, ROWS[:, 0])
    assert found and found == fingerprint(ROWS.clone(), ROWS[:, 0].clone())
    loading = loading_of([ROWS, ROWS[:, 0]], 10)
    assert fingerprint_of(loading.dataset) == found


@pytest.mark.parametrize(
    "other", [ROWS + 1, ROWS.double(), ROWS[:99], ROWS.flip(0), ROWS.reshape(100, 2, 1)]
)
def test_other_tensors_have_another_fingerprint(other: torch.Tensor) -> None:
    assert fingerprint(other) != fingerprint(ROWS)


@pytest.mark.parametrize("tensor", [ROWS[:0], ROWS[:1], ROWS.bfloat16()])
def test_every_tensor_has_a_fingerprint(tensor: torch.Tensor) -> None:
    assert fingerprint(tensor)


class Read(Dataset):  # type: ignore[type-arg]
    def __getitem__(self, index: int) -> int:
        raise AssertionError("a point is read")


def test_other_data_sets_are_not_read_and_may_say_what_they_are() -> None:
    dataset = Read()
    assert fingerprint_of(dataset) == ""
    dataset.fingerprint = "of worker 3"  # type: ignore[attr-defined]
    assert fingerprint_of(dataset) == "of worker 3"
    dataset.fingerprint = lambda: "no text"  # type: ignore[attr-defined]
    assert fingerprint_of(dataset) == ""


# -- what other data sets store --------------------------------------------------------------------


def test_numbers_may_differ_in_their_last_bits() -> None:
    """The same points, normalised on another processor. An integer must be equal."""
    rows = torch.randn(1000, 30, generator=torch.Generator().manual_seed(1))
    noise = 1 + 1e-5 * torch.randn(1000, 30, generator=torch.Generator().manual_seed(2))
    labels = torch.arange(1000)
    assert fingerprint(rows, labels) != fingerprint(rows * noise, labels)
    assert alike(fingerprint(rows, labels), fingerprint(rows * noise, labels))
    assert not alike(fingerprint(rows, labels), fingerprint(rows, labels.flip(0)))
    assert alike("", fingerprint(rows)) and not alike("given", fingerprint(rows))


@pytest.mark.parametrize("offset", [0.0, 5e6])
@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e30])
def test_other_numbers_are_not_alike(offset: float, scale: float) -> None:
    """Three draws of the same kind of data, also far from the origin."""
    found = []
    for seed in range(20):
        draw = torch.Generator().manual_seed(seed)
        rows = torch.randn(500, 4, generator=draw, dtype=torch.float64)
        found.append(fingerprint((rows * 1e3 + offset) * scale))
    pairs = [(a, b) for n, a in enumerate(found) for b in found[:n]]
    assert not any(alike(a, b) for a, b in pairs)


@pytest.mark.parametrize(
    ("other", "differs"),
    [
        (TensorDataset(ROWS.clone(), ROWS[:, 0].long()), None),
        (TensorDataset(ROWS.double(), ROWS[:, 0].long()), "form"),
        (TensorDataset(ROWS.reshape(100, 1, 2), ROWS[:, 0].long()), "form"),
        (TensorDataset(ROWS.long(), ROWS[:, 0].long()), "form"),
        (TensorDataset(ROWS), "form"),
        (TensorDataset(ROWS.flip(1), ROWS[:, 0].long()), "numbers"),
        (
            TensorDataset(ROWS, ROWS[:, 0].long() + 1),
            "values",
        ),
    ],
)
def test_it_is_known_in_what_data_sets_differ(other: TensorDataset, differs: str | None) -> None:
    one, two = fingerprint(ROWS, ROWS[:, 0].long()), fingerprint_of(other)
    assert difference(one, two) == difference(two, one) == differs
    assert difference("given", two) == "fingerprint"


class Augmented(Dataset):  # type: ignore[type-arg]
    """Points with a random change, as an augmentation makes it, and a count of the readings."""

    def __init__(self, data: object, folder: str = "/a") -> None:
        self.data = data
        self.files = [f"{folder}/{number}.png" for number in range(100)]
        self.targets = list(range(100))
        self.transform = lambda point: point + torch.rand(())

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> int:
        raise AssertionError("a point is read")


def test_a_data_set_with_random_transforms_is_known_by_what_it_stores() -> None:
    torch.manual_seed(0)
    found = fingerprint_of(Augmented(ROWS))
    torch.manual_seed(1)
    assert found and found == fingerprint_of(Augmented(ROWS.numpy().copy(), "/b/c"))
    assert not alike(found, fingerprint_of(Augmented(ROWS.flip(0))))
    other = Augmented(ROWS)
    other.targets[0] = 5
    assert not alike(found, fingerprint_of(other))
    assert not alike(found, fingerprint_of(Subset(Augmented(ROWS), range(50))))
    first, last = (Subset(Augmented(ROWS), at) for at in (range(50), range(50, 100)))
    assert not alike(fingerprint_of(first), fingerprint_of(last))
    joined = [fingerprint_of(ConcatDataset(each)) for each in ([first, last], [last, first])]
    assert not alike(*joined) and joined[0] != ""


def test_the_same_data_has_the_same_fingerprint_in_every_version() -> None:
    """These texts must not change without a change of the protocol: workers with another version of
    Python or of the libraries would be refused."""
    rows = torch.arange(60, dtype=torch.float32).reshape(20, 3)
    known = "5c137ac9690096c1:7d2b379f147c5017e49c524e5fffff7bed7cd1"
    found = fingerprint(rows, torch.arange(20))
    assert alike(found, known) and found.split(":")[0] == known.split(":")[0]


@pytest.mark.parametrize("kind", ["csv", "npy", "parquet"])
def test_a_file_is_known_by_its_content_and_not_by_its_path(tmp_path: Path, kind: str) -> None:
    paths = []
    for number, shift in enumerate((0, 0, 1)):
        rows = np.arange(4000, dtype=np.float32).reshape(1000, 4)
        rows[500, 2] += shift if kind != "npy" else 0
        rows += 100 * shift if kind == "npy" else 0
        (tmp_path / str(number)).mkdir()
        path = tmp_path / str(number) / f"{number}.{kind}"
        paths.append(path)
        if kind == "npy":
            np.save(path, rows)
        elif kind == "csv":
            np.savetxt(path, rows, fmt="%d", delimiter=",")
        else:
            parquet = pytest.importorskip("pyarrow.parquet")
            table = pytest.importorskip("pyarrow").table({str(n): rows[:, n] for n in range(4)})
            parquet.write_table(table, path)
    same, again, other = (fingerprint_of(RowGroups(path)) for path in paths)
    assert same and same == again and not alike(same, other)
    labelled = fingerprint_of(RowGroups(paths[0], label=0))
    assert not alike(same, labelled)
