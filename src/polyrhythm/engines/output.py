"""Sends the output of a child process to its log, `logs/worker-3.log` in the folder of the run. The
command that trains shows the lines of the log in its terminal (`observe/output.py`).

The descriptors 1 and 2 refer to the log, so it also contains the output of C code and of processes
that the user's code starts. *If a log cannot be written, training goes on.*
"""

import contextlib
import ctypes
import faulthandler
import io
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Never

from polyrhythm.errors import UsageError
from polyrhythm.observe.output import log_file, new_log, older_log

_LINE_BUFFERED = 1
"""The value of `_IOLBF` in the C library."""
MOST_LOG_NBYTES = 64 << 20
_LOOK_EVERY_S = 1.0
_replacing = threading.Lock()
"""This lock is held while a log is replaced. `end` takes the lock and never releases it, so that no
log is replaced afterwards."""


def send_to(log: Path) -> None:
    """Append all output of this process to this file. SIGUSR1 makes the process write the stack of
    each of its threads there."""
    if not _begin(log):
        return
    unfinished = _Unfinished()
    sys.stdout = _stream(1, unfinished)
    sys.stderr = _stream(2, unfinished)
    # `stdout` is the name of this variable in glibc; other C libraries name it differently
    with contextlib.suppress(AttributeError, ValueError):
        libc = ctypes.CDLL(None)
        stdout = ctypes.c_void_p.in_dll(libc, "stdout")
        libc.setvbuf(stdout, None, _LINE_BUFFERED, 0)
    faulthandler.enable(file=2)
    faulthandler.register(signal.SIGUSR1, file=2)
    sys.breakpointhook = _no_debugger


def begin_again(log: Path) -> None:
    """Begin a new log, because the present one is larger than the limit. The present log is renamed
    (`worker-3.log.1`) and replaces the one that was renamed before. So the newest output is always
    kept, and a process needs at most about twice the limit on the disk.

    The new log gets its name only when all output goes to it. So a reader that finds the new log
    knows that the renamed log is complete. The new log is created before the earlier renamed log is
    deleted, so the two have different inodes, by which readers recognise a log.

    *A log is replaced only if an earlier check has found the same file.* Before that, the terminal
    may still be showing the rest of the previous log, which is deleted when this log is renamed.
    """
    with _replacing:
        if _begin(new_log(log)):
            _rename(log)


def finish_renaming(log: Path) -> None:
    """Give the files of a log their names, if its process has died while it began a new log."""
    if new_log(log).exists():
        _rename(log)


def _rename(log: Path) -> None:
    with contextlib.suppress(OSError):  # a process that died may have renamed this file already
        log.rename(older_log(log))
    with contextlib.suppress(OSError):
        new_log(log).rename(log)


def end() -> None:
    """Write the buffered output. Call this when the process ends. No new log is begun after it,
    because the process could end before the new log has its name."""
    _replacing.acquire()
    flush()


def flush() -> None:
    """Write what is still in the buffers of Python and of the C library."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).fflush(None)


def _begin(log: Path) -> bool:
    try:
        log.parent.mkdir(exist_ok=True)
        fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    except OSError:
        return False  # the folder of the run is gone, or the disk is full
    for target in (1, 2):
        os.dup2(fd, target)
    os.close(fd)
    return True


def _no_debugger(*args: object, **keywords: object) -> Never:
    raise UsageError(
        "breakpoint() needs a worker with a terminal: run the job with --workers 1 --engine inline"
    )


class _Unfinished:
    """The line that this process has begun and not finished yet."""

    def __init__(self) -> None:
        self.writer = 0
        """The descriptor to which the line was written; 0 if there is no unfinished line."""
        self.redrawn = False
        """Whether the line contains a carriage return, as the line of a progress bar does."""
        self.at_begin = False
        """Whether the line ends with a carriage return."""


class _Log(io.FileIO):
    """A descriptor of the log. *Output begins a new line if the unfinished line before it was
    written to the other descriptor, or is a progress bar.* So lines are not joined."""

    def __init__(self, fd: int, unfinished: _Unfinished) -> None:
        super().__init__(fd, "w", closefd=False)
        self._unfinished = unfinished
        self._lost = 0
        """How many bytes could not be written, for example because the disk is full, and are not
        mentioned in the log yet."""
        self._cut = False
        """Whether the last line in the log is not finished."""

    def write(self, data: object) -> int:
        written = bytes(data)  # type: ignore[call-overload]
        if written:
            self._put(written)
            self._note(written)
        return len(written)

    def _put(self, written: bytes) -> None:
        """Write to the log. If the write fails, the output is lost, and the log later reports how
        much."""
        before = self._before(written[:1])
        if self._lost:
            line_end = "\n" if self._cut else ""
            before = f"{line_end}… {self._lost} bytes of output are lost\n".encode()
        data = before + written
        nbytes = 0
        with contextlib.suppress(OSError):
            nbytes = super().write(data) or 0
        if nbytes == len(data):
            self._lost = 0
        else:  # the disk may have had room for a part
            self._lost += len(written) - max(0, nbytes - len(before))
        self._cut = self._cut if not nbytes else data[nbytes - 1 : nbytes] != b"\n"

    def _before(self, first: bytes) -> bytes:
        line = self._unfinished
        if not line.writer or line.at_begin or first in b"\r\n":
            return b""
        return b"\n" if line.writer != self.fileno() or line.redrawn else b""

    def _note(self, written: bytes) -> None:
        line = self._unfinished
        rest = written[written.rfind(b"\n") + 1 :]
        if len(rest) < len(written):
            line.redrawn = False
        line.writer = self.fileno() if rest else 0
        line.redrawn = line.redrawn or b"\r" in rest
        line.at_begin = rest.endswith(b"\r")


def _stream(fd: int, unfinished: _Unfinished) -> io.TextIOWrapper:
    """A text stream that writes whole lines: every line is one write."""
    buffer = io.BufferedWriter(_Log(fd, unfinished), 64 << 10)
    return io.TextIOWrapper(buffer, "utf-8", "backslashreplace", line_buffering=True)


class LogSizes:
    """Finds the logs that have grown too large."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._looked_s = 0.0
        self._found: dict[str, int] = {}
        """Per process, the inode of the log that the last check found."""
        self._told: dict[str, int] = {}
        """For each process, the inode of the log that it must replace."""

    def large(self, names: Iterable[str]) -> Iterator[str]:
        """Those of these processes that must begin new logs. Call this a few times a second."""
        now_s = time.monotonic()
        if now_s < self._looked_s + _LOOK_EVERY_S:
            return
        self._looked_s = now_s
        for name in names:
            with contextlib.suppress(OSError):  # a process that has written nothing has no log yet
                log = log_file(self._run_dir, name).stat()
                new = self._found.get(name) != log.st_ino
                self._found[name] = log.st_ino
                if new or self._told.get(name) == log.st_ino:
                    continue
                if log.st_size > MOST_LOG_NBYTES:
                    self._told[name] = log.st_ino
                    yield name


_ARG_START, _ARG_END = 48, 49
"""The fields of /proc/self/stat with the addresses of the command line (see proc(5))."""
_MOST_COMM = 15


def set_title(title: str, short: str = "") -> None:
    """Set the title of this process. A title that is longer than the command line of the process is
    cut. `short`: the title for programs that show at most 15 characters; by default the end of the
    title."""
    # some systems have no /proc/self/stat
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        # the text after the last parenthesis begins with field 3
        start, end = int(fields[_ARG_START - 3]), int(fields[_ARG_END - 3])
        if 0 < start < end:
            # Keep a 0 at the end, so that `ps` does not show the environment, which follows in
            # memory, as part of the title.
            room = end - start - 1
            text = title.encode()[:room].decode(errors="ignore").encode()
            ctypes.memmove(start, text.ljust(room, b"\0"), room)
        Path("/proc/self/comm").write_text((short or title)[:_MOST_COMM])
