"""The journal of a run: one line of JSON per event, in the same format for real and simulated runs.

Each line has `at_s` (seconds since the run began), `what` (the kind of line), and the fields of
that kind. The clock of a journal is the host's, or the virtual clock of a simulation.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, Protocol

import msgspec

_encode = msgspec.json.Encoder().encode


class Journal(Protocol):
    def note(self, what: str, **fields: Any) -> None: ...


class MemoryJournal:
    """Keeps the lines in memory, for the inline engine and for tests."""

    def __init__(self, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self.lines: list[dict[str, Any]] = []
        self._clock = clock
        self._began_ns = clock()

    def note(self, what: str, **fields: Any) -> None:
        at_s = (self._clock() - self._began_ns) / 1e9
        self.lines.append({"at_s": at_s, "what": what, **fields})


class FileJournal:
    """A journal on disk. *If a line cannot be written, that line and all later ones are lost, and
    `fault` says why.* `note` never raises an error, so the owner of the journal must check
    `fault`."""

    def __init__(self, path: Path, clock: Callable[[], int] = time.monotonic_ns) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.fault: str | None = None
        self._path = path
        self._file: IO[bytes] = path.open("ab")
        self._clock = clock
        self._began_ns = clock()
        self._lock = threading.Lock()

    def note(self, what: str, **fields: Any) -> None:
        at_s = round((self._clock() - self._began_ns) / 1e9, 6)
        line = _encode({"at_s": at_s, "what": what, **fields})
        with self._lock:
            if self._file.closed or self.fault is not None:
                return
            try:
                self._file.write(line + b"\n")
                self._file.flush()
            except OSError as error:
                self.fault = f"cannot write {self._path}: {error.strerror}"

    def close(self) -> None:
        # closing the file can fail, for example because an earlier line could not be written
        with self._lock, contextlib.suppress(OSError):
            self._file.close()


def read_journal(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a journal, without a last line that a crash has cut off."""
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield msgspec.json.decode(line)


class JournalReader:
    """Reads the new lines of a journal while it is being written. A journal that is deleted causes
    no error."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[bytes] | None = None
        self._at = 0

    def new_lines(self) -> Iterator[dict[str, Any]]:
        if self._file is None:
            try:
                self._file = self._path.open("rb")
            except FileNotFoundError:
                return  # there is no journal yet
        self._file.seek(self._at)
        for line in self._file:
            if not line.endswith(b"\n"):
                return
            self._at += len(line)
            yield msgspec.json.decode(line)

    def __del__(self) -> None:
        if self._file is not None:
            self._file.close()
