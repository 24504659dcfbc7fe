"""Durations, sizes and rates as people write them: `10ms`, `2MiB`, `1Gbit`."""

import math
import re
from collections.abc import Callable

from polyrhythm.core.values import bytes_of_unit, parse_size

_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
_BITS = {"bit": 1 / 8, "kbit": 10**3 / 8, "mbit": 10**6 / 8, "gbit": 10**9 / 8}
_TEXT = re.compile(r"\s*([0-9]*\.?[0-9]+)\s*([A-Za-z]+)\s*")


class Duration(int):
    """In nanoseconds."""

    @classmethod
    def parse(cls, text: object) -> "Duration":
        return cls(round(_number(text, _SECONDS.get, "a duration", "10ms or 2s") * 1e9))


class Size(int):
    """In bytes."""

    @classmethod
    def parse(cls, text: object) -> "Size":
        return cls(parse_size(text if isinstance(text, str) else repr(text)))


class Rate(int):
    """A rate in bytes per second."""

    @classmethod
    def parse(cls, text: object) -> "Rate":
        rate = cls(_number(text, _rate_of_unit, "a rate, per second", "1Gbit or 100MB"))
        if not rate:
            raise ValueError(f"{text!r} is not a rate that can be used: nothing would ever arrive")
        return rate


def _rate_of_unit(unit: str) -> float | None:
    """The bytes of a unit of a rate. The unit says whether it counts bits or bytes: it ends with
    `bit` or with a capital `B`."""
    return bytes_of_unit(unit) if unit.endswith("B") else _BITS.get(unit.lower())


def _number(
    text: object, factor_of: Callable[[str], float | None], what: str, examples: str
) -> float:
    match = _TEXT.fullmatch(text) if isinstance(text, str) else None
    factor = None if match is None else factor_of(match[2])
    if match is None or factor is None:
        raise ValueError(f"{text!r} is not {what}: give for example {examples}")
    number = float(match[1]) * factor
    if not math.isfinite(number):
        raise ValueError(f"{text!r} is not {what}: it is too large")
    return number


def check_factor(factor: float) -> None:
    """Refuse a factor by which steps cannot be slowed down."""
    if not 0 < factor < float("inf"):
        raise ValueError(f"factor is {factor}: it must be a positive number")
