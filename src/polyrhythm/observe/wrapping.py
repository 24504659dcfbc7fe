"""Breaks long lines of text for a terminal between words."""

import os
import re
import textwrap
from typing import IO

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


def _wrap(line: str, width: int) -> list[str]:
    if len(line) <= width:
        return [line]
    time = _TIME.match(line)
    indent = time.end() if time else len(line) - len(line.lstrip()) + 2
    return textwrap.wrap(
        line,
        width,
        subsequent_indent=" " * indent,
        replace_whitespace=False,
        break_long_words=False,
        break_on_hyphens=False,
    )
