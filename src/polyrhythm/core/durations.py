"""Durations as users write them: a number and its unit, such as 10ms or 60s."""

import re

_UNITS_NS = {
    "ns": 1,
    "us": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "min": 60 * 10**9,
    "h": 3600 * 10**9,
}
_SHAPE = re.compile(r"(\d+(?:\.\d+)?)([a-z]+)", re.ASCII)
_MOST_NS = 365 * 24 * _UNITS_NS["h"]


def parse_duration(text: str) -> int:
    """The duration in nanoseconds. Raises a ValueError whose text says how to write a duration."""
    match = _SHAPE.fullmatch(text.strip())
    if match is None or match[2] not in _UNITS_NS:
        units = ", ".join(_UNITS_NS)
        raise ValueError(f"a duration is a number and its unit ({units}), such as 10ms")
    length_ns = float(match[1]) * _UNITS_NS[match[2]]
    if not 1 <= length_ns <= _MOST_NS:
        raise ValueError("a duration is at least 1ns and at most a year")
    return round(length_ns)
