"""Reports of workers and servers about a silent lead, in a file beside the journal.

The lead writes the journal, so a stopped lead adds nothing to it. Workers and servers report a
silent lead to the command that started them, and that command writes a line of JSON for each
report.
"""

import contextlib
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from polyrhythm.core.effects import FIRST_SLICES, NO_SLICE, STAYS, TRACE_ENDS, WITHOUT_PARAMETERS
from polyrhythm.core.liveness import HEARD, SILENT
from polyrhythm.observe.journal import whole_lines
from polyrhythm.observe.reasons import in_words, limit_in_words
from polyrhythm.observe.words import listed
from polyrhythm.wire.messages.reasons import Reason

WATCH = "watch.jsonl"
_ENDED = "ended"


class Suspect(msgspec.Struct, frozen=True):
    """A process that suspects the lead. Times are Unix times, by the clock of the host."""

    name: str
    since_unix_s: float
    until_unix_s: float
    limit: str
    """How long a silence may last before the process suspects the lead, and how this limit was
    derived."""


class WatchWriter:
    """*A report that cannot be written is lost: `why` then knows less, and the job continues.*"""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._suspecting: set[str] = set()

    def note(self, name: str, what: str, fields: Mapping[str, Any]) -> None:
        if what == SILENT:
            self._suspecting.add(name)
        else:
            self._suspecting.discard(name)
        line = {"unix_s": time.time(), "what": what, "name": name, **fields}
        with contextlib.suppress(OSError), self._path.open("ab") as file:
            file.write(msgspec.json.encode(line) + b"\n")

    def on_ended(self, name: str) -> None:
        """Forget the suspicion of a process that has ended."""
        if name in self._suspecting:
            self.note(name, _ENDED, {})


def read_suspects(path: Path) -> tuple[Suspect, ...]:
    """The processes that suspect the lead now. The process with the longest silence comes first."""
    suspects: dict[str, Suspect] = {}
    for line in _lines(path):
        name = line["name"]
        suspects.pop(name, None)
        if line["what"] == SILENT:
            since = line["unix_s"] - line["silent_s"]
            until = since + line["timeout_s"]
            suspects[name] = Suspect(name, since, until, limit_in_words(line))
    return tuple(sorted(suspects.values(), key=lambda suspect: suspect.since_unix_s))


def _lines(path: Path) -> Iterable[dict[str, Any]]:
    try:
        text = path.read_bytes()
    except OSError:
        return ()
    return [line for line, _ in whole_lines(text.splitlines(keepends=True))]


def report_in_words(what: str, names: Iterable[str], fields: Mapping[str, Any]) -> str:
    """One line for a report of one process, or for the same report of several processes."""
    who = listed(tuple(sorted(names)))
    if what == HEARD:
        return f"{who}: the lead was heard from again after {fields['silent_s']:.1f} s"
    if what == WITHOUT_PARAMETERS:
        why = in_words(Reason(fields["reason"], fields["fields"]))
        return f"{who}: left the training loop without the final parameters: {why}"
    if what == TRACE_ENDS:
        return f"{who}: the trace ends early ({fields['detail']}); training goes on"
    if what == STAYS:
        why = in_words(Reason(fields["reason"], fields["fields"]))
        return f"{who} stays in the job: {why}"
    if what == NO_SLICE:
        return f"{who}: no slices yet (the model has {fields['of']})"
    if what == FIRST_SLICES:
        return f"{who}: the first slices are arriving ({fields['held']} of {fields['of']})"
    return (
        f"{who}: the lead has sent nothing for {fields['silent_s']:.1f} s; it is suspect after"
        f" {limit_in_words(fields)}, and given up after {fields['timeout_s']:g} s (--lead-timeout)"
    )
