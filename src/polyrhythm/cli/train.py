"""`polyrhythm train`: every keyword of `polyrhythm.train` is a flag of this command."""

from pathlib import Path
from typing import Annotated, Any

import typer

from polyrhythm.api import flags
from polyrhythm.api.code import find_code
from polyrhythm.api.folders import runs_named
from polyrhythm.api.options import Group, Option, with_defaults_of
from polyrhythm.api.saying import say
from polyrhythm.api.training import train as run_train
from polyrhythm.cli.config import given_of, print_config, read_config
from polyrhythm.cli.help import HelpAll
from polyrhythm.cli.keywords import flags_from
from polyrhythm.cli.launch import launch
from polyrhythm.core.values import shown

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
Resume = Annotated[
    bool,
    Option(
        "Continue from the newest checkpoint, if there is one. The command looks for it in"
        " --store, or in the runs of this --name. For launchers that start a command again after"
        " a failure.",
        "--resume",
        group=Group.RESULTS,
        common=True,
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
    resume: Resume = False,
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
    if resume and _continue(job, given, as_json=json_, verbose=verbose):
        return
    launch(lambda: run_train(job, **given), as_json=json_, verbose=verbose)


def _continue(job: str, given: dict[str, Any], *, as_json: bool, verbose: bool) -> bool:
    """Continue the job from its newest checkpoint. Returns False if it has none; the job then begins,
    in a folder of the next name if an earlier run has the name."""
    # Only this path needs the modules of stores, whose import takes a while.
    from polyrhythm.api.stores import continuable
    from polyrhythm.cli.resume import resume_job, with_defaults_of_resume

    settings = with_defaults_of(find_code(job), run_train, given)
    name, store = settings.get("name"), settings.get("store")
    runs_dir = Path(settings.get("runs_dir", flags.RUNS)).expanduser()
    source = continuable(name, store, runs_dir)
    if name is not None and (before := runs_named(runs_dir, name)):
        given["name"] = f"{name}-{len(before) + 1}"
    if source is not None:
        say(f"polyrhythm: the job continues from its newest checkpoint in {shown(source)}")
        if "slice_size" in given:
            say("polyrhythm: --slice-size has no effect: slices keep their size in the checkpoint")
        resume_job(source, with_defaults_of_resume(given), as_json=as_json, verbose=verbose)
    return source is not None


def _from_job(job: str, given: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The name of the job's DEFAULTS for `--show-config`, and the options that it sets."""
    code = find_code(job)
    settings = with_defaults_of(code, run_train, given)
    return f"DEFAULTS of {job}", {k: v for k, v in settings.items() if given.get(k) != v}
