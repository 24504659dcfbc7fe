"""The fast check for finite values and the fast copy give the same results as those of torch."""

import pytest
import torch

from polyrhythm.tensors.copying import copy, copy_all
from polyrhythm.tensors.finite import all_finite


def test_finite_elements_pass() -> None:
    assert all_finite(torch.randn(1000))
    assert all_finite(torch.empty(0))
    assert all_finite(torch.tensor([1, 2]))


def test_finite_elements_whose_sum_overflows_pass() -> None:
    assert all_finite(torch.full((4,), 3e38))
    assert all_finite(torch.full((4,), 6e4, dtype=torch.float16))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_one_bad_element_is_found(dtype: torch.dtype, bad: float) -> None:
    numbers = torch.zeros(1000, dtype=dtype)
    numbers[777] = bad
    assert not all_finite(numbers)


def test_infinities_that_cancel_are_found() -> None:
    assert not all_finite(torch.tensor([float("inf"), -float("inf")]))


@pytest.mark.parametrize("length", [0, 5, 300_000])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_a_copy_equals_its_source(length: int, kind: torch.dtype) -> None:
    source = torch.randn(length).to(kind)
    target = torch.full((length,), 7.0)
    copy(target, source)
    assert torch.equal(target, source.float())
    exact = torch.empty_like(source)
    copy(exact, source)
    assert torch.equal(exact, source)


def test_a_copy_of_strided_tensors_equals_its_source() -> None:
    source = torch.randn(600, 600).t()
    target = torch.empty(600, 600)
    copy(target, source)
    assert torch.equal(target, source)


@pytest.mark.parametrize("length", [0, 5, 300_000])
def test_copy_all_equals_its_source(length: int) -> None:
    source, target = torch.randn(length), torch.zeros(length)
    copy_all(target, source)
    assert torch.equal(target, source)
