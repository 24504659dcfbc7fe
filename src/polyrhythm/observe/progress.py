"""Progress on stderr while a job runs: a live table in a terminal, plain lines elsewhere. The lines
that servers and workers print appear above the table, each with the name of its process.

*A terminal or pipe that accepts no more output does not delay the job: the output is kept, and
shown later.* If the terminal or pipe is closed, the job continues and shows nothing more.
"""

import contextlib
import select
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import IO, Any, cast

from rich.console import Console, ConsoleOptions, RenderResult
from rich.control import Control
from rich.live import Live
from rich.segment import ControlType, Segment

from polyrhythm.core.values import shown
from polyrhythm.observe import tables
from polyrhythm.observe.journal import JournalPart, JournalReader
from polyrhythm.observe.output import Output, Unfailing
from polyrhythm.observe.state import RunState
from polyrhythm.observe.story import Sentence, Teller
from polyrhythm.observe.words import wrapped
from polyrhythm.wire.messages import JobSpec


def stderr_console() -> Console:
    """stderr of this process. In a notebook it is plain text below the cell, without a table.

    *If progress cannot be written, the job continues:* the reader of a pipe may have ended, the
    terminal may be closed, or the disk may be full.
    """
    notebook = Console(stderr=True).is_jupyter
    return Console(
        file=None if sys.stderr is None else cast(IO[str], Unfailing(sys.stderr)),
        stderr=True,
        highlight=False,
        # rich must not change a word between two colons, and need not load its table of emoji
        emoji=False,
        soft_wrap=True,
        force_terminal=False if notebook else None,
        force_jupyter=False,
    )


_LINE_EVERY_S = 3.0
_LINES_OF_TIME = 20
_SELDOM_S = 60.0
_REDRAW_EVERY_S = 0.25
_MOST_SHARE = 0.05
"""The largest share of time for showing the state of the run. The table of thousands of workers
takes long to draw."""
_OUTPUT_S = 0.1
"""How long the command prints lines of processes before it attends to the job again."""
_PIECE = 4_000
"""How many bytes are printed at a time: a pipe that accepts output accepts at least this many."""
_PIECE_ABOVE_TABLE = 16_000
"""How many bytes are printed at a time in a terminal with a live table. The table is redrawn after
every such piece."""
_MOST_WAITING = 10_000
"""The most lines that wait for a terminal that accepts no output."""


def line_every_s(at_s: float) -> float:
    """The time between two lines of progress if the output is not a terminal. It grows with the age
    of the job, so that the log of a long job stays short."""
    return min(max(_LINE_EVERY_S, at_s / _LINES_OF_TIME), _SELDOM_S)


class _Lines:
    """Lines that rich prints without changes."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Segment(self._text)


class ProgressDisplay:
    """Shows the progress of one run from its journal and its logs. It is a context manager that
    restores the terminal and closes the journal at the end."""

    def __init__(
        self,
        journal: Path,
        *,
        quiet: bool,
        job: JobSpec | None = None,
        console: Console | None = None,
        table: bool = True,
        local: frozenset[str] = frozenset(),
        evaluated: Callable[[dict[str, Any]], None] = lambda line: None,
    ) -> None:
        """`table`: show a live table if stderr is a terminal. `local`: the workers that this
        command has started, whose errors it shows. `evaluated` is called with the journal's line of
        each evaluation, after the state was updated."""
        self._reader = JournalReader(journal)
        self._evaluated = evaluated
        self._output = Output(journal.parent)
        self._job = job
        self._quiet = quiet
        self._console = console or stderr_console()
        # a terminal that cannot move its cursor (TERM=dumb) gets lines, as a pipe does
        redraws = self._console.is_terminal and not self._console.is_dumb_terminal
        self._has_table = table and redraws and not quiet
        self._columns = self._console.width
        """The width of the terminal when the table was last drawn."""
        self._draws_s = 0.0
        """How long the last drawing of the run's state took."""
        self._drawn: list[int] = []
        """The width of each line of the table."""
        self._bar = "│" if self._console.encoding.startswith("utf") else "|"
        self._teller = Teller(job, routine=False, local=local)
        self._live: Live | None = None
        self._waiting: deque[str] = deque(maxlen=_MOST_WAITING)
        """Lines that wait to be printed."""
        self._unprinted = self._pieces(self._output.lines())
        """The new lines of processes. A line is read from its log only when it can be printed."""
        self._heard_s = self._shown_s = time.monotonic()

    @property
    def state(self) -> RunState:
        return self._teller.state

    def __enter__(self) -> "ProgressDisplay":
        if self._has_table:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if self._live is not None:
            self._erase_if_narrower()
            self._live.stop()
            self._live = None
        if kind is not None:
            self.end(brief=True)
        self._print_waiting(all_=True)
        self._reader.close()

    def say(self, line: str) -> None:
        """Print a line that the user must see at once, even with `--quiet`."""
        self._waiting.append(f"polyrhythm: {line}")
        self._print_output()
        self._print_waiting()

    def record(self, name: str, text: str) -> None:
        """Add text to the log of a process, without showing it as output of the process."""
        self._output.note(name, text)

    def hand(self, part: JournalPart) -> None:
        """Add lines of the journal that may be missing from its file."""
        self._reader.hand(part)

    def tick(self) -> None:
        """Called a few times a second while the job runs."""
        now_s = time.monotonic()
        for line in self._reader.new_lines():
            self._heard_s = now_s
            for sentence in self._teller.take(line):
                if sentence.shown:
                    continue
                if self._quiet and sentence.urgent:
                    self._waiting.append(f"polyrhythm: {sentence.text}")
                elif not (self._quiet or sentence.routine):
                    self._waiting.append(str(sentence))
            if line["what"] == "reported" and line.get("evaluated"):
                self._evaluated(line)
        self._print_output()
        self._print_waiting()
        every_s = line_every_s(self.state.at_s) if self._live is None else _REDRAW_EVERY_S
        every_s = max(every_s, self._draws_s / _MOST_SHARE)
        if not self._quiet and now_s >= self._shown_s + every_s and self._takes_output():
            self._shown_s = now_s
            began_s = time.monotonic()
            self._show(self.state.at_s + now_s - self._heard_s)
            self._draws_s = time.monotonic() - began_s

    def end(self, *, brief: bool) -> None:
        """Print the remaining output when all processes have ended. `brief`: only the last lines of
        each process, because the user has interrupted the job."""
        left_out = list(self._output.shortened()) if brief else []
        rest = self._pieces(chain(self._output.lines(), self._output.last_lines(), left_out))
        for text in chain(self._unprinted, rest):
            self._print_lines(text)
        self._print_waiting(all_=True)

    def _show(self, now_s: float) -> None:
        """Show the state of the run. `now_s`: the present time on the clock of the journal."""
        if self._live is not None:
            self._erase_if_narrower()
            table = tables.live(
                self.state,
                self._job,
                now_s,
                columns=self._columns,
                lines=self._console.height,
                plain=self._bar == "|",
            )
            self._drawn = [
                sum(segment.cell_length for segment in line)
                for line in self._console.render_lines(table, pad=False)
            ]
            self._live.update(table, refresh=True)
        elif self.state.contributions and self.state.ended is None:
            headline = tables.headline(self.state, self._job, now_s)
            self._print(str(Sentence(now_s, headline)))

    def _erase_if_narrower(self) -> None:
        """Erase the table if the terminal has become narrower. The terminal has then wrapped the
        table's lines, and `Live`, which counts unwrapped lines, would erase too few."""
        before, self._columns = self._columns, self._console.width
        if self._columns >= before or not self._drawn:
            return
        rows = sum(max(1, -(-width // self._columns)) for width in self._drawn)
        erase = (ControlType.ERASE_IN_LINE, 2)
        up, down = (ControlType.CURSOR_UP, 1), (ControlType.CURSOR_DOWN, 1)
        self._console.control(
            Control(ControlType.CARRIAGE_RETURN, erase, *((up, erase) * (rows - 1))),
            Control(*((down,) * (len(self._drawn) - 1))),
        )

    # -- printing ------------------------------------------------------------------------------

    def _takes_output(self) -> bool:
        """Whether the terminal, pipe or file accepts output now."""
        ready = select.poll()
        # the output may have no descriptor, as in a notebook
        with contextlib.suppress(OSError, ValueError):
            ready.register(self._console.file.fileno(), select.POLLOUT)
            return bool(ready.poll(0))
        return True

    def _print_output(self) -> None:
        """Print the new lines of processes, for a short time."""
        until_s = time.monotonic() + _OUTPUT_S
        while time.monotonic() < until_s and self._takes_output():
            text = next(self._unprinted, None)
            if text is None:
                self._unprinted = self._pieces(self._output.lines())
                return
            self._print_lines(text)

    def _pieces(self, parts: Iterable[tuple[str, list[str]]]) -> Iterator[str]:
        """The lines of processes with their names, joined into texts that are printed at once."""
        most = _PIECE if self._live is None else _PIECE_ABOVE_TABLE
        piece: list[str] = []
        nbytes = 0
        for name, lines in parts:
            for line in lines:
                text = f"{name} {self._bar} {line}\n"
                text_nbytes = len(text.encode("utf-8", "replace"))
                if piece and nbytes + text_nbytes > most:
                    yield "".join(piece)
                    piece, nbytes = [], 0
                piece.append(text)
                nbytes += text_nbytes
        if piece:
            yield "".join(piece)

    def _print_lines(self, text: str) -> None:
        if self._live is not None:
            self._erase_if_narrower()
            self._console.print(_Lines(text), end="")
        else:
            self._console.file.write(text)
            self._console.file.flush()

    def _print_waiting(self, *, all_: bool = False) -> None:
        while self._waiting and (all_ or self._takes_output()):
            self._print(self._waiting.popleft())

    def _print(self, text: str) -> None:
        width = self._console.width if self._console.is_terminal else None
        self._print_lines(f"{wrapped(shown(text), width)}\n")
