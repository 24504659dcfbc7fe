"""`polyrhythm train`: every keyword of `polyrhythm.train` is a flag of this command."""

from pathlib import Path
from typing import Annotated, Any

import typer

from polyrhythm.api import flags
from polyrhythm.api.code import find_code
from polyrhythm.api.options import Group, Option, with_defaults_of
from polyrhythm.api.training import train as run_train
from polyrhythm.cli.config import given_of, print_config, read_config
from polyrhythm.cli.help import HelpAll
from polyrhythm.cli.keywords import flags_from
from polyrhythm.cli.launch import launch

_Job = Annotated[
    str,
    typer.Argument(
        metavar="JOB",
        help="A FILE.py with main(worker), or a job's name, such as digits, mnist-cnn or kmeans. All"
        " names: digits, mnist-lr, mnist-cnn, fashion-mnist-lenet, cifar10-vgg11, char-transformer;"
        " kmeans, fcm, gmm, nmf and lr on your own table (--set data=FILE).",
    ),
]
Config = Annotated[
    Path | None,
    Option(
        "A TOML file with such settings (default: polyrhythm.toml, if it is there). For example:"
        " workers = 4.",
        metavar="FILE",
        group=Group.JOB,
        common=True,
        callback=read_config,
        is_eager=True,
    ),
]
ShowConfig = Annotated[
    bool,
    Option("Print every setting and its source, and exit.", "--show-config", group=Group.JOB),
]


@flags_from(run_train)
def train(
    ctx: typer.Context,
    job: _Job = "digits",
    *,
    json_: flags.JsonAtEnd = False,
    verbose: flags.Verbose = False,
    config: Config = None,
    show_config: ShowConfig = False,
    help_all: HelpAll = False,
    **options: Any,
) -> None:
    """Train a model with several processes on this machine.

    A flag overrides the environment (POLYRHYTHM_LOCAL_STEPS=8 for --local-steps), which overrides
    the file of --config, which overrides the DEFAULTS in FILE.py. Of rounds, epochs, points,
    targets and seconds, the first that is reached ends the job. While it runs, use polyrhythm status,
    why and story in another terminal.

    Ctrl-C or SIGTERM shuts the job down cleanly: every worker leaves its training loop with
    the final parameters, and the command waits until the code after the loop has run. Then it ends
    with status 130 or 143. A second Ctrl-C ends it at once.

    Examples:

      polyrhythm train digits --workers 4 --target accuracy=0.95

      polyrhythm train mine.py --workers 4 --sync ssp:4 --epochs 5

      polyrhythm train mine.py --kind local --local-steps 50 --outer nesterov

      polyrhythm train mine.py --local-workers 0 --host 10.0.0.1 --insecure
    """
    given = given_of(ctx, options)
    if show_config:
        print_config(ctx, _from_job(job, given), as_json=json_)
        return
    if json_:
        given["quiet"] = True
    launch(lambda: run_train(job, **given), as_json=json_, verbose=verbose)


def _from_job(job: str, given: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The name of the job's DEFAULTS for `--show-config`, and the options that it sets."""
    code = find_code(job)
    settings = with_defaults_of(code, run_train, given)
    return f"DEFAULTS of {job}", {k: v for k, v in settings.items() if given.get(k) != v}
