"""Is every element finite? A sum is quick and right unless it overflows; then we look closely. Of few
elements the largest and the smallest say it."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

FEW = 32768
"""Up to so many elements it is the call that costs, and numpy's is the lighter one."""
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
    """The same memory, if these are few and numpy knows their dtype."""
    if tensor.numel() > FEW or tensor.dtype not in _NUMPY:
        return None
    numbers: Numbers = tensor.detach().numpy()
    return numbers


def few_finite(numbers: Numbers) -> bool:
    """NaN is both the largest and the smallest."""
    return not numbers.size or (
        math.isfinite(np.maximum.reduce(numbers, None))
        and math.isfinite(np.minimum.reduce(numbers, None))
    )
