"""A terminal (pty) in which tests run commands: its screen, its size, and what is typed in it.

The screen wraps lines at its width. When the width changes, wrapped lines are joined and wrapped
again, as common terminals do.
"""

import codecs
import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.commands.start import start

_MOVES = re.compile(
    r"\x1b\[(?P<count>\d*)(?P<move>[ABCDGHJK])|\x1b\[\?\d+[hl]|\x1b\[[0-9;]*m|\r|\n|\x07|\x08"
)
_UNFINISHED = re.compile(r"\x1b(\[[0-9;?]*)?$")
_ROWS = 40


class Screen:
    """All rows that the terminal has ever shown, and the cursor. The last rows are those on the
    screen."""

    def __init__(self, columns: int) -> None:
        self.columns = columns
        self.rows: list[str] = [""]
        self._joined = [False]
        """For each row, whether it continues the row before it."""
        self.row = self.column = 0
        self._text = ""

    def resize(self, columns: int) -> None:
        self.columns = columns
        lines: list[str] = []
        at = 0
        for index, (text, joined) in enumerate(zip(self.rows, self._joined, strict=True)):
            if joined:
                lines[-1] += text
            else:
                lines.append(text)
            if index == self.row:
                at = len(lines) - 1
                offset = len(lines[-1]) - len(text) + self.column
        self.rows, self._joined = [], []
        for index, line in enumerate(lines):
            first = len(self.rows)
            parts = [line[i : i + columns] for i in range(0, len(line), columns)] or [""]
            self.rows += parts
            self._joined += [False] + [True] * (len(parts) - 1)
            if index == at:
                extra = min(offset // columns, len(parts) - 1)
                self.row, self.column = first + extra, offset - extra * columns

    def feed(self, text: str) -> None:
        text = self._text + text
        unfinished = _UNFINISHED.search(text)
        self._text = "" if unfinished is None else unfinished[0]
        text = text[: len(text) - len(self._text)]
        at = 0
        for match in _MOVES.finditer(text):
            self._write(text[at : match.start()])
            self._move(match)
            at = match.end()
        self._write(text[at:])

    def _write(self, text: str) -> None:
        for character in text:
            if self.column >= self.columns:
                self._next_row(joined=True)
                self.column = 0
            row = self.rows[self.row].ljust(self.column)
            self.rows[self.row] = row[: self.column] + character + row[self.column + 1 :]
            self.column += 1

    def _next_row(self, *, joined: bool = False) -> None:
        self.row += 1
        if self.row == len(self.rows):
            self.rows.append("")
            self._joined.append(joined)

    def _move(self, match: re.Match[str]) -> None:
        count = int(match["count"] or 1)
        top = max(0, len(self.rows) - _ROWS)
        if match[0] == "\n":
            self._next_row()
        elif match[0] == "\r":
            self.column = 0
        elif match["move"] == "A":
            self.row = max(top, self.row - count)
        elif match["move"] == "B":
            self.row = min(len(self.rows) - 1, self.row + count)
        elif match["move"] == "K":
            whole = match["count"] == "2"
            self.rows[self.row] = "" if whole else self.rows[self.row][: self.column]
            self._joined[self.row] = False

    @property
    def text(self) -> str:
        return "\n".join(row.rstrip() for row in self.rows)


class Terminal:
    """A command in a terminal. On exit the command is killed if it still runs."""

    def __init__(self, *args: object, cwd: Path, columns: int = 80, fresh: bool = False) -> None:
        """`fresh`: execute the console script in place of a fork (see `start`)."""
        self._outside, inside = pty.openpty()
        self.screen = Screen(columns)
        self._set_size(columns)
        env = {name: value for name, value in os.environ.items() if name not in _SIZES}
        self.process = start(
            *args,
            cwd=cwd,
            env={**env, "TERM": "xterm-256color"},
            stdin=inside,
            stdout=inside,
            stderr=inside,
            start_new_session=True,
            fresh=fresh,
        )
        os.close(inside)
        self.raw = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._closed = False

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait(20)
        os.close(self._outside)

    def _set_size(self, columns: int) -> None:
        fcntl.ioctl(self._outside, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, columns, 0, 0))

    def resize(self, columns: int) -> None:
        """Change the width, as a user does with the window."""
        self._set_size(columns)
        self.screen.resize(columns)
        os.kill(self.process.pid, signal.SIGWINCH)

    def type(self, text: str) -> None:
        os.write(self._outside, text.encode())

    def interrupt(self) -> None:
        os.kill(self.process.pid, signal.SIGINT)

    def read(self, timeout_s: float) -> None:
        """Read what the command writes within this time, and apply it to the screen."""
        if self._closed:
            time.sleep(min(timeout_s, 0.05))
            return
        if not select.select([self._outside], [], [], timeout_s)[0]:
            return
        try:
            data = self._decoder.decode(os.read(self._outside, 65536))
        except OSError:  # the command has ended and closed its side of the pty
            self._closed = True
            return
        self.raw += data
        self.screen.feed(data)

    def wait_for(self, done: Callable[[], Any], what: str, limit_s: float = 110.0) -> None:
        """Read until `done` is true."""
        until_s = time.monotonic() + limit_s
        while not done():
            assert time.monotonic() < until_s, f"not within {limit_s:.0f} s: {what}\n{self.raw}"
            self.read(0.1)

    def wait_for_text(self, text: str) -> None:
        """Wait until the command writes this text once more."""
        begin = len(self.raw)
        self.wait_for(lambda: text in self.raw[begin:], repr(text))

    def end(self) -> int:
        """Read until the command ends, and return its exit status."""
        self.wait_for(lambda: self.process.poll() is not None, "the command ends")
        for _ in range(1000):
            if self._closed or not select.select([self._outside], [], [], 0)[0]:
                break
            self.read(0)
        assert self.process.returncode is not None
        return self.process.returncode


_SIZES = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TERM")
