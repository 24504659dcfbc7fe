"""The journal of a run: one line of JSON per event, in the same format for real and simulated runs.

Each line has `at_s` (seconds since the run began), `what` (the kind of line), and the fields of
that kind. The clock of a journal is the host's, or the virtual clock of a simulation.
"""

import contextlib
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Protocol

import msgspec

_encode = msgspec.json.Encoder().encode
_MOST_HELD_NBYTES = 16 << 20
"""The most bytes of lines that are held in memory while they cannot be written."""
_TRY_EVERY_S = 1.0
_ROUTINE = frozenset({"rounds", "waiting", "reported", "passed"})
"""The frequent kinds of lines. If too many lines are held, these are left out first."""


class Page(msgspec.Struct, frozen=True):
    """A part of a journal. `last`: whether the journal ends here. `now_s`: the present time on the
    clock of the journal."""

    lines: bytes
    last: bool
    now_s: float


class Journal(Protocol):
    def note(self, what: str, **fields: Any) -> None: ...


class PagedJournal(Journal, Protocol):
    """A journal that operators can read while the job runs."""

    def page(self, at: int, most_nbytes: int) -> Page:
        """At most this many bytes of the journal, from `at` on. Raises OSError if they cannot be
        read."""
        ...


class MemoryJournal:
    """Keeps the lines in memory, for the inline engine and for tests."""

    def __init__(self, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self.lines: list[dict[str, Any]] = []
        self._clock = clock
        self._began_ns = clock()

    def note(self, what: str, **fields: Any) -> None:
        at_s = (self._clock() - self._began_ns) / 1e9
        self.lines.append({"at_s": at_s, "what": what, **fields})

    def page(self, at: int, most_nbytes: int) -> Page:
        """All lines at once: a journal in memory is short."""
        lines = b"".join(_encode(line) + b"\n" for line in self.lines)
        return Page(lines[at:], True, (self._clock() - self._began_ns) / 1e9)


class _Kind(msgspec.Struct, frozen=True):
    """The field that every line has."""

    what: str


class SentJournal:
    """Keeps the lines of a journal until they are sent to the command that runs the job. It is for
    a process that cannot write into the folder of the run. The process also keeps a copy in a file,
    for operators; if the disk is full, the copy may lack lines."""

    def __init__(self, copy: Path, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._copy = FileJournal(copy, clock)
        self._clock = clock
        self._began_ns = clock()
        self._lock = threading.Lock()
        self._unsent: list[msgspec.Raw] = []

    def note(self, what: str, **fields: Any) -> None:
        with self._lock:
            line = _line(self._clock() - self._began_ns, what, fields)
            self._unsent.append(msgspec.Raw(line))
            self._copy.add(line)

    def page(self, at: int, most_nbytes: int) -> Page:
        return self._copy.page(at, most_nbytes)

    def part(self) -> "JournalPart | None":
        """The new lines since the last call; None if there are none."""
        with self._lock:
            lines, self._unsent = self._unsent, []
        return JournalPart(None, lines) if lines else None

    def retry(self, *, now: bool = False) -> None:
        self._copy.retry(now=now)

    def close(self) -> None:
        self._copy.close()

    fault: str | None = None
    incomplete: str | None = None


def _line(since_ns: int, what: str, fields: Mapping[str, Any]) -> bytes:
    return _encode({"at_s": round(since_ns / 1e9, 6), "what": what, **fields})


class JournalPart(msgspec.Struct, frozen=True):
    """Lines of the journal for the command that runs the job, some of which may not be in the file.
    `at`: the size of the file before the first line that could not be written; all lines after that
    are in this part. None: the process writes no file, and this command writes the lines."""

    at: int | None
    lines: list[msgspec.Raw]


class _HeldLines:
    """Lines in memory, oldest first. If they need too much memory, some are dropped, routine lines
    first. The oldest line is never dropped, because a part of it may be in the file."""

    def __init__(self, most_nbytes: int) -> None:
        self._most_nbytes = most_nbytes
        self._lines: deque[tuple[str, bytes]] = deque()
        self._nbytes = 0
        self.left_out = 0

    def __bool__(self) -> bool:
        return bool(self._lines)

    def add(self, what: str, line: bytes) -> None:
        self._lines.append((what, line))
        self._nbytes += len(line)
        if self._nbytes > self._most_nbytes:
            self._shorten()

    @property
    def nbytes(self) -> int:
        return self._nbytes

    def read(self, at: int, most_nbytes: int) -> bytes:
        """At most this many bytes of all lines, from `at` on."""
        return b"".join(line for _, line in self._lines)[at : at + most_nbytes]

    def first(self) -> bytes:
        return self._lines[0][1]

    def pop(self) -> bytes:
        _, line = self._lines.popleft()
        self._nbytes -= len(line)
        return line

    def _shorten(self) -> None:
        """Drop the older half of the routine lines; if there are none, the older half of all lines.
        Half, so that this happens rarely."""
        oldest = self._lines.popleft()
        routine = sum(what in _ROUTINE for what, _ in self._lines)
        quota = -(-(routine or len(self._lines)) // 2)
        kept = deque([oldest])
        for what, line in self._lines:
            if quota and (what in _ROUTINE or not routine):
                quota -= 1
                self.left_out += 1
                self._nbytes -= len(line)
            else:
                kept.append((what, line))
        self._lines = kept


class FileJournal:
    """A journal on disk. *`note` never raises an error. Lines that cannot be written, for example
    because the disk is full, are held in memory, and are written as soon as that is possible.* A
    line of kind `unwritten` records the beginning of such a failure. A line of kind `written-again`
    records its end, and how many lines are missing because too many were held.

    The command that runs the job reads the file. After the first failure, the owner of the journal
    must hand the lines to this command (`part`).
    """

    def __init__(
        self,
        path: Path,
        clock: Callable[[], int] = time.monotonic_ns,
        most_held_nbytes: int = _MOST_HELD_NBYTES,
    ) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.fault: str | None = None
        """Why the newest lines are not in the file; None if they are."""
        self._path = path
        self._file: IO[bytes] = path.open("a+b", buffering=0)
        self._nbytes = self._file.tell()
        """The size of the whole lines in the file."""
        self._torn_nbytes = 0
        """How many bytes of the first held line are in the file."""
        self._clock = clock
        self._began_ns = clock()
        self._lock = threading.Lock()
        self._held = _HeldLines(most_held_nbytes)
        self._unread = _HeldLines(most_held_nbytes)
        """The lines that the command has not received yet."""
        self._handed_at: int | None = None
        """The size of the file before the first line that could not be written; None if all lines
        could be written."""
        self._fault_since_s = 0.0
        self._tried_s = 0.0

    def note(self, what: str, **fields: Any) -> None:
        with self._lock:
            if self._file.closed:
                return
            self._add(what, fields)
            if self.fault is None:
                self._write()

    def add(self, line: bytes) -> None:
        """Add a line of another process, which already has its time."""
        with self._lock:
            if self._file.closed:
                return
            self._held.add(msgspec.json.decode(line, type=_Kind).what, line + b"\n")
            if self.fault is None:
                self._write()

    def retry(self, *, now: bool = False) -> None:
        """Try to write the held lines. Call this a few times a second. Without `now`, a call does
        nothing if the last attempt was made only a moment ago."""
        with self._lock:
            if self.fault is None or self._file.closed:
                return
            if now or time.monotonic() >= self._tried_s + _TRY_EVERY_S:
                self._write()

    def page(self, at: int, most_nbytes: int) -> Page:
        """A part of the file, or of the lines that are held. The file is read even if its name is
        gone."""
        with self._lock:
            if at < self._nbytes:
                nbytes = min(most_nbytes, self._nbytes - at)
                lines = os.pread(self._file.fileno(), nbytes, at)
            else:
                lines = self._held.read(at - self._nbytes, most_nbytes)
            last = not lines or at + len(lines) >= self._nbytes + self._held.nbytes
            return Page(lines, last, (self._clock() - self._began_ns) / 1e9)

    def part(self) -> JournalPart | None:
        """The new lines for the command that runs the job since the last call; None if there are
        none, or if every line could be written so far."""
        with self._lock:
            if self._handed_at is None or not self._unread:
                return None
            lines = []
            while self._unread:
                lines.append(msgspec.Raw(self._unread.pop()))
            return JournalPart(self._handed_at, lines)

    @property
    def incomplete(self) -> str | None:
        """Why lines are missing in the file; None if it is complete."""
        with self._lock:
            if self.fault is None and self._held.left_out:
                return f"{self._held.left_out} lines are missing in {self._path}"
            return self.fault

    def close(self) -> None:
        self.retry(now=True)
        # closing the file can fail, for example because an earlier line could not be written
        with self._lock, contextlib.suppress(OSError):
            self._file.close()

    def _add(self, what: str, fields: dict[str, Any]) -> None:
        line = _line(self._clock() - self._began_ns, what, fields)
        self._held.add(what, line + b"\n")
        if self._handed_at is not None:
            self._unread.add(what, line)

    def _write(self) -> None:
        """Write the held lines, until that fails."""
        while self._held:
            rest = self._held.first()[self._torn_nbytes :]
            try:
                written = self._file.write(rest)
            except OSError as error:
                self._tried_s = time.monotonic()
                if self.fault is None:
                    self._hold(f"cannot write {self._path}: {error.strerror}")
                return
            # the disk may have had room for a part of the line only
            self._torn_nbytes += written
            if written < len(rest):
                continue
            self._nbytes += len(self._held.pop())
            self._torn_nbytes = 0
            if self.fault is not None and not self._held:
                self.fault = None
                seconds = time.monotonic() - self._fault_since_s
                self._add("written-again", {"seconds": seconds, "missing": self._held.left_out})

    def _hold(self, fault: str) -> None:
        """Hold this line, which cannot be written, and all later ones."""
        self.fault = fault
        self._fault_since_s = time.monotonic()
        if self._handed_at is None:
            self._handed_at = self._nbytes
            self._unread.add("", self._held.first()[:-1])
        self._add("unwritten", {"detail": fault})


def whole_lines(lines: Iterable[bytes]) -> Iterator[tuple[dict[str, Any], int]]:
    """The lines of JSON in a file, each with its number of bytes, without an unfinished last line.
    A full disk or the death of the writer may have cut a line, so that the next one follows its
    beginning. Text that is not JSON is skipped."""
    skipped = 0
    for line in lines:
        if not line.endswith(b"\n"):
            return
        try:
            decoded = msgspec.json.decode(line)
        except msgspec.DecodeError:
            skipped += len(line)
            continue
        yield decoded, skipped + len(line)
        skipped = 0


def read_journal(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a journal, without a last line that a crash has cut off."""
    with path.open("rb") as file:
        for line, _ in whole_lines(file):
            yield line


class JournalReader:
    """Reads the new lines of a journal while it is being written. A journal that is deleted causes
    no error."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[bytes] | None = None
        self._offset = 0
        self._until: int | None = None
        """The position after the last received line, if all lines were in the file; None if no line
        was received."""
        self._handed: deque[bytes] = deque()

    def hand(self, part: JournalPart) -> None:
        """Add lines of which some may not be in the file. After this call, only earlier lines are
        read from the file."""
        if self._until is None:
            self._until = part.at or 0
        self._handed.extend(bytes(line) for line in part.lines)

    def new_lines(self) -> Iterator[dict[str, Any]]:
        yield from self._from_file()
        while self._handed:
            line = self._handed.popleft()
            assert self._until is not None
            self._until += len(line) + 1
            # the line may have been written, and read from the file, meanwhile
            if self._until > self._offset:
                self._offset = self._until
                yield msgspec.json.decode(line)

    def _from_file(self) -> Iterator[dict[str, Any]]:
        if self._until is not None and self._offset >= self._until:
            return
        if self._file is None:
            try:
                self._file = self._path.open("rb")
            except FileNotFoundError:
                return  # there is no journal yet
        self._file.seek(self._offset)
        before_nbytes = math.inf if self._until is None else self._until
        for line, nbytes in whole_lines(self._file):
            if self._offset >= before_nbytes:
                return
            self._offset += nbytes
            yield line

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def __del__(self) -> None:
        self.close()
