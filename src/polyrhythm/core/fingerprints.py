"""Fingerprints of data sets, as workers announce them (`Enrol.data`), and their comparison.

A fingerprint is a text. `learn/fingerprint.py` makes it of three parts: a digest of the *form*
(types, shapes, names of columns), a digest of the values that must be equal (integers, texts, bytes
of files), and a *sketch* of the floating-point numbers. *Sketches are compared with a tolerance:
the same file gives numbers that differ in their last bits if it is normalised on different
processors.*
"""

import re

PROJECTIONS, SCALES = 6, 2
"""How many numbers a sketch has: projections of the values to a line, and logarithms of their
magnitudes."""
_UNITS = 2**19
"""A projection is between -1 and 1. It is written as a whole number of units of 1 / `_UNITS`."""
_TOLERANCE = 64
_SCALE_UNITS, _LEAST, _MOST = 256, -120.0, 120.0
_SCALE_TOLERANCE = 1
_PATTERN = re.compile(r"([0-9a-f]{8})([0-9a-f]{8})(?::((?:[0-9a-f]{5}){6})((?:[0-9a-f]{4}){2}))?\Z")


def made(form: str, values: str, projections: list[float], scales: list[float]) -> str:
    """Write these digests (8 hexadecimal digits each) and this sketch as a fingerprint. The sketch
    is empty if the data set has no floating-point numbers."""
    if not projections:
        return form + values
    lines = [min(2 * _UNITS - 1, max(0, round((each + 1) * _UNITS))) for each in projections]
    sizes = [round((min(_MOST, max(_LEAST, each)) - _LEAST) * _SCALE_UNITS) for each in scales]
    return (
        f"{form}{values}:{''.join(f'{n:05x}' for n in lines)}{''.join(f'{n:04x}' for n in sizes)}"
    )


def difference(one: str, other: str) -> str | None:
    """Describe the difference between the data sets with these fingerprints; None if they may be
    equal. An unknown fingerprint (empty) may belong to any data set."""
    if not one or not other or one == other:
        return None
    mine, theirs = _PATTERN.match(one), _PATTERN.match(other)
    if mine is None or theirs is None:
        return "fingerprint"
    if mine[1] != theirs[1]:
        return "form"
    if mine[2] != theirs[2]:
        return "values"
    if mine[3] is None or theirs[3] is None:
        return None if mine[3] == theirs[3] else "form"
    near = _near(mine[3], theirs[3], 5, _TOLERANCE) and _near(
        mine[4], theirs[4], 4, _SCALE_TOLERANCE
    )
    return None if near else "numbers"


def alike(one: str, other: str) -> bool:
    """Whether two data sets with these fingerprints may be the same."""
    return difference(one, other) is None


def _near(one: str, other: str, digits: int, most: int) -> bool:
    starts = range(0, len(one), digits)
    return all(
        abs(int(one[at : at + digits], 16) - int(other[at : at + digits], 16)) <= most
        for at in starts
    )
