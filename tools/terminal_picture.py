"""Runs a command in a terminal and draws its output:

    python -m tools.terminal_picture docs/pictures/run.svg --title 'make run' -- polyrhythm train

The command runs in a terminal of its own (a pty). The screen at the end of the command, with its
colours, is drawn as an SVG by rich. With `--at SECONDS` the screen at that time is drawn instead,
for commands that redraw the screen.
"""

import argparse
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

from rich.console import Console
from rich.text import Text

_MOVES = re.compile(r"\x1b\[(\d*)([ABKGJ])|\x1b\[\?\d+[hl]|\x1b\[2K|\r|\n")
_TIMEOUT_S = 300.0


class Screen:
    """The lines that a terminal would show, with colours. It supports the control sequences of
    rich's live tables (up, erase line, carriage return), and does not wrap lines."""

    def __init__(self) -> None:
        self.lines = [""]
        self._row = 0

    def feed(self, text: str) -> None:
        at = 0
        for match in _MOVES.finditer(text):
            self._write(text[at : match.start()])
            self._move(match)
            at = match.end()
        self._write(text[at:])

    def _write(self, text: str) -> None:
        if text:
            self.lines[self._row] += text

    def _move(self, match: re.Match[str]) -> None:
        if match[0] == "\n":
            self._row += 1
            if self._row == len(self.lines):
                self.lines.append("")
        elif match[2] == "A":
            self._row = max(0, self._row - int(match[1] or 1))
        elif match[2] == "B":
            self._row = min(len(self.lines) - 1, self._row + int(match[1] or 1))
        elif match[2] == "K":
            self.lines[self._row] = ""
        elif match[2] == "J":
            del self.lines[self._row + 1 :]


def record(command: list[str], columns: int, rows: int, at_s: float | None) -> list[str]:
    """Run the command. Returns the lines on the screen at the end, or after `at_s` seconds."""
    terminal, inside = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    environ = {**os.environ, "TERM": "xterm-256color"}
    for name in ("COLUMNS", "LINES", "NO_COLOR"):
        environ.pop(name, None)
    child = subprocess.Popen(command, stdin=inside, stdout=inside, stderr=inside, env=environ)
    os.close(inside)
    screen, pending = Screen(), b""
    until_s = time.monotonic() + (at_s if at_s is not None else _TIMEOUT_S)
    while (rest_s := until_s - time.monotonic()) > 0:
        if not select.select([terminal], [], [], rest_s)[0]:
            break
        try:
            pending += os.read(terminal, 65536)
        except OSError:  # the command has ended and closed its side of the pty
            break
        whole, _, part = pending.rpartition(b"\n")
        screen.feed(whole.decode(errors="replace") + ("\n" if whole else ""))
        pending = part
    screen.feed(pending.decode(errors="replace"))
    if child.poll() is None and at_s is not None:
        child.send_signal(signal.SIGINT)
    os.close(terminal)
    status = child.wait(_TIMEOUT_S)
    if status and at_s is None:
        sys.exit(f"the command failed ({status}): {' '.join(screen.lines).strip()}")
    return screen.lines


def picture(lines: list[str], title: str, columns: int) -> str:
    with open(os.devnull, "w") as nowhere:
        console = Console(record=True, width=columns, file=nowhere, force_terminal=True)
        for line in lines:
            console.print(Text.from_ansi(line.rstrip()), soft_wrap=False)
        return console.export_svg(title=title)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--title", default="")
    parser.add_argument("--columns", type=int, default=110)
    parser.add_argument("--rows", type=int, default=40)
    parser.add_argument("--at", type=float, help="seconds after the start; default: the end")
    parser.add_argument(
        "--prompt", help="the command shown in the title; default: the command that is run"
    )
    parser.add_argument("command", nargs="+")
    args = parser.parse_args()
    lines = record(args.command, args.columns, args.rows, args.at)
    while lines and not lines[-1].strip():
        lines.pop()
    if not lines:
        sys.exit("the command left nothing on the screen")
    shown = f"$ {args.prompt or ' '.join(args.command)}"
    args.picture.parent.mkdir(parents=True, exist_ok=True)
    args.picture.write_text(picture([shown, *lines], args.title, args.columns))


if __name__ == "__main__":
    main()
