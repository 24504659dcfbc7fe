"""Limits the size of the logs of a job's processes.

*When a log is larger than the limit, its process renames it (`worker-3.log.1`) and begins a new one.*
So the newest output is always kept, and a process needs at most about twice the limit on the disk.

*A log is replaced only if an earlier check has found the same file.* Before that, the terminal may still
be showing the rest of the previous log, which is deleted when this log is renamed.
"""

import contextlib
import time
from pathlib import Path

from polyrhythm.engines.output import finish_renaming
from polyrhythm.engines.processes import Processes
from polyrhythm.engines.requests import Told
from polyrhythm.observe.output import log_file

MOST_LOG_NBYTES = 64 << 20
_LOOK_EVERY_S = 1.0


class Logs:
    def __init__(self, run_dir: Path, processes: Processes) -> None:
        self._run_dir = run_dir
        self._processes = processes
        self._looked_s = 0.0
        self._found: dict[str, int] = {}
        """Per process, the inode of the log that the last check found."""
        self._told: dict[str, int] = {}
        """For each process, the inode of the log that it was told to replace."""

    def ended(self, name: str) -> None:
        """A process has ended. It may have been killed while it began a new log."""
        finish_renaming(log_file(self._run_dir, name))

    def limit(self) -> None:
        """Tell processes with large logs to begin new ones. Call this a few times a second."""
        now_s = time.monotonic()
        if now_s < self._looked_s + _LOOK_EVERY_S:
            return
        self._looked_s = now_s
        for child in self._processes.all:
            name = child.request.name
            with contextlib.suppress(OSError):  # a process that has written nothing has no log yet
                log = log_file(self._run_dir, name).stat()
                new = self._found.get(name) != log.st_ino
                self._found[name] = log.st_ino
                if new or self._told.get(name) == log.st_ino:
                    continue
                if log.st_size > MOST_LOG_NBYTES:
                    self._told[name] = log.st_ino
                    self._processes.tell(child, Told(new_log=True))
