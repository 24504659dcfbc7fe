"""`polyrhythm.train`: the options of a job, each with its help text and its default. The flags of the
command line are made from these options."""

import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Never

import typer

from polyrhythm.api import flags, policies, staging
from polyrhythm.api.boundary import public
from polyrhythm.api.checks import (
    check_checkpoints,
    check_host,
    check_port,
    check_sharing,
    check_spec,
    check_threads,
    in_run_folder,
    with_store,
    without_effect,
    without_goal,
)
from polyrhythm.api.code import find_code
from polyrhythm.api.folders import discarded_if_not_started, make_run_dir
from polyrhythm.api.hosts import Here
from polyrhythm.api.options import (
    DATA,
    OF_SET,
    check_options,
    checked_init,
    own_options,
    targets_of,
    with_job_defaults,
)
from polyrhythm.api.saying import say, say_starting
from polyrhythm.core.devices import as_text, parse_devices
from polyrhythm.core.sync.registry import AUTO, choose_kind, sync_help, with_global_batch
from polyrhythm.engines.engine import LOCAL, check_engine
from polyrhythm.learn.data.places import DATA_DIR
from polyrhythm.learn.jobs.numbers import check_numbers
from polyrhythm.learn.jobs.point_options import check_point_options
from polyrhythm.learn.load import JOBS
from polyrhythm.wire.messages import JobSpec

if TYPE_CHECKING:
    from polyrhythm.api.result import Result
    from polyrhythm.learn.worker import Worker


@public
@with_job_defaults
def train(
    main: Callable[["Worker"], None] | str | Path,
    *,
    workers: Annotated[int, typer.Option(help="Number of workers; each is a process.")] = 3,
    servers: Annotated[int, typer.Option(help="Number of servers; each is a process.")] = 2,
    replicas: Annotated[
        int,
        typer.Option(
            help="Copies of every slice on other servers: this many servers may die at once without"
            " loss of acknowledged contributions. The first server runs the lead and may not die."
        ),
    ] = 0,
    local_workers: Annotated[
        int | None,
        typer.Option(
            help="Workers to start on this machine; the rest join with 'polyrhythm worker'."
            " Default: all."
        ),
    ] = None,
    local_servers: Annotated[
        int | None,
        typer.Option(
            help="Servers to start on this machine; the rest join with 'polyrhythm server'."
            " Default: all."
        ),
    ] = None,
    sync: Annotated[
        str,
        typer.Option(help=f"Sync policy: {sync_help()}."),
    ] = "bsp",
    interval: policies.Interval = "auto",
    coordination: policies.Coordination = "semi",
    abandon: policies.Abandon = "off",
    migrate: policies.Migrate = "auto",
    data_private: policies.DataPrivate = False,
    share_data: policies.ShareData = False,
    migrate_memory: policies.MigrateMemory = "auto",
    global_batch: policies.GlobalBatch = None,
    most_steps: policies.MostSteps = 64,
    probe_points: policies.ProbePoints = 2048,
    min_batch: Annotated[
        int,
        typer.Option(
            help="The least number of points in a batch. A smaller remainder of the data is added to"
            " the batch before it."
        ),
    ] = 2,
    async_scale: policies.AsyncScale = "auto",
    async_momentum: policies.AsyncMomentum = "round",
    read_ahead: policies.ReadAhead = False,
    deterministic: policies.Deterministic = False,
    timer: Annotated[
        str,
        typer.Option(
            help="How long a round waits for missing workers: auto (three times the longest of the last"
            " 20 rounds, and at least 10 s; 120 s for the first round), off, or a time such as 120s."
        ),
    ] = "auto",
    kind: Annotated[
        str,
        typer.Option(
            help="What workers send: gradient, local (changes after local steps), statistics (of"
            " point-wise algorithms), or auto: local under psp and fsp and with --outer, gradient"
            " otherwise."
        ),
    ] = AUTO,
    local_steps: Annotated[
        int, typer.Option(help="Kind local: how many steps are between two contributions.")
    ] = 1,
    outer: policies.Outer = "off",
    weights: policies.Weights = "points",
    updater: Annotated[
        str,
        typer.Option(
            help="What servers do with contributions: optimizer (a step of the job's optimizer; kind"
            " local: the average), or addition (summed as they are: for counting, sums, tests)."
        ),
    ] = "optimizer",
    link: flags.Links = "auto",
    digest: flags.Digest = "auto",
    wire_dtype: Annotated[
        str, typer.Option(help="The type in which float32 parameters are sent: same, or bf16.")
    ] = "same",
    push: Annotated[
        str,
        typer.Option(
            help="How contributions are sent over TCP: exact, or int8, which needs a quarter of the"
            " bytes. What rounding leaves out is added to the worker's next contribution. Over local"
            " links, contributions are always exact."
        ),
    ] = "exact",
    in_place: Annotated[
        bool,
        typer.Option(
            "--in-place",
            help="Let workers read parameters in the server's memory, without a copy. This needs"
            " --servers 1, kind gradient, a local link and --wire-dtype same.",
        ),
    ] = False,
    rounds: Annotated[
        int | None,
        typer.Option(help="End after this many rounds; with --epochs, at whichever comes first."),
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option(
            help="End after this many passes over the data. If no goal is given, the job's code says"
            " how many."
        ),
    ] = None,
    points: Annotated[
        int | None,
        typer.Option(
            help="End when this many points have counted, of all workers together. A job without a"
            " data set can use it too: the points are those that step(points=...) gives."
        ),
    ] = None,
    target: flags.Targets | str | Mapping[str, float] = None,
    target_accuracy: Annotated[
        float | None,
        typer.Option(help="Short for --target accuracy=VALUE, such as 0.95."),
    ] = None,
    target_objective: Annotated[
        float | None, typer.Option(help="Short for --target objective=VALUE.")
    ] = None,
    target_change: Annotated[
        float | None,
        typer.Option(help="End when the objective changes by less than this in a full pass."),
    ] = None,
    max_seconds: Annotated[
        float | None,
        typer.Option(
            help="End when this many seconds of training are over and the open round is done. Workers"
            " that hang are waited for only as long as the longest step took, and 10 s to a minute"
            " more; then the job ends without them."
        ),
    ] = None,
    keep_best: Annotated[
        str | None,
        typer.Option(
            help="A metric that workers report, such as accuracy or val_loss: also keep the model with"
            " its best value, in model-best.safetensors. A loss or error is best when lowest, others"
            " when highest; lowest:NAME and highest:NAME state the direction."
        ),
    ] = None,
    init: Annotated[
        Path | None,
        typer.Option(
            help="Begin with the parameters of this model, such as runs/NAME/model.safetensors; for"
            " a job with several models, a folder with their files. Hosts that run workers need the"
            " file at the same path."
        ),
    ]
    | str = None,
    checkpoint_every: flags.CheckpointEvery = None,
    store: flags.StoreUrl = None,
    keep: Annotated[int, typer.Option(help="How many of the newest checkpoints are kept.")] = 3,
    on_loss: Annotated[
        str,
        typer.Option(
            help="What happens when more servers are lost than there are copies: end, or resume from"
            " the newest checkpoint, without the dead servers unless --respawn starts them again."
        ),
    ] = "end",
    seed: Annotated[
        int,
        typer.Option(
            help="Seed of the order in which points are visited. The job's code can use it too."
        ),
    ] = 0,
    name: flags.NewRunName = None,
    runs_dir: flags.RunsDir | str = flags.RUNS,
    host: flags.Host = "127.0.0.1",
    port: flags.Port = 0,
    insecure: flags.Insecure = False,
    start_timeout: Annotated[
        float, typer.Option(help="Seconds to wait for all workers before round 1 opens.")
    ] = 60.0,
    lead_timeout: Annotated[
        float,
        typer.Option(
            help="Workers and servers end after this many seconds without a heartbeat of the lead."
        ),
    ] = 120.0,
    threads: flags.Threads = None,
    devices: flags.Devices | list[str] = "auto",
    data_dir: Annotated[
        Path | None,
        typer.Option(help="A folder of data sets, searched first: see 'polyrhythm data'."),
    ]
    | str = None,
    set: Annotated[  # noqa: A002
        list[str] | None,
        typer.Option(
            "--set",
            help="An option NAME=VALUE for the job's code (repeatable). Built-in jobs accept rate=0.01"
            " and batch=128.",
        ),
    ]
    | Mapping[str, object] = None,
    respawn: Annotated[
        bool,
        typer.Option(
            "--respawn",
            help="Restart workers and servers that die, under the same name, after a pause of 0.5 s,"
            " which doubles, up to 30 s, with each death without a contribution.",
        ),
    ] = False,
    on_error: Annotated[
        str,
        typer.Option(
            help="What happens when a worker's code raises an error: go-on (the other workers go on),"
            " or end (the job ends)."
        ),
    ] = "go-on",
    on_nan: Annotated[
        str,
        typer.Option(
            help="What happens when a contribution contains NaN or infinity: refuse (the worker fails),"
            " skip (the contribution is left out, and counted), or end (the job ends)."
        ),
    ] = "refuse",
    engine: Annotated[
        str,
        typer.Option(
            help="Where servers and workers run: local (a process each), or inline (all in this"
            " process, for debugging: breakpoint() works)."
        ),
    ] = LOCAL,
    min_step: staging.MinStep = None,
    slow: staging.Slow = None,
    slow_at: staging.SlowAt = None,
    stall: staging.Stall = None,
    tenant: staging.Tenant = None,
    slow_fold: staging.SlowFold = None,
    trace: flags.Trace = False,
    check: flags.Check = False,
    quiet: flags.Quiet = False,
    debug: flags.Debug = False,
    **unknown: Never,
) -> "Result":
    """Train a model on several worker and server processes of this machine, and return the result.

    `main` is the function that every worker runs, a FILE.py with such a function, or the name of a
    built-in job. A function may be defined in a script or in a notebook: it is sent to the worker
    processes together with the variables that it uses. Every keyword is a flag of `polyrhythm
    train`: `local_steps=8` is `--local-steps 8`. `set` may also be a dict, and `devices` a
    list.

    Of rounds, epochs, points, targets and seconds, the first that is reached ends the job. Ctrl-C
    stops the job in an orderly way, and `stopped` of the result is true. A second Ctrl-C ends it at
    once and raises KeyboardInterrupt. Raises an error of `polyrhythm.errors`: UsageError for wrong
    options, and JobFailed, with the result so far, if the job does not reach its goal.
    """
    check_options(train, locals(), unknown)
    code = find_code(main)
    runs_dir = Path(runs_dir).expanduser()
    targets = targets_of(target, target_accuracy, target_objective)
    if kind == AUTO:
        kind = str(code.defaults.get("kind", AUTO))
    options = own_options(set)
    if code.name in JOBS and OF_SET in code.defaults:
        options = check_point_options(code.name, options, code.defaults[OF_SET])
    elif code.name in JOBS:
        check_numbers(options)
    if data_dir is not None:
        options[DATA_DIR] = str(Path(data_dir).expanduser().resolve())
    spec = JobSpec(
        job=uuid.uuid4().hex,
        name=code.name,
        workers=workers,
        servers=servers,
        replicas=replicas,
        sync=with_global_batch(sync, global_batch),
        timer="off" if deterministic and timer == "auto" else timer,
        deterministic=deterministic,
        kind=kind,
        local_steps=local_steps,
        outer=outer,
        weights=weights,
        rounds=rounds,
        epochs=epochs,
        points=points,
        seed=seed,
        start_timeout_s=start_timeout,
        lead_timeout_s=lead_timeout,
        wire_dtype=wire_dtype,
        push=push,
        in_place=in_place,
        updater=updater,
        options=options,
        async_scale=async_scale,
        async_momentum=async_momentum,
        read_ahead=read_ahead,
        interval=interval,
        coordination=coordination,
        abandon=abandon,
        migrate=migrate,
        data_private=data_private,
        share_data=share_data,
        migrate_memory=policies.memory_of(migrate_memory),
        most_steps=most_steps,
        probe_points=probe_points,
        min_batch=min_batch,
        respawn=respawn,
        on_error=on_error,
        on_nan=on_nan,
        targets=targets,
        target_change=target_change,
        max_seconds=max_seconds,
        keep_best=keep_best or "",
        init="" if init is None else str(checked_init(Path(init))),
        save_model=True,
        checkpoint_every=checkpoint_every or "",
        on_loss=on_loss,
        keep=keep,
        path=code.path,
        code_digest=code.digest,
        served=code.served,
        link=link,
        staging=staging.staged(
            min_step, slow=slow, slow_at=slow_at, stall=stall, tenant=tenant, slow_fold=slow_fold
        ),
    )
    spec = choose_kind(spec)
    check_spec(spec, link, digest)
    check_host(host, insecure)
    check_port(port)
    check_threads(threads)
    devices = as_text(devices)
    parse_devices(devices)
    check_engine(engine)
    here = Here.of(spec, local_servers, 0 if code.served else local_workers)
    check_sharing(spec, workers_here=here.workers)
    check_checkpoints(spec, store, here)
    if DATA in code.defaults:
        from polyrhythm.api.fetching import fetch_for

        fetch_for(code.name, code.defaults, options.get(DATA_DIR), quiet=quiet)
    spec = with_store(spec, store, runs_dir)
    run_dir = make_run_dir(runs_dir, name, code.stem)
    with discarded_if_not_started(run_dir):
        for line in [] if quiet else [*without_goal(spec), *without_effect(spec)]:
            say(f"polyrhythm: {line}")
        say_starting(here, quiet=quiet)
        # This import takes seconds. It comes after the line above, so that the line is printed at
        # once.
        from polyrhythm.api.running import run_job

    return run_job(
        in_run_folder(spec, here, run_dir),
        here,
        run_dir,
        quiet=quiet,
        engine=engine,
        main=code.main,
        remote=code.remote,
        link=link,
        digest=digest,
        host=host,
        port=port,
        threads=threads,
        devices=devices,
        trace=trace,
        check=check,
        debug=debug,
    )
