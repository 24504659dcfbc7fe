"""Numbers and lists of names as text, in the same form in all output."""

import os
import re
from collections.abc import Iterable
from typing import IO


def listed(names: Iterable[str]) -> str:
    """The names in one phrase: `a`, `a and b`, `a, b and c`."""
    *first, last = list(names) or ["none"]
    return f"{', '.join(first)} and {last}" if first else last


def either(choices: Iterable[str]) -> str:
    """The choices in one phrase: `a`, `a or b`, `a, b or c`."""
    *first, last = choices
    return f"{', '.join(first)} or {last}" if first else last


def counted(count: int, noun: str) -> str:
    return f"{grouped(count)} {noun}" if count == 1 else f"{grouped(count)} {noun}s"


def duration(seconds: float) -> str:
    """A duration as text: `3.2 s`, `2 min 5 s`, `3 h 20 min`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min"


def rough(seconds: float) -> str:
    """A duration without false precision, for estimates and for times that change while they are
    read: `3 s`, `2 min 5 s`, `25 min`, `3 h 20 min`."""
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 10 else duration(60 * round(seconds / 60))


def grouped(count: float) -> str:
    """A number of things, with commas between thousands. A number below ten has one decimal, unless
    it is whole."""
    return f"{count:.1f}" if count < 10 and count != round(count) else f"{count:,.0f}"


def size(nbytes: float) -> str:
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= factor:
            return f"{nbytes / factor:.1f} {unit}"
    return f"{nbytes:.0f} B"


def number(value: float | None) -> str:
    """A number with four significant digits. None means a value that is not finite; the journal
    contains null for it."""
    return "nan" if value is None else f"{value:.4g}"


def measure(value: float) -> str:
    """The value of a metric with four decimals; very small and very large values have four
    significant digits."""
    plain = value == 0 or 1e-2 <= abs(value) < 1e6
    return f"{value:.4f}" if plain else f"{value:.4g}"


def percent(share: float) -> str:
    return f"{100 * share:.0f}%"


_TIME = re.compile(r" *\d+\.\d s  ")
"""The time with which a sentence of a run's story begins."""
_TRACEBACK = "Traceback (most recent call last):"


def width_of(file: IO[str] | None) -> int | None:
    """The number of columns of the terminal to which this file writes; None if it is no terminal. Lines
    in files and pipes are not broken, because programs read them."""
    try:
        if file is None or not file.isatty():
            return None
        return os.get_terminal_size(file.fileno()).columns or None
    except (OSError, ValueError):  # the file is closed, or has no descriptor
        return None


def wrapped(text: str, width: int | None) -> str:
    """The text with lines of at most `width` columns, broken between words. Longer words, such as
    paths, stay whole, and so do the lines of a traceback. None: the text as it is."""
    if width is None:
        return text
    head, found, traceback = text.partition(_TRACEBACK)
    lines = [part for line in head.split("\n") for part in _wrap(line, width)]
    return "\n".join(lines) + found + traceback


_NO_BREAK = "\u00a0"
_BOUND = re.compile(r"(?<=\d) (?=[^\W\d])|(?<=\w) (?=\d)")
"""The spaces at which no line is broken: those between a number and its unit or noun."""
_COMMAND = re.compile(r"polyrhythm (?:worker|server) (?:\S+ )?--connect \S+")
"""A command for the user to copy, which must stay on one line."""


def _wrap(line: str, width: int) -> list[str]:
    if _cells(line) <= width:
        return [line]
    time = _TIME.match(line)
    indent = time.end() if time else len(line) - len(line.lstrip()) + 2
    bound = _COMMAND.sub(lambda found: found[0].replace(" ", _NO_BREAK), line.strip())
    first, *words = _BOUND.sub(_NO_BREAK, bound).split(" ")
    rows = [" " * (len(line) - len(line.lstrip())) + first]
    for word in words:
        if _cells(rows[-1]) + 1 + _cells(word) <= width:
            rows[-1] += f" {word}"
        elif word:
            rows.append(" " * indent + word)
    return [row.replace(_NO_BREAK, " ") for row in rows]


def _cells(text: str) -> int:
    """The number of columns that the text fills in a terminal."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)
