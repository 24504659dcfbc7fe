"""Options of the built-in jobs: `--set rate=0.01` and `--set batch=128` replace the learning rate
and the batch size of a job."""

from collections.abc import Callable, Mapping
from math import inf
from typing import TypeVar

from polyrhythm.errors import UsageError

_RATE, _BATCH = "rate", "batch"
Number = TypeVar("Number", int, float)


def said_rate(options: Mapping[str, str]) -> float | None:
    """Return the learning rate given with `--set`; None if none was given."""
    return _positive(options, _RATE, float, "a number above 0, such as 0.01")


def said_batch(options: Mapping[str, str]) -> int | None:
    return _positive(options, _BATCH, int, "a whole number above 0, such as 128")


def check_numbers(options: Mapping[str, str]) -> None:
    """Raise an error if a built-in job does not know an option, or cannot use its value."""
    for name in options:
        if name not in (_RATE, _BATCH):
            raise UsageError(
                f"--set {name}={options[name]} is not known to this job: built-in jobs take"
                f" {_RATE} and {_BATCH}"
            )
    said_rate(options)
    said_batch(options)


def _positive(
    options: Mapping[str, str], name: str, number: Callable[[str], Number], wanted: str
) -> Number | None:
    if name not in options:
        return None
    try:
        value = number(options[name])
    except ValueError:
        value = number("0")
    if not 0 < value < inf:
        raise UsageError(f"--set {name}={options[name]} is not understood: give {wanted}")
    return value
