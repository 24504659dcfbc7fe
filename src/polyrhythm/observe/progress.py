"""Progress on stderr while a job runs: a live table in a terminal, plain lines elsewhere."""

import time
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.live import Live

from polyrhythm.core.text import shown
from polyrhythm.observe import tables
from polyrhythm.observe.advice import advise
from polyrhythm.observe.journal import JournalReader
from polyrhythm.observe.state import RunState
from polyrhythm.observe.story import Teller
from polyrhythm.observe.summary import summary_text
from polyrhythm.wire.messages import JobSpec

_LINE_EVERY_S = 3.0
_REDRAW_EVERY_S = 0.25


class ProgressDisplay:
    """Shows the progress of one run from its journal. It is a context manager that restores the
    terminal at the end."""

    def __init__(
        self,
        journal: Path,
        *,
        quiet: bool,
        job: JobSpec | None = None,
        console: Console | None = None,
    ) -> None:
        self._reader = JournalReader(journal)
        self._job = job
        self._quiet = quiet
        self._console = console or Console(stderr=True, highlight=False, soft_wrap=True)
        self._teller = Teller(job)
        self._live: Live | None = None
        self._heard_s = self._shown_s = time.monotonic()

    @property
    def state(self) -> RunState:
        return self._teller.state

    def __enter__(self) -> "ProgressDisplay":
        if self._console.is_terminal and not self._quiet:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def say(self, line: str) -> None:
        """Print a line that the user must see at once, even with `--quiet`."""
        self._print(f"polyrhythm: {line}")

    def tick(self) -> None:
        """Called a few times a second while the job runs."""
        now_s = time.monotonic()
        for line in self._reader.new_lines():
            self._heard_s = now_s
            for sentence in self._teller.take(line):
                if sentence.shown:
                    continue
                if self._quiet and sentence.urgent:
                    self.say(sentence.text)
                elif not (self._quiet or sentence.routine):
                    self._print(str(sentence))
        every_s = _LINE_EVERY_S if self._live is None else _REDRAW_EVERY_S
        if not self._quiet and now_s >= self._shown_s + every_s:
            self._shown_s = now_s
            self._show(self.state.at_s + now_s - self._heard_s)

    def finish(self, result: dict[str, Any], run_dir: Path) -> None:
        """Print the summary on stdout, with advice if there is any."""
        self.tick()
        advice = None if self._job is None else advise(self.state, self._job)
        print(shown(summary_text(result, run_dir, advice)))

    def _show(self, now_s: float) -> None:
        """`now_s`: the present time on the clock of the journal."""
        if self._live is not None:
            self._live.update(tables.live(self.state, self._job, now_s), refresh=True)
        elif self.state.contributions and self.state.ended is None:
            self._print(tables.headline(self.state, self._job, now_s))

    def _print(self, text: str) -> None:
        self._console.print(shown(text), markup=False)
