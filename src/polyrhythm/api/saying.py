"""Lines that a command prints for the user on stderr while it works."""

import sys

from polyrhythm.api.hosts import Here
from polyrhythm.core.values import shown
from polyrhythm.observe.words import counted, width_of, wrapped


def say(line: str) -> None:
    print(wrapped(shown(line), width_of(sys.stderr)), file=sys.stderr, flush=True)


def tell(text: str) -> None:
    """Print the text that a command was asked for, on stdout."""
    print(wrapped(shown(text), width_of(sys.stdout)), flush=True)


def say_starting(here: Here, *, quiet: bool) -> None:
    """Print what the command does next, because seconds can pass before a process reports
    something."""
    if not quiet:
        processes = counted(here.servers, "server")
        if here.workers:
            processes += f" and {counted(here.workers, 'worker')}"
        say(f"polyrhythm: importing torch, then starting {processes}")
