"""The command `polyrhythm`: its subcommands. An error of any subcommand becomes one line of output
here."""

import sys
from typing import Annotated

import typer

from polyrhythm import __version__
from polyrhythm.cli.bench import bench
from polyrhythm.cli.checkpoint import checkpoint
from polyrhythm.cli.checkpoints import checkpoints
from polyrhythm.cli.config import ConfiguredCommand
from polyrhythm.cli.data import data
from polyrhythm.cli.export import export
from polyrhythm.cli.new import new
from polyrhythm.cli.resume import resume
from polyrhythm.cli.server import server
from polyrhythm.cli.simulate import simulate
from polyrhythm.cli.status import runs, status, story, why
from polyrhythm.cli.stop import stop
from polyrhythm.cli.train import train
from polyrhythm.cli.worker import worker
from polyrhythm.core.text import shown
from polyrhythm.errors import PolyrhythmError

app = typer.Typer(
    name="polyrhythm",
    help="A parameter server for machines that keep different time.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command(cls=ConfiguredCommand)(train)
app.command()(resume)
for command in (worker, server, stop, checkpoint, export, simulate, status, why, story, runs, new):
    app.command()(command)
app.add_typer(bench, name="bench")
app.add_typer(checkpoints, name="checkpoints")
app.add_typer(data, name="data")


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"polyrhythm {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def run() -> None:
    """The entry point of the program."""
    try:
        app()
    except PolyrhythmError as error:
        if "--debug" in sys.argv:
            raise
        typer.echo(f"polyrhythm: {shown(str(error))}", err=True)
        sys.exit(1)
