"""Writes values as YAML, for manifests that are templates with comments."""

import re
from collections.abc import Iterable

_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*", re.ASCII)
_NOT_TEXT = frozenset(("true", "false", "yes", "no", "on", "off", "null", "y", "n"))


def scalar(value: object) -> str:
    """A text as YAML on one line."""
    text = str(value)
    plain = _PLAIN.fullmatch(text) and text.lower() not in _NOT_TEXT
    return text if plain else quoted(text)


def listed(words: Iterable[str], indent: int) -> str:
    """The words of a command as a list. Each line but the first begins with a flag."""
    lines: list[list[str]] = [[]]
    for word in words:
        if word.startswith("--"):
            lines.append([])
        lines[-1].append(word)
    inside = f",\n{'':{indent}}".join(", ".join(map(quoted, line)) for line in lines)
    return f"[\n{'':{indent}}{inside}]"


def quoted(text: str) -> str:
    """A text in quotes. Characters that are not ASCII are escaped."""
    return f'"{"".join(map(_escaped, text))}"'


def _escaped(char: str) -> str:
    if char in '"\\':
        return f"\\{char}"
    return char if " " <= char <= "~" else f"\\U{ord(char):08x}"


def block(text: str, indent: int) -> str:
    """A text of several lines as a literal block, or as one quoted line if a block cannot hold it."""
    printable = all(char.isprintable() or char in "\n\t" for char in text)
    if not printable or not text.strip():
        return quoted(text)
    keep = "+" if text.endswith("\n") else "-"
    body = "\n".join(f"{'':{indent}}{line}" if line else "" for line in text.split("\n"))
    return (
        f"|2{keep}\n{body.rstrip(' ')}" if keep == "-" else f"|2{keep}\n{body}".removesuffix("\n")
    )
