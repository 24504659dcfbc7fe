"""`polyrhythm resume`: continues a job from its newest checkpoint that is whole."""

import inspect
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from polyrhythm.api import flags
from polyrhythm.api.checks import (
    check_checkpoints,
    check_host,
    check_spec,
    continued,
    with_store,
)
from polyrhythm.api.fetching import fetch_for
from polyrhythm.api.folders import discarded_if_not_started, make_run_dir, next_run_dir
from polyrhythm.api.hosts import Here, ProcessOptions, cluster_of
from polyrhythm.api.options import Group, Option, check_values, fields_of, options_of
from polyrhythm.api.saying import say, say_starting
from polyrhythm.api.stores import check_unused, url_of
from polyrhythm.api.training import train
from polyrhythm.cli.help import HelpAll
from polyrhythm.cli.keywords import flags_again
from polyrhythm.cli.launch import launch
from polyrhythm.core.cluster import worker_range
from polyrhythm.core.record import Record
from polyrhythm.core.sync.barrier.timer import timer_of
from polyrhythm.engines.choice import RAY, check_engine_runs
from polyrhythm.errors import RunError, StoreError, UsageError
from polyrhythm.io.codefile import digest_of
from polyrhythm.learn.data.places import DATA_DIR
from polyrhythm.learn.load import check_job, defaults_of
from polyrhythm.learn.slowdowns import Slowdowns
from polyrhythm.observe.runs import find_run
from polyrhythm.store.checkpoints import Checkpoint, load, newest, numbers, read_record, verify
from polyrhythm.store.objects import Store, open_store
from polyrhythm.wire.messages import JobSpec


@flags_again("resume")
def resume(
    source: Annotated[
        str,
        typer.Argument(metavar="RUN|URL", help="A run's name or folder, or a store's URL."),
    ],
    *,
    checkpoint: Annotated[
        int | None,
        Option(
            "The number of the checkpoint (default: the newest that is whole).",
            metavar="N",
            group=Group.JOB,
            common=True,
        ),
    ] = None,
    no_slowdowns: Annotated[
        bool,
        Option(
            "Leave out the slowdowns of the old run: --slow, --min-step and the like.",
            "--no-slowdowns",
            group=Group.LABORATORY,
        ),
    ] = False,
    json_: flags.JsonAtEnd = False,
    verbose: flags.Verbose = False,
    help_all: HelpAll = False,
    **options: Any,
) -> None:
    """Continue a job from its newest checkpoint, as a new run.

    The newest checkpoint that is whole is used.

    The job has the settings that it began with, except those given here. It may have another number
    of servers and workers, or another policy of the same kind. A worker with the name of a former
    one gets its chunks again, and every point of the pass is visited once. Rounds, epochs and points
    are counted from the beginning of the job, and seconds from now.

    A checkpoint has the settings of the job, and not those of the machine on which it ran, because
    the job may continue on another one. Give --engine (with --address, --resources-per-worker,
    --resources-per-server and --detach), --digest, --host, --port, --insecure, --threads and
    --devices again if they should not have their defaults.

    Examples:

      polyrhythm resume mine

      polyrhythm resume mine --servers 2 --workers 6

      polyrhythm resume s3://bucket/mine --sync ssp:4
    """
    resume_job(
        source, options, checkpoint, no_slowdowns=no_slowdowns, as_json=json_, verbose=verbose
    )


def resume_job(
    source: str,
    options: Mapping[str, Any],
    checkpoint: int | None = None,
    *,
    no_slowdowns: bool = False,
    as_json: bool,
    verbose: bool,
) -> None:
    """Continue a job as the command `resume` does. `options`: values for all options of the list that
    this command has."""
    check_values(train, options)
    runs_dir, quiet = options["runs_dir"], options["quiet"] or as_json
    opened = _store_of(source, runs_dir)
    found = _find(opened, checkpoint)
    changes = fields_of(train, options)
    if no_slowdowns:
        changes["slowdowns"] = {}
    spec = msgspec.structs.replace(continued(found.manifest.job, opened.url, found), **changes)
    timer = timer_of(spec.timer, deterministic=spec.deterministic, optimizer_on=spec.optimizer_on)
    spec = msgspec.structs.replace(spec, timer=timer)
    if "replicas" not in changes and spec.replicas >= spec.servers > 0:
        left = spec.servers - 1
        _say(
            f"--replicas is lowered from {spec.replicas} to {left}: there are too few other servers"
        )
        spec = msgspec.structs.replace(spec, replicas=left)
    _check_goal(spec, read_record(opened, found, Record))
    job = spec.path or spec.name
    if spec.served:
        defaults: dict[str, Any] = {}
    elif not spec.path and ":" in spec.name:
        raise UsageError(
            f"{job} is a function that was passed to polyrhythm.train, and not a file: only a job"
            " whose code is a file can be resumed; to use the model, give its file to"
            " polyrhythm.train as init"
        )
    else:
        check_job(job)
        defaults = defaults_of(job)
    code_digest = digest_of(Path(spec.path).read_bytes()) if spec.path else ""
    spec = msgspec.structs.replace(spec, name=_short(job), code_digest=code_digest)
    _check_slowdowns(spec)
    check_spec(spec)
    engine, cluster = options["engine"], cluster_of(options)
    most = worker_range(options["workers"] or spec.workers)[1]
    check_engine_runs(engine, spec, cluster, elastic=most > spec.workers, host=options["host"])
    check_host(options["host"], options["insecure"])
    workers = 0 if spec.served else options["local_workers"]
    here = Here.of(spec, options["local_servers"], workers, most)
    url = options["store"] or opened.url
    check_checkpoints(spec, url, here, apart=engine == RAY)
    fetch_for(spec.name, defaults, spec.options.get(DATA_DIR), quiet=quiet)
    name = options["name"]
    run_dir = make_run_dir(runs_dir, name, job) if name else _next_dir(source, runs_dir)
    with discarded_if_not_started(run_dir):
        if not quiet:
            _say(f"round {spec.resume_round} continues as the run {run_dir.name}")
        say_starting(here, quiet=quiet)
        # This import takes seconds. It comes after the line above, so that the line is printed at
        # once.
        from polyrhythm.api.running import run_job

    run = partial(
        run_job,
        with_store(spec, url, runs_dir),
        here,
        run_dir,
        ProcessOptions(link=spec.link, **{name: options[name] for name in _OF_PROCESSES}),
        quiet=quiet,
        engine=engine,
        cluster=cluster,
    )
    launch(run, as_json=as_json, verbose=verbose)


def with_defaults_of_resume(given: Mapping[str, Any]) -> dict[str, Any]:
    """The values of `train`'s options that the command was given. All other settings come from the
    job."""
    listed = inspect.signature(resume).parameters
    names = options_of(train).keys() & listed.keys()
    return {name: given.get(name, listed[name].default) for name in sorted(names)}


_OF_PROCESSES = ("digest", "host", "port", "threads", "devices", "trace", "check", "debug")
"""Options that the processes of the new run get (`ProcessOptions`)."""


def _store_of(source: str, runs_dir: Path) -> Store:
    """The store that the user names. No running job may use it."""
    url = url_of(source, runs_dir)
    check_unused(url, runs_dir)
    return open_store(url)


def _say(line: str) -> None:
    say(f"polyrhythm: {line}")


def _next_dir(source: str, runs_dir: Path) -> Path:
    """Make the folder of the new run. Its name is that of the run that it continues, or of the store,
    with a number."""
    try:
        before = find_run(runs_dir, source)
    except RunError:
        before = runs_dir / source.rstrip("/").rpartition("/")[2]
    return next_run_dir(before if before.parent == runs_dir else runs_dir / before.name)


def _short(job: str) -> str:
    """The path of a job's file, relative to the current folder if the file is in it."""
    path = Path(job)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else job


def _find(store: Store, number: int | None) -> Checkpoint:
    if number is None:
        if not numbers(store):
            raise StoreError(
                f"there is no checkpoint in {store.url}, because the job ran without"
                " --checkpoint-every; 'polyrhythm train --init MODEL' begins with a trained model"
            )
        return newest(store, _say)
    checkpoint = load(store, number)
    verify(store, checkpoint)
    return checkpoint


def _check_slowdowns(spec: JobSpec) -> None:
    """Raise UsageError if the old run delayed a worker or a server that the new run does not
    have."""
    try:
        Slowdowns.parse(spec.slowdowns, spec.workers, spec.servers)
    except UsageError as error:
        raise UsageError(
            f"{error}; give --no-slowdowns to leave out the slowdowns of the old run"
        ) from None


def _check_goal(spec: JobSpec, record: Record) -> None:
    """Raise UsageError if the job has reached its goal in the checkpoint."""
    passes = record.passes
    if spec.rounds is not None and spec.rounds <= spec.resume_round:
        raise UsageError(
            f"the checkpoint is of round {spec.resume_round}, and the job ends after"
            f" {spec.rounds} rounds: give more with --rounds"
        )
    if spec.epochs is not None and spec.epochs <= passes:
        raise UsageError(
            f"the checkpoint was made after {passes} passes of the data, and the job ends after"
            f" {spec.epochs}: give more with --epochs"
        )
    if spec.points is not None and spec.points <= record.counted:
        raise UsageError(
            f"the checkpoint was made after {record.counted} points, and the job ends after"
            f" {spec.points}: give more with --points"
        )
