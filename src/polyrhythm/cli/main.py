"""The command `polyrhythm`: its subcommands. An error of any subcommand becomes one line of output
here.

Only the module of the subcommand that was called is imported, so that a command can print its first
line at once.
"""

import atexit
import gc
import importlib
import os
import signal
import sys
from collections.abc import Iterable, Sequence
from typing import Annotated

import typer

from polyrhythm import __version__
from polyrhythm.api.saying import outlive_readers, say
from polyrhythm.cli.command import Command
from polyrhythm.errors import PolyrhythmError
from polyrhythm.io.limits import none_left, raise_limit, too_few

COMMANDS = {
    "train": "train",
    "resume": "resume",
    "serve": "serve",
    "worker": "worker",
    "server": "server",
    "stop": "stop",
    "checkpoint": "checkpoint",
    "drain": "drain",
    "export": "export",
    "simulate": "simulate",
    "status": "status",
    "why": "status",
    "story": "status",
    "runs": "status",
    "manifest": "manifest",
    "new": "new",
    "bench": "bench",
    "checkpoints": "checkpoints",
    "data": "data",
}
"""The subcommands in the order of the help, each with its module in `polyrhythm.cli`. The function,
or the group of further subcommands, has the name of the subcommand."""


def make_app(names: Iterable[str] = tuple(COMMANDS)) -> typer.Typer:
    """The program with these subcommands."""
    app = typer.Typer(
        name="polyrhythm",
        help="Train a PyTorch model on machines that differ in speed, join late and fail.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        callback=_main,
    )
    for name in names:
        command = getattr(importlib.import_module(f"polyrhythm.cli.{COMMANDS[name]}"), name)
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            app.command(name, cls=_class_of(name))(command)
    return app


def _class_of(name: str) -> type:
    """The class of a subcommand: some have a help with groups, and some read a file of settings."""
    if name == "manifest":
        from polyrhythm.cli.config import OwnOptionsCommand

        return OwnOptionsCommand
    if name in ("train", "serve"):
        from polyrhythm.cli.config import ConfiguredCommand

        return ConfiguredCommand
    if name == "resume":
        from polyrhythm.cli.help import GroupedCommand

        return GroupedCommand
    return Command


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"polyrhythm {__version__}")
        raise typer.Exit


def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def called(arguments: Sequence[str]) -> tuple[str, ...]:
    """The subcommands that these arguments need: usually only the one that is called. The help, and
    messages that list the subcommands, need all."""
    first = arguments[0] if arguments else ""
    return (first,) if first in COMMANDS else tuple(COMMANDS)


def run() -> None:
    """The entry point of the program. It ends the process when the command is done."""
    outlive_readers()
    raise_limit()
    if os.getpid() == 1:
        # In a container this is the first process, which the kernel spares from signals without a
        # handler. The job sets its own handlers later.
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    names = called(sys.argv[1:])
    if names == ("simulate",):
        # Garbage collection would visit all objects of the simulation, during the run and when
        # Python exits.
        gc.disable()
        atexit.register(gc.freeze)
    try:
        make_app(names)()
    except PolyrhythmError as error:
        if "--debug" in sys.argv:
            raise
        say(f"polyrhythm: {error}")
        sys.exit(error.status)
    except OSError as error:
        if "--debug" in sys.argv or not none_left(error):
            raise
        say(f"polyrhythm: {too_few()}")
        sys.exit(PolyrhythmError.status)
