"""Writes files of the run's folder for processes without access to it: the journal, logs and model
files."""

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from polyrhythm.engines.output import MOST_LOG_NBYTES, finish_renaming
from polyrhythm.engines.requests import FilePart
from polyrhythm.observe.journal import FileJournal
from polyrhythm.observe.output import log_file, new_log
from polyrhythm.observe.runs import JOURNAL


class _Timed(msgspec.Struct):
    """The field in a line of the journal with the time at which the line was written."""

    at_s: float = 0.0


class Records:
    """*If a file cannot be written, for example because the disk is full, the job continues.* Lines
    of the journal are held and written later. Output is lost. An incomplete file gets no name, and
    `say` reports it."""

    def __init__(self, run_dir: Path, say: Callable[[str], None]) -> None:
        self._run_dir = run_dir
        self._say = say
        self._journal: FileJournal | None = None
        self._newest = (0.0, 0.0)
        """The time of the newest line on the clock of the journal, and when it came."""
        self._given_up: set[str] = set()
        """The files of the model that lack a part, because it could not be written."""

    def write_lines(self, lines: Sequence[msgspec.Raw]) -> None:
        if self._journal is None:
            self._journal = FileJournal(self._run_dir / JOURNAL)
        for line in lines:
            self._journal.add(bytes(line))
        if lines:
            self._newest = (msgspec.json.decode(lines[-1], type=_Timed).at_s, time.monotonic())

    def note(self, what: str, fields: Mapping[str, Any]) -> None:
        """Write a line of the command that runs the job, after the lead has ended. If the lead's
        process wrote the journal itself, the line is dropped."""
        if self._journal is not None:
            at_s, came_s = self._newest
            now_s = round(at_s + time.monotonic() - came_s, 6)
            self._journal.add(msgspec.json.encode({"at_s": now_s, "what": what, **fields}))

    def retry(self) -> None:
        """Try to write the held lines. Call this a few times a second."""
        if self._journal is not None:
            self._journal.retry()

    def print(self, name: str, data: bytes) -> None:
        """Add output of a process to its log. Rename a large log, and begin a new one."""
        log = log_file(self._run_dir, name)
        with contextlib.suppress(OSError):
            log.parent.mkdir(exist_ok=True)
            with log.open("ab", buffering=0) as file:
                file.write(data)
                large = file.tell() > MOST_LOG_NBYTES
            if large:
                new_log(log).touch()
                finish_renaming(log)

    def write_file(self, part: FilePart) -> None:
        """Write a part of a file of the model. The file gets its name once it is whole."""
        path = self._run_dir / Path(part.name).name
        unfinished = path.with_name(f"{path.name}.part")
        if not part.at:
            self._given_up.discard(path.name)
        if path.name in self._given_up:
            return
        try:
            with unfinished.open("wb" if not part.at else "r+b") as file:
                file.seek(part.at)
                file.write(part.data)
                if part.last:
                    file.flush()
                    os.fsync(file.fileno())
            if part.last:
                unfinished.replace(path)
        except OSError as error:
            self._given_up.add(path.name)
            self._say(f"{path} cannot be written: {error.strerror}")
            with contextlib.suppress(OSError):
                unfinished.unlink()

    def close(self) -> str | None:
        """Returns why lines are missing in the journal; None if it is complete."""
        if self._journal is None:
            return None
        self._journal.close()
        return self._journal.incomplete
