"""Messages about workers that failed. Workers that fail for the same reason at about the same time
share one line."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from polyrhythm.core.effects import TRACE_ENDS
from polyrhythm.engines.requests import ReportLine
from polyrhythm.observe.watch import WATCH, WatchWriter, report_in_words

_GATHER_S = 0.5


def failure_lines(failures: Mapping[str, str]) -> list[str]:
    """One line for each reason. `failures`: for each failed process, by its name, the reason. A reason
    may begin with the name."""
    reasons: dict[str, list[str]] = {}
    for name, how in sorted(failures.items()):
        reasons.setdefault(how.removeprefix(f"{name}, "), []).append(name)
    return [f"{', '.join(names)} failed: {how}" for how, names in reasons.items()]


def first_line(failed: str) -> str:
    """The reason without the traceback that may follow it, for the journal."""
    return failed.partition("\n")[0]


class FailureLines:
    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._unsaid: dict[str, str] = {}
        self._since_s = 0.0

    def note(self, name: str, how: str) -> None:
        self._unsaid[name] = how
        self._since_s = time.monotonic()

    def say(self, *, now: bool = False) -> None:
        """Show the failures. Unless `now` is given, first wait a moment, because other workers may
        fail for the same reason."""
        if now or time.monotonic() > self._since_s + _GATHER_S:
            for line in self.take():
                self._say(line)

    def take(self, said: str = "") -> list[str]:
        """Return the lines that were not shown yet, for use in another message. Leave out failures
        whose reason is in the text `said`."""
        unsaid = {name: how for name, how in self._unsaid.items() if how not in said}
        lines = failure_lines(unsaid)
        self._unsaid.clear()
        return lines


_GATHER_REPORTS_S = 0.3


class Reports:
    """Reports of child processes. Each report is recorded at once for `polyrhythm why`. If several
    processes report the same thing, the user sees one line."""

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

    def on_ended(self, name: str) -> None:
        self._watch.on_ended(name)

    def show(self, *, now: bool = False) -> None:
        """Show the reports. Unless `now` is given, first wait a moment, because other processes may
        report the same thing."""
        if now or time.monotonic() > self._since_s + _GATHER_REPORTS_S:
            for note, names in self._unsaid.values():
                self._say(report_in_words(note.what, names, note.fields))
            self._unsaid.clear()
