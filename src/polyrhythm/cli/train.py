"""`polyrhythm train`: every keyword of `polyrhythm.train` is a flag of this command."""

import inspect
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import typer

from polyrhythm.api import flags
from polyrhythm.api.training import train as run_train
from polyrhythm.cli.config import print_config, read_config
from polyrhythm.cli.launch import launch

_Job = Annotated[
    str,
    typer.Argument(
        help="A FILE.py with main(worker), or a job's name: digits, mnist-lr, mnist-cnn,"
        " fashion-mnist-lenet, cifar10-vgg11."
    ),
]
_Config = Annotated[
    Path | None,
    typer.Option(
        callback=read_config,
        is_eager=True,
        help="A TOML file with any of these settings, such as workers = 4;"
        " default: polyrhythm.toml, if it is there.",
    ),
]
_ShowConfig = Annotated[
    bool, typer.Option("--show-config", help="Print every setting and its source, and exit.")
]


def train(
    ctx: typer.Context,
    job: _Job = "digits",
    *,
    json_: flags.JsonAtEnd = False,
    config: _Config = None,
    show_config: _ShowConfig = False,
    **options: Any,
) -> None:
    """Train a model on several worker and server processes of this machine.

    Examples:

      polyrhythm train digits --workers 3 --servers 2

      polyrhythm train mnist-cnn --workers 4 --epochs 2 --data-dir ~/datasets

      polyrhythm train mine.py --workers 4 --kind local --local-steps 8 --epochs 5

      polyrhythm train digits --link tcp --digest sha1 --json

      polyrhythm train digits --local-servers 1 --local-workers 0 --host 10.0.0.1 --insecure

      polyrhythm train digits --target-accuracy 0.95 --max-seconds 60

      polyrhythm train digits --workers 4 --min-step 10ms --slow 3=4x --sync asp

    A flag overrides the environment (POLYRHYTHM_LOCAL_STEPS=8 for --local-steps), which overrides
    the file of --config. Of rounds, epochs, targets and seconds, the first that is reached ends
    the job. While it runs, use polyrhythm status, why and story in another terminal.

    Ctrl-C or SIGTERM stops the job in order: every worker leaves its training loop with the final
    parameters, and the command waits until the code after the loop has run. Then it ends with status
    130 or 143. A second Ctrl-C ends it at once.
    """
    if show_config:
        print_config(ctx, as_json=json_)
        return
    options["quiet"] = options["quiet"] or json_
    launch(lambda: run_train(job, **options), as_json=json_)


def _flag(option: inspect.Parameter) -> inspect.Parameter:
    """A keyword of `polyrhythm.train` as a flag. A keyword that also accepts Python objects is a
    union; the flag has its annotated member."""
    if get_origin(option.annotation) is Annotated:
        return option
    annotated = [each for each in get_args(option.annotation) if get_origin(each) is Annotated]
    return option.replace(annotation=annotated[0])


def _with_flags() -> None:
    """Give the command the flags that `polyrhythm.train` defines."""
    own = inspect.signature(train).parameters
    keywords = inspect.signature(run_train).parameters.values()
    options = [_flag(each) for each in keywords if each.kind is inspect.Parameter.KEYWORD_ONLY]
    shown = [each for name, each in own.items() if name != "options"]
    parameters = [*shown[:2], *options, *shown[2:]]
    train.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    train.__annotations__ = {each.name: each.annotation for each in parameters}


_with_flags()
