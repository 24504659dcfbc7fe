"""Splits what a process writes into lines for a terminal.

*A line is shown when it is complete.* A program that draws a progress bar writes carriage returns
and no line end: of such a line only the newest text is kept, and it can be shown at any time. Bytes
that are not UTF-8, and control characters other than tabs and colours, are shown escaped. Long
lines are cut; the log of the process has them in full.
"""

import re

from polyrhythm.core.values import shown

_MOST_CHARACTERS = 1_000
"""How many characters of a line are shown: so few that a single write to a pipe takes the whole
line."""
_MOST_HELD = 64 << 10
"""How much of an unfinished line is kept in memory."""
_COLOUR = re.compile(r"(\x1b\[[0-9;]*m)")
_OTHER_SEQUENCE = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-ln-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])"
)
_RESET = "\x1b[0m"


class Lines:
    """Divides the output of one process into lines."""

    def __init__(self) -> None:
        self._held = b""
        self._dropped = 0
        """How many bytes of the unfinished line were not kept."""
        self._shown = b""
        """The text of the unfinished line that `redrawn` returned last."""

    def feed(self, data: bytes) -> list[str]:
        """The lines that these bytes complete."""
        first, *others = data.split(b"\n")
        if not others:
            self._hold(first)
            return []
        *between, rest = others
        self._hold(first)
        lines = [*self._finish(), *(text for line in between for text in _readable(line))]
        self._hold(rest)
        return lines

    def redrawn(self) -> list[str]:
        """The newest text of an unfinished line that contains carriage returns, if it has changed
        since the last call."""
        if b"\r" not in self._held or (text := _newest(self._held)) == self._shown:
            return []
        self._shown = text
        return _readable(text)

    def end(self) -> list[str]:
        """Return the unfinished line, because the output has ended."""
        return self._finish() if self._held else []

    def _hold(self, part: bytes) -> None:
        held = self._held + part
        if b"\r" in held.rstrip(b"\r"):
            ended = b"\r" if held.endswith(b"\r") else b""
            held = b"\r" + _newest(held) + ended
        self._dropped += max(0, len(held) - _MOST_HELD)
        self._held = held[:_MOST_HELD]

    def _finish(self) -> list[str]:
        """Return the line that is complete now, and begin the next one."""
        held, dropped, seen = self._held, self._dropped, self._shown
        self._held, self._dropped, self._shown = b"", 0, b""
        if b"\r" in held and _newest(held) == seen:
            # the line is the last state of a progress bar, which the terminal shows already
            return []
        return _readable(held, dropped)


def _newest(line: bytes) -> bytes:
    """What a terminal would show of a line with carriage returns."""
    texts = [text for text in line.split(b"\r") if text.strip()]
    return texts[-1] if texts else b""


def _readable(line: bytes, dropped: int = 0) -> list[str]:
    """The line as text, in a list. The list is empty for a line that only moves the cursor back."""
    if b"\r" in line:
        line = _newest(line)
        if not line:
            return []
    text = line.decode("utf-8", "backslashreplace")
    more = dropped + max(0, len(text) - _MOST_CHARACTERS)
    text = _plain(text[:_MOST_CHARACTERS])
    return [f"{text} … ({more} more characters are in the log)" if more else text]


def _plain(text: str) -> str:
    """The text with its colours and tabs, and with other control characters escaped. Sequences that
    move the cursor are left out."""
    text = text.expandtabs()
    if text.isprintable():
        return text
    parts = _COLOUR.split(_OTHER_SEQUENCE.sub("", text))
    plain = "".join(part if index % 2 else shown(part) for index, part in enumerate(parts))
    return plain + _RESET if len(parts) > 1 else plain
