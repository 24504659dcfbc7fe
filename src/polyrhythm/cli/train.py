"""`polyrhythm train`: every keyword of `polyrhythm.train` is a flag of this command."""

from pathlib import Path
from typing import Annotated, Any

import typer

from polyrhythm.api import flags
from polyrhythm.api.code import find_code
from polyrhythm.api.options import with_defaults_of
from polyrhythm.api.training import train as run_train
from polyrhythm.cli.config import given_of, print_config, read_config
from polyrhythm.cli.keywords import flags_from
from polyrhythm.cli.launch import launch

_Job = Annotated[
    str,
    typer.Argument(
        help="A FILE.py with main(worker), or a job's name: digits, mnist-lr, mnist-cnn,"
        " fashion-mnist-lenet, cifar10-vgg11, char-transformer; kmeans, fcm, gmm, nmf and lr on your own"
        " table (--set data=FILE)."
    ),
]
Config = Annotated[
    Path | None,
    typer.Option(
        callback=read_config,
        is_eager=True,
        help="A TOML file with any of these settings, such as workers = 4;"
        " default: polyrhythm.toml, if it is there.",
    ),
]
ShowConfig = Annotated[
    bool, typer.Option("--show-config", help="Print every setting and its source, and exit.")
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
    **options: Any,
) -> None:
    """Train a model on several worker and server processes of this machine.

    Examples:

      polyrhythm train digits --workers 3 --servers 2

      polyrhythm train mnist-cnn --workers 4 --epochs 2 --data-dir ~/datasets

      polyrhythm train mine.py --workers 4 --kind local --local-steps 8 --epochs 5

      polyrhythm train kmeans --set data=higgs.csv --set k=10 --sync fsp

      polyrhythm train char-transformer --kind local --local-steps 50 --outer nesterov

      polyrhythm train digits --link tcp --digest sha1 --json

      polyrhythm train digits --local-servers 1 --local-workers 0 --host 10.0.0.1 --insecure

      polyrhythm train digits --target-accuracy 0.95 --max-seconds 60

      polyrhythm train digits --workers 4 --min-step 10ms --slow 3=4x --sync asp

    A flag overrides the environment (POLYRHYTHM_LOCAL_STEPS=8 for --local-steps), which overrides
    the file of --config, which overrides the DEFAULTS in FILE.py. Of rounds, epochs, points,
    targets and seconds, the first that is reached ends the job. While it runs, use polyrhythm status,
    why and story in another terminal.

    Ctrl-C or SIGTERM stops the job in an orderly way: every worker leaves its training loop with
    the final parameters, and the command waits until the code after the loop has run. Then it ends
    with status 130 or 143. A second Ctrl-C ends it at once.
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
