"""Test whether every element of a tensor is finite.

If the sum of all elements is finite, so are the elements; computing it is fast. Otherwise the sum
may have overflowed although all elements are finite, so every element is tested. For few elements
the maximum and the minimum are tested instead."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

FEW = 32768
"""Up to this many elements, the fixed cost of a call takes most of the time. This cost is lower for
numpy than for torch."""
_NUMPY = (torch.float32, torch.float64)
Numbers = npt.NDArray[np.floating[Any]]


def all_finite(tensor: torch.Tensor) -> bool:
    if not tensor.is_floating_point():
        return True
    few = numbers_of(tensor)
    if few is not None:
        return few_finite(few)
    return math.isfinite(tensor.sum().item()) or bool(tensor.isfinite().all())


def numbers_of(tensor: torch.Tensor) -> Numbers | None:
    """Return the tensor's memory as a numpy array, if it has few elements of a dtype that numpy
    knows."""
    if tensor.numel() > FEW or tensor.dtype not in _NUMPY:
        return None
    numbers: Numbers = tensor.detach().numpy()
    return numbers


def few_finite(numbers: Numbers) -> bool:
    """Whether maximum and minimum are finite. NaN in any element makes both NaN."""
    return not numbers.size or (
        math.isfinite(np.maximum.reduce(numbers, None))
        and math.isfinite(np.minimum.reduce(numbers, None))
    )
