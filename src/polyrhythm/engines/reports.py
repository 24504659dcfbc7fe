"""Reports of child processes. Each report is recorded at once for `polyrhythm why`. If several
processes report the same thing, the user sees one line."""

import time
from collections.abc import Callable
from pathlib import Path

from polyrhythm.core.effects import TRACE_ENDS
from polyrhythm.engines.requests import ReportLine
from polyrhythm.observe.watch import WATCH, WatchWriter, report_in_words

_GATHER_S = 0.3


class Reports:
    def __init__(self, run_dir: Path, say: Callable[[str], None]) -> None:
        self._watch = WatchWriter(run_dir / WATCH)
        self._say = say
        self._unsaid: dict[str, tuple[ReportLine, list[str]]] = {}
        """For each kind of report: the first one, and the names of all processes that reported
        it."""
        self._since_s = 0.0

    def take(self, name: str, note: ReportLine) -> None:
        if note.what != TRACE_ENDS:
            self._watch.note(name, note.what, note.fields)
        if not self._unsaid:
            self._since_s = time.monotonic()
        self._unsaid.setdefault(note.what, (note, []))[1].append(name)

    def ended(self, name: str) -> None:
        self._watch.ended(name)

    def show(self, *, now: bool = False) -> None:
        """Show the reports. Without `now`, wait a moment first, because other processes may report
        the same thing."""
        if now or time.monotonic() > self._since_s + _GATHER_S:
            for note, names in self._unsaid.values():
                self._say(report_in_words(note.what, names, note.fields))
            self._unsaid.clear()
