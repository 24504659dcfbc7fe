"""Checks the metrics that a user's code reports: their names, and that their values are numbers."""

import math
from collections.abc import Mapping
from numbers import Real
from typing import Any

import torch

from polyrhythm.core.metrics import MOST_NAMES, RESERVED, name_fault
from polyrhythm.errors import UsageError
from polyrhythm.wire.messages import MOST_METRICS


def checked(metrics: Mapping[Any, Any], call: str, known: set[str]) -> dict[str, float]:
    """The values as numbers. `call`: the name of the function that the user called, for error messages.
    `known`: the names that this worker has reported so far; new ones are added. Raises UsageError if a
    name or a value is not accepted."""
    if len(metrics) > MOST_METRICS:
        raise UsageError(f"{call} got {len(metrics)} values: it accepts at most {MOST_METRICS}")
    for name in metrics:
        _check_name(name, call)
    known |= metrics.keys()
    if len(known) > MOST_NAMES:
        raise UsageError(
            f"{call}: this worker has reported {len(known)} different names, and a job has at most"
            f" {MOST_NAMES}; do not put a step or a number into a name"
        )
    return {name: number_of(name, value, call) for name, value in metrics.items()}


def _check_name(name: object, call: str) -> None:
    if not isinstance(name, str):
        raise UsageError(f"{call}: {name!r} is not the name of a metric: a name is a text")
    if (fault := name_fault(name)) is not None:
        raise UsageError(f"{call}: {name[:80]!r} is not the name of a metric: {fault}")
    if name in RESERVED:
        raise UsageError(
            f"{call}: the name {name!r} is taken by a column of the history; choose another, such as"
            f" my_{name}"
        )


def number_of(name: str, value: Any, call: str) -> float:
    """The value of a metric as a number: of a Python or NumPy number, or of a tensor with one
    element."""
    if isinstance(value, torch.Tensor):
        what = f"a tensor of shape {tuple(value.shape)}"
        value = value.detach().cpu().item() if value.numel() == 1 else None
    else:
        what = f"of type {type(value).__name__}"
        # a NumPy array with one element
        if getattr(value, "size", 0) == 1 and hasattr(value, "item"):
            value = value.item()
    if not isinstance(value, Real):
        raise UsageError(
            f"{call}: the value of {name} is {what}: give a number, or a tensor with one element"
        )
    try:
        return float(value)
    except OverflowError:
        return math.inf
