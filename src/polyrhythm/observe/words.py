"""Numbers, names and reasons in words, the same wherever people read them."""

import re
from collections.abc import Iterable
from typing import Any

from polyrhythm.core.machine import WORDS
from polyrhythm.observe.state import RunState

_LINK_ENDS = ("closed the link", "the link to ")
_WORKER = re.compile(r"\bw(\d+)\b")


def reason_in_words(code: str, fields: dict[str, Any], state: RunState) -> str:
    """A reason's sentence with workers by name; an unknown code keeps its own name and fields."""
    try:
        text = WORDS[code].format_map(fields)
    except (KeyError, ValueError, TypeError):
        text = " ".join([code, *(f"{key}={value}" for key, value in sorted(fields.items()))])
    return with_names(text, state)


def with_names(text: str, state: RunState) -> str:
    """`w3` becomes the name that worker 3 came with."""
    return _WORKER.sub(lambda match: state.name_of(int(match[1])), text)


def parting(reason: str, state: RunState) -> str:
    """Why a worker left: `its link ended` for what a socket says in many ways."""
    return "its link ended" if link_ended(reason) else with_names(reason, state)


def link_ended(reason: str) -> bool:
    return any(words in reason for words in _LINK_ENDS)


def listed(names: Iterable[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    *first, last = list(names) or ["nobody"]
    return f"{', '.join(first)} and {last}" if first else last


def counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def duration(seconds: float) -> str:
    """`3.2 s`, `2 min 5 s`, `3 h 20 min`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def size(nbytes: float) -> str:
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= factor:
            return f"{nbytes / factor:.1f} {unit}"
    return f"{nbytes:.0f} B"


def number(value: float | None) -> str:
    """Four digits; a journal writes null for what is not a number."""
    return "nan" if value is None else f"{value:.4g}"


def percent(share: float) -> str:
    return f"{100 * share:.0f}%"
