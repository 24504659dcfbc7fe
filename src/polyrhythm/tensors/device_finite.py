"""Test on a device whether tensors are finite, without allocating memory of their size, and with
one result for all tensors.

The largest magnitude of a tensor is finite only if all of its elements are finite, because NaN in
any element makes the magnitude NaN.
"""

import math
from collections.abc import Sequence

import torch

from polyrhythm.tensors.not_finite import not_finite


def magnitudes(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The largest magnitude of each of these tensors, none of which is empty."""
    return list(torch._foreach_norm(list(tensors), math.inf)) if tensors else []


def largest_of(tensor: torch.Tensor) -> torch.Tensor:
    return magnitudes([tensor])[0]


def check_all(what: str, names: Sequence[str], tensors: Sequence[torch.Tensor]) -> None:
    """Raise NotFinite if one of these tensors is not finite. The host waits for the result. `what`:
    see `not_finite`."""
    pairs = [pair for pair in zip(names, tensors, strict=True) if pair[1].numel()]
    if not pairs:
        return
    largest = magnitudes([tensor for _, tensor in pairs])
    finite = torch.stack([each.isfinite() for each in largest]).tolist()
    for (name, _), fine in zip(pairs, finite, strict=True):
        if not fine:
            raise not_finite(what, name)
