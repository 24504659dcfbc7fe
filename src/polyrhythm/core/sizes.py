"""Sizes as users write them: a number and its unit, such as 500MB or 2GiB. 0 needs no unit."""

import re

_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_MOST = 2**60
"""The largest size that is accepted: a larger one is a mistake, and would not fit into the 64 bits
of a number in a message."""
_SHAPE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-zA-Z]+)", re.ASCII)
_UNIT = re.compile(r"([kmgt]?)b|([kmgt])|([kmgt])ib?", re.ASCII | re.IGNORECASE)
_HOW = (
    "give a number and its unit, such as 500MB or 2GiB; the units are B, KB, MB, GB, TB (powers of"
    " 1000, also K, M, G, T) and KiB, MiB, GiB, TiB (powers of 1024, also Ki, Mi, Gi, Ti)"
)


def bytes_of_unit(unit: str) -> int | None:
    """The number of bytes of a unit, or None if the text is no unit. Lower and upper case mean the
    same. But a unit with a capital letter and a small b, such as `Mb`, is refused, because it may
    mean bits."""
    match = _UNIT.fullmatch(unit)
    if match is None or (unit[-1] == "b" and not unit.islower()):
        return None
    decimal, short, binary = match.groups()
    if binary is not None:
        return int(1024 ** _POWERS[binary.lower()])
    return int(1000 ** _POWERS[(decimal or short or "").lower()])


def parse_size(text: str) -> int:
    """The size in bytes. Raises a ValueError whose text says how to write a size."""
    if text.strip() == "0":
        return 0
    match = _SHAPE.fullmatch(text.strip())
    factor = None if match is None else bytes_of_unit(match[2])
    if match is None or factor is None:
        raise ValueError(f"{text!r} is not a size: {_HOW}")
    found = float(match[1]) * factor
    if found > _MOST:
        raise ValueError(f"{text!r} is too large: give at most {_MOST // 2**40}TiB")
    return round(found)
