"""`polyrhythm serve`: every keyword of `polyrhythm.serve` is a flag of this command."""

from typing import Any

import typer

from polyrhythm.api import flags
from polyrhythm.api.code import Code
from polyrhythm.api.serving import NAME
from polyrhythm.api.serving import serve as run_serve
from polyrhythm.api.training import train as run_train
from polyrhythm.cli.config import print_config
from polyrhythm.cli.help import HelpAll
from polyrhythm.cli.keywords import flags_from
from polyrhythm.cli.launch import launch
from polyrhythm.cli.train import Config, ShowConfig


@flags_from(run_serve)
def serve(
    ctx: typer.Context,
    *,
    json_: flags.JsonAtEnd = False,
    verbose: flags.Verbose = False,
    config: Config = None,
    show_config: ShowConfig = False,
    help_all: HelpAll = False,
    **options: Any,
) -> None:
    """Start the lead and the servers of a job without any code. Its workers join by themselves.

    Workers are processes that you start where and how you like: a Python program that calls
    polyrhythm.connect("HOST:PORT"), under torchrun, Slurm or cron, or 'polyrhythm worker FILE.py'.
    Round 1 opens when --workers of them have joined. Workers may join and leave at any time.

    Examples:

      polyrhythm serve --workers 2 --epochs 5

      polyrhythm serve --workers 8 --servers 2 --sync ssp:4 --host 10.0.0.1 --port 7000 --insecure

    The settings may also come from the environment and from polyrhythm.toml, as for 'polyrhythm
    train'. The job ends at its goal, or after Ctrl-C, SIGTERM or 'polyrhythm stop'. If all
    workers leave before that, the job waits for other workers.
    """
    if show_config:
        print_config(ctx, as_json=json_)
        return
    options["quiet"] = options.get("quiet", False) or json_
    code = Code(NAME, served=True)
    launch(lambda: run_train(code, **options), as_json=json_, verbose=verbose)  # type: ignore[arg-type]
