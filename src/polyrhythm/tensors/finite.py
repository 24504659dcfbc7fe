"""Tests whether every element of tensors is finite, and the errors for NaN and infinity in a
contribution."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from polyrhythm.errors import NotFinite

FEW = 32768
"""Up to this many elements, the fixed cost of a call takes most of the time. This cost is lower for
numpy than for torch."""
_NUMPY = (torch.float32, torch.float64)
Numbers = npt.NDArray[np.floating[Any]]


def all_finite(tensor: torch.Tensor) -> bool:
    """Whether every element of a tensor is finite.

    If the sum of all elements is finite, so are the elements; computing it is fast. Otherwise
    the sum may have overflowed although all elements are finite, so every element is tested. For
    few elements the maximum and the minimum are tested instead."""
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


_FOUND = {
    "gradient": "the gradient of {tensor!r} holds NaN or infinity; nothing was sent: lower the"
    " learning rate or clip the gradients",
    "parameter": "the parameter {tensor!r} became NaN or infinite in this worker's local steps;"
    " nothing was sent: lower the learning rate, or take fewer --local-steps",
    "buffer": "the buffer {tensor!r} became NaN or infinite in this worker's last steps; nothing was"
    " sent: look at what writes to it in forward(), and at the inputs of that module",
}
_HINT = "; with --on-nan skip such a contribution is left out"


def not_finite(what: str, tensor: str) -> NotFinite:
    """`what`: gradient, parameter or buffer. `tensor`: its name in the model."""
    return NotFinite(_FOUND[what].format(tensor=tensor) + _HINT, what=what, tensor=tensor)


def magnitudes(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The largest magnitude of each of these tensors, none of which is empty.

    The largest magnitude of a tensor is finite only if all of its elements are finite, because NaN
    in any element makes the magnitude NaN.
    """
    return list(torch._foreach_norm(list(tensors), math.inf)) if tensors else []


def largest_of(tensor: torch.Tensor) -> torch.Tensor:
    return magnitudes([tensor])[0]


def check_all(what: str, names: Sequence[str], tensors: Sequence[torch.Tensor]) -> None:
    """Raise NotFinite if one of these tensors is not finite. The host waits for the result. `what`:
    see `not_finite`. The test allocates no memory of the size of the tensors, and has one result
    for all of them."""
    pairs = [pair for pair in zip(names, tensors, strict=True) if pair[1].numel()]
    if not pairs:
        return
    largest = magnitudes([tensor for _, tensor in pairs])
    finite = torch.stack([each.isfinite() for each in largest]).tolist()
    for (name, _), fine in zip(pairs, finite, strict=True):
        if not fine:
            raise not_finite(what, name)
