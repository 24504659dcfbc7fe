"""Fingerprints of data sets, as workers announce them (`Enrol.data`), and their comparison.

A fingerprint is a text. One that `learn/fingerprint.py` makes from values has two parts: a digest of
what must be equal (types, shapes, integers), and a *sketch* of the floating-point numbers. *Sketches
are compared with a tolerance: the same file, normalised on two kinds of processors, may differ in
the last bits of its numbers.*
"""

import re

PROJECTIONS, SCALES = 6, 2
"""How many numbers a sketch has: projections of the values to a line, and logarithms of sizes."""
_UNITS = 2**19
"""The units of a projection, which is between -1 and 1."""
_TOLERANCE = 64
_SCALE_UNITS, _LEAST, _MOST = 256, -120.0, 120.0
_SCALE_TOLERANCE = 1
_PATTERN = re.compile(r"([0-9a-f]{16}):((?:[0-9a-f]{5}){6})((?:[0-9a-f]{4}){2})\Z")


def made(digest: str, projections: list[float], scales: list[float]) -> str:
    """The fingerprint with this digest (16 hexadecimal digits) and sketch."""
    lines = [min(2 * _UNITS - 1, max(0, round((each + 1) * _UNITS))) for each in projections]
    sizes = [round((min(_MOST, max(_LEAST, each)) - _LEAST) * _SCALE_UNITS) for each in scales]
    return f"{digest}:{''.join(f'{n:05x}' for n in lines)}{''.join(f'{n:04x}' for n in sizes)}"


def alike(one: str, other: str) -> bool:
    """Whether two data sets with these fingerprints may be the same. An unknown fingerprint (empty)
    may be any."""
    if not one or not other or one == other:
        return True
    mine, theirs = _PATTERN.match(one), _PATTERN.match(other)
    if mine is None or theirs is None or mine[1] != theirs[1]:
        return False
    return _near(mine[2], theirs[2], 5, _TOLERANCE) and _near(
        mine[3], theirs[3], 4, _SCALE_TOLERANCE
    )


def _near(one: str, other: str, digits: int, most: int) -> bool:
    starts = range(0, len(one), digits)
    return all(
        abs(int(one[at : at + digits], 16) - int(other[at : at + digits], 16)) <= most
        for at in starts
    )
