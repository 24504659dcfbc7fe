"""Lines that a command prints for the user on stderr while it works."""

import sys
from typing import TextIO, cast

from polyrhythm.api.hosts import Here
from polyrhythm.core.values import shown
from polyrhythm.observe.output import UnreadFile
from polyrhythm.observe.words import counted, width_of, wrapped


def outlive_readers() -> None:
    """Let this process continue if nobody reads its output any more."""
    # a file is None if this process was started without it
    sys.stdout = sys.stdout and cast("TextIO", UnreadFile(sys.stdout))
    sys.stderr = sys.stderr and cast("TextIO", UnreadFile(sys.stderr))


def say(line: str) -> None:
    print(wrapped(shown(line), width_of(sys.stderr)), file=sys.stderr, flush=True)


def tell(text: str) -> None:
    """Print on stdout the text that the user asked for."""
    print(wrapped(shown(text), width_of(sys.stdout)), flush=True)


def say_starting(here: Here, *, quiet: bool) -> None:
    """Print what the command does next, because seconds can pass before a process reports
    something."""
    if not quiet:
        processes = counted(here.servers, "server")
        if here.workers:
            processes += f" and {counted(here.workers, 'worker')}"
        say(f"polyrhythm: importing torch, then starting {processes}")
