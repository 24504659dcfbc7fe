"""Sizes as users write them: a number and its unit, such as 500MB or 2GiB. 0 needs no unit."""

import re

UNITS = {
    **{"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12},
    **{"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40},
}
_MOST = 2**60
"""The largest size that is accepted: a larger one is a mistake, and would not fit into the 64 bits
of a number in a message."""
_SHAPE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-zA-Z]+)", re.ASCII)


def parse_size(text: str) -> int:
    """The size in bytes. Raises a ValueError whose text says how to write a size."""
    if text.strip() == "0":
        return 0
    match = _SHAPE.fullmatch(text.strip())
    if match is None or match[2] not in UNITS:
        raise ValueError(
            f"{text!r} is not a size: give a number and its unit, such as 500MB or 2GiB"
        )
    found = float(match[1]) * UNITS[match[2]]
    if found > _MOST:
        raise ValueError(f"{text!r} is too large: give at most {_MOST // 2**40}TiB")
    return round(found)
