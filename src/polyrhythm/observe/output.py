"""Shows the output of a run's servers and workers in the terminal of the command that trains.

Each process writes to a separate file, `logs/worker-3.log` in the folder of the run, and this
module reads the new lines of these files. *So a process never waits for the terminal.* If the
terminal is far behind, some output is not shown, and a line names the file that contains it.
"""

import contextlib
import errno
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from polyrhythm.core.values import name_order, shown
from polyrhythm.observe.words import size

_MOST_CHARACTERS = 1_000
"""How many characters of a line are shown. A line of this length is written to a pipe in one
piece."""
_MOST_HELD = 64 << 10
"""How much of an unfinished line is kept in memory."""
_COLOUR = re.compile(r"(\x1b\[[0-9;]*m)")
_OTHER_SEQUENCE = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-ln-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])"
)
_RESET = "\x1b[0m"


class UnreadFile:
    """A file that drops output which nobody can read any more, because the reader of a pipe has
    closed it (`head -1`), or the terminal is gone.

    *So a closed terminal or pipe neither fails a command nor stops its job.*
    """

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, text: str) -> int:
        try:
            return self._file.write(text)
        except OSError as error:
            self._drop(error)
            return len(text)

    def flush(self) -> None:
        try:
            self._file.flush()
        except OSError as error:
            self._drop(error)

    def _drop(self, error: OSError) -> None:
        """If nobody can read this file any more, send the content of its buffer, and all later
        output, to the null device. Otherwise Python would fail at its exit, when it tries to write
        the buffer again."""
        if error.errno not in (errno.EPIPE, errno.EIO):
            raise error
        with contextlib.suppress(OSError, ValueError):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self._file.fileno())
            os.close(null)


class Unfailing(UnreadFile):
    """A file that drops output that cannot be written, for any reason, even a full disk."""

    def _drop(self, error: OSError) -> None:
        with contextlib.suppress(OSError):
            super()._drop(error)


class Lines:
    """Divides the output of one process into lines.

    *A line is shown when it is complete.* One exception is a progress bar, which a program draws
    with carriage returns and without line ends: only its newest text is kept, and it can be shown
    at any time. Bytes that are not UTF-8, and control characters other than tabs and colours, are
    escaped. Long lines are cut; the log of the process has them in full.
    """

    def __init__(self) -> None:
        self._held = b""
        self._dropped = 0
        """How many bytes of the unfinished line were not kept."""
        self._shown = b""
        """The text of the unfinished line that `redrawn` returned last."""

    def feed(self, data: bytes) -> list[str]:
        """Returns the lines that these bytes complete."""
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
        """Return the unfinished line at the end of the output."""
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
    """The text that a terminal would show of a line with carriage returns."""
    texts = [text for text in line.split(b"\r") if text.strip()]
    return texts[-1] if texts else b""


def _readable(line: bytes, dropped: int = 0) -> list[str]:
    """The line as text, in a list, which is empty for a line that only moves the cursor back."""
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


LOGS = "logs"
_SUFFIX = ".log"
_READ_NBYTES = 64 << 10
_MOST_BEHIND = 32 << 20
"""If this many bytes of a process are not shown yet, most of them are left out."""
_BRIEF = 64 << 10
"""How many bytes of a process are still shown after some were skipped, or after the user has
interrupted the job."""
_REDRAWN_EVERY_S = 3.0


def log_file(run_dir: Path, name: str) -> Path:
    """The log of a server or worker."""
    return run_dir / LOGS / f"{name}{_SUFFIX}"


def older_log(log: Path) -> Path:
    """The new name of a log that has grown large, when a new log begins."""
    return log.with_name(f"{log.name}.1")


def new_log(log: Path) -> Path:
    """The name of a new log until all output of its process goes to it."""
    return log.with_name(f"{log.name}.new")


class ProcessOutput:
    """The new output in the log of one process. The log is open only while it is read, because a
    job may have more processes than this process may open files."""

    def __init__(self, path: Path) -> None:
        self.name = path.name.removesuffix(_SUFFIX)
        self._path = path
        self._inode = 0
        """The file that was read last: the log, or the older log if a new one has begun since."""
        self._offset = 0
        self._missed = False
        """Whether the file that was read last was deleted, perhaps with unread output."""
        self._lines = Lines()
        self._hidden: list[tuple[int, int]] = []
        """Parts of the file that are not shown, because the command prints the same text
        elsewhere."""
        self._redrawn_s = 0.0

    def note(self, text: str) -> None:
        """Add lines to the log. The terminal does not show these lines. An unfinished line in the
        log is ended first."""
        data = text.rstrip("\n").encode("utf-8", "backslashreplace") + b"\n"
        # the lines are lost if the folder of the run is gone or the disk is full
        with contextlib.suppress(OSError):
            with self._path.open("ab+", buffering=0) as log:
                end = log.seek(0, os.SEEK_END)
                if end and os.pread(log.fileno(), 1, end - 1) != b"\n":
                    log.write(b"\n")
                written = log.write(data)
                end = log.tell()
            self._hidden.append((end - written, end))

    def next(self) -> tuple[bool, list[str]]:
        """Read some output. Returns whether there was any, and the lines that are complete now."""
        while self._hidden and self._offset >= self._hidden[0][0]:
            self._offset = max(self._offset, self._hidden.pop(0)[1])
        most = (
            min(_READ_NBYTES, self._hidden[0][0] - self._offset) if self._hidden else _READ_NBYTES
        )
        data = self._read(most)
        self._offset += len(data)
        gap = self._gap()
        return bool(data), [*gap, *self._lines.feed(data)]

    def redrawn(self) -> list[str]:
        """The newest text of a progress bar, every few seconds."""
        now_s = time.monotonic()
        if now_s < self._redrawn_s + _REDRAWN_EVERY_S:
            return []
        if lines := self._lines.redrawn():
            self._redrawn_s = now_s
        return lines

    def end(self) -> list[str]:
        return self._lines.end()

    def skip(self, most: int) -> list[str]:
        """If more than `most` bytes are unread, skip all but the last few of them."""
        path, behind = self._unread()
        lines = self._gap()
        if behind <= most:
            return lines
        lines += self._lines.end()
        left_out = behind - _BRIEF
        self._offset += left_out
        # skip the rest of a line, so that the text begins with a whole one
        begin = self._read(_BRIEF).find(b"\n") + 1
        self._offset += begin
        return [*lines, f"… {size(left_out + begin)} of output are only in {path}"]

    def _gap(self) -> list[str]:
        """A line that says that output may be missing here; empty if no output was lost."""
        if not self._missed:
            return []
        self._missed = False
        lost = f"… output may be missing here: {self._path} was replaced twice before it was shown"
        return [*self._lines.end(), lost]

    def _read(self, most: int) -> bytes:
        path, behind = self._unread()
        if not behind:
            return b""
        try:
            with path.open("rb", buffering=0) as file:
                if os.fstat(file.fileno()).st_ino != self._inode:
                    return b""  # another log has just taken this name; the next call reads it
                file.seek(self._offset)
                return file.read(most)
        except OSError:
            return b""

    def _unread(self) -> tuple[Path, int]:
        """The file with the first unread output, and the number of its unread bytes."""
        try:
            log = self._path.stat()
        except OSError:
            return self._path, 0  # the folder of the run is gone, or a new log is being begun
        self._inode = self._inode or log.st_ino
        if log.st_ino != self._inode:
            older = older_log(self._path)
            with contextlib.suppress(OSError):
                rest = older.stat()
                if rest.st_ino != self._inode:
                    # two logs were begun since the last read, and the file that was being read is
                    # deleted
                    self._missed = True
                    self._inode, self._offset = rest.st_ino, 0
                    self._hidden.clear()
                if rest.st_ino == self._inode and rest.st_size > self._offset:
                    return older, rest.st_size - self._offset
            self._inode, self._offset = log.st_ino, 0
            self._hidden.clear()
        return self._path, max(0, log.st_size - self._offset)


class Output:
    """The output of all processes of a run."""

    def __init__(self, run_dir: Path) -> None:
        self._folder = run_dir / LOGS
        self._processes: dict[str, ProcessOutput] = {}

    def lines(self) -> Iterator[tuple[str, list[str]]]:
        """The new lines of each process with its name, a part at a time, until there are no more.
        The caller may stop at any part and go on later."""
        self._find()
        for process in self._processes.values():
            yield process.name, process.skip(_MOST_BEHIND)
        busy = list(self._processes.values())
        while busy:  # read a part of each process's output in turn
            for process in list(busy):
                read, lines = process.next()
                if not read:
                    busy.remove(process)
                    lines = process.redrawn()
                yield process.name, lines

    def shortened(self) -> Iterator[tuple[str, list[str]]]:
        """Skip all but the last lines of each process, and print a line about it."""
        self._find()
        for process in self._processes.values():
            yield process.name, process.skip(_BRIEF)

    def last_lines(self) -> Iterator[tuple[str, list[str]]]:
        """The unfinished lines of processes that have ended."""
        for process in self._processes.values():
            yield process.name, process.end()

    def note(self, name: str, text: str) -> None:
        """Add lines to the log of a process. The terminal does not show them."""
        self._find()
        if (process := self._processes.get(name)) is not None:
            process.note(text)

    def _find(self) -> None:
        """Open the logs of processes that were started since the last call."""
        try:
            found = {entry.name for entry in os.scandir(self._folder)}
        except OSError:
            return  # no process has begun a log, so the folder of logs does not exist yet
        for file in sorted(found, key=name_order):
            name = file.removesuffix(_SUFFIX)
            if name != file and name not in self._processes:
                self._processes[name] = ProcessOutput(self._folder / file)
