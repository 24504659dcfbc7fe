"""A fingerprint of a data set. The lead compares fingerprints to notice that workers have different
data sets."""

import hashlib
from typing import Any

import numpy as np
import torch

from polyrhythm.core.text import plain
from polyrhythm.errors import UsageError
from polyrhythm.learn.data.row_groups import RowGroups
from polyrhythm.learn.loading import tensors_of
from polyrhythm.learn.migration.layout import column_of

_ROWS = 16
"""How many rows of a tensor the fingerprint is made from."""
_LONGEST = 64


def fingerprint_of(dataset: Any) -> str:
    """A short text that usually differs if the data sets of two workers differ. It is computed
    quickly. The fingerprint of tensors is made from some of their rows, and the fingerprint of a
    table from its row groups. Any other data set may have an attribute `fingerprint`, a text.
    Otherwise the text is empty: points are not read, because that may have effects, such as drawing
    random numbers."""
    tensors = tensors_of(dataset)
    if tensors is not None:
        return _digest(*(_about(tensor) for tensor in tensors))
    if isinstance(dataset, RowGroups):
        return _digest(repr((len(dataset), dataset.edges(np.random.default_rng(0)))).encode())
    given = getattr(dataset, "fingerprint", "")
    return plain(given)[:_LONGEST] if isinstance(given, str) else ""


def _about(tensor: torch.Tensor) -> bytes:
    about = f"{tensor.dtype} {tuple(tensor.shape)} ".encode()
    at = [(len(tensor) - 1) * row // (_ROWS - 1) for row in range(_ROWS)] if len(tensor) else []
    try:
        return about + column_of(tensor[at])[1].tobytes()
    except UsageError:  # values of this type have no bytes that could be compared
        return about


def _digest(*parts: bytes) -> str:
    known = hashlib.blake2b(digest_size=12)
    for part in parts:
        known.update(part)
    return known.hexdigest()
