"""Numbers and lists of names as text, in the same form in all output."""

from collections.abc import Iterable


def listed(names: Iterable[str]) -> str:
    """The names in one phrase: `a`, `a and b`, `a, b and c`."""
    *first, last = list(names) or ["none"]
    return f"{', '.join(first)} and {last}" if first else last


def either(choices: Iterable[str]) -> str:
    """The choices in one phrase: `a`, `a or b`, `a, b or c`."""
    *first, last = choices
    return f"{', '.join(first)} or {last}" if first else last


def counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def duration(seconds: float) -> str:
    """A duration as text: `3.2 s`, `2 min 5 s`, `3 h 20 min`."""
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
    """A number with four significant digits. None stands for a value that is not finite, for which
    the journal contains null."""
    return "nan" if value is None else f"{value:.4g}"


def measure(value: float) -> str:
    """The value of a metric, with four digits after the point; very small and very large values
    have four significant digits."""
    plain = value == 0 or 1e-2 <= abs(value) < 1e6
    return f"{value:.4f}" if plain else f"{value:.4g}"


def percent(share: float) -> str:
    return f"{100 * share:.0f}%"
