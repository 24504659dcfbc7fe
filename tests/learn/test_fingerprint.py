"""The fingerprint of a data set: equal for the same data, different for other data."""

import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

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
