"""`polyrhythm.train`: its signature is the list of all options. A keyword's annotation says
everything about the option (`api/options.py`): from it follow the flags of the command line, the
settings of the job, the checks, and the options of `serve` and `resume`."""

import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Never

from polyrhythm.api import flags
from polyrhythm.api.boundary import public
from polyrhythm.api.checks import (
    check_checkpoints,
    check_host,
    check_sharing,
    check_spec,
    in_run_folder,
    with_store,
    without_effect,
)
from polyrhythm.api.code import Code, find_code
from polyrhythm.api.folders import discarded_if_not_started, make_run_dir
from polyrhythm.api.hosts import Here, ProcessOptions, cluster_of, colocated_servers
from polyrhythm.api.options import (
    DATA,
    JOBS_OF_SERVERS,
    OF_SET,
    RESUMED,
    TRAIN,
    WORKERS_HERE,
    Group,
    Option,
    check_options,
    fields_of,
    has_goal,
    with_job_defaults,
)
from polyrhythm.api.saying import say, say_starting
from polyrhythm.api.trials import trial_of_process
from polyrhythm.api.values import (
    a_best_metric,
    a_change,
    a_number_or_time,
    a_port,
    a_time,
    accuracy_target,
    an_accuracy,
    an_objective,
    at_least,
    initial_model,
    items,
    least_workers,
    memory,
    objective_target,
    one_of,
    one_or_two_numbers,
    own_options,
    seconds,
    slice_nbytes,
    some_demands,
    some_workers,
    targets,
)
from polyrhythm.core.cluster import worker_range
from polyrhythm.core.devices import as_text
from polyrhythm.core.kinds import EXAMPLE, OPTIMIZER_ON
from polyrhythm.core.placement.schemes import RING, SCHEMES
from polyrhythm.core.supervision import ON_LOSS
from polyrhythm.core.sync.barrier.timer import timer_of
from polyrhythm.core.sync.registry import AUTO, POLICIES, choose_kind, sync_help, with_global_batch
from polyrhythm.engines.choice import LOCAL, RAY, check_engine, check_engine_runs
from polyrhythm.learn.data.places import DATA_DIR
from polyrhythm.learn.jobs.numbers import check_numbers
from polyrhythm.learn.jobs.point_options import check_point_options
from polyrhythm.learn.load import JOBS
from polyrhythm.runtime.choices import (
    ASYNC_MOMENTA,
    ASYNC_SCALES,
    LINKS,
    ON_ERROR,
    ON_NAN,
    PUSHES,
    UPDATERS,
    WEIGHTS,
    WIRE_DTYPES,
)
from polyrhythm.wire.messages import JobSpec

if TYPE_CHECKING:
    from polyrhythm.api.result import Result
    from polyrhythm.learn.worker import Worker


@public
@with_job_defaults
def train(
    main: Callable[["Worker"], None] | str | Path,
    *,
    set: Annotated[  # noqa: A002
        list[str] | None,
        Option(
            "An option for your code: the text worker.options['NAME'] (repeatable). Built-in jobs accept"
            " rate=0.01 and batch=128.",
            metavar="NAME=VALUE",
            group=Group.JOB,
            common=True,
        ),
    ]
    | Mapping[str, object] = None,
    data_dir: Annotated[
        Path | None,
        Option(
            "A folder of data sets, searched first. See 'polyrhythm data'.",
            metavar="FOLDER",
            group=Group.JOB,
            common=True,
            commands=TRAIN,
        ),
    ]
    | str = None,
    epochs: Annotated[
        int | None,
        Option(
            "End after this many passes over the data. If no goal is given, the job's code says how"
            " many.",
            metavar="N",
            group=Group.JOB,
            common=True,
            field="epochs",
            goal=True,
            check=at_least(1),
            commands=RESUMED,
        ),
    ] = None,
    rounds: Annotated[
        int | None,
        Option(
            "End after this many rounds.",
            metavar="N",
            group=Group.JOB,
            common=True,
            field="rounds",
            goal=True,
            check=at_least(1),
            commands=RESUMED,
        ),
    ] = None,
    points: Annotated[
        int | None,
        Option(
            "End when this many points of all workers together have counted. A job without a data"
            " set"
            " can use it too: the points are those that step(points=...) gives.",
            metavar="N",
            group=Group.JOB,
            field="points",
            goal=True,
            check=at_least(1),
            commands=RESUMED,
        ),
    ] = None,
    max_seconds: Annotated[
        float | None,
        Option(
            "End after this time of training, such as 60 (seconds) or 2h, when the open round is done."
            " If workers hang, the job waits as long as the longest step took, plus 10 s to a minute;"
            " then it ends without them.",
            metavar="TIME",
            group=Group.JOB,
            common=True,
            field="max_seconds",
            goal=True,
            parser=a_number_or_time,
            read=seconds,
            check=a_time,
            commands=RESUMED,
        ),
    ]
    | str = None,
    target: Annotated[
        list[str] | None,
        Option(
            "End when a metric that workers report has this value: accuracy=0.95, val_loss=0.3"
            " (repeatable). A loss or error must fall to the value, other metrics must rise to it;"
            " 'f1>=0.9' and 'time<=2' state the direction. --target-accuracy 0.95 and"
            " --target-objective 0.3 are short for --target accuracy=0.95 and --target objective=0.3.",
            metavar="METRIC=VALUE",
            group=Group.JOB,
            common=True,
            field="targets",
            read=targets,
            goal=True,
            commands=RESUMED,
        ),
    ]
    | str
    | Mapping[str, float] = None,
    target_accuracy: Annotated[
        float | None,
        Option(
            "Short for --target accuracy=VALUE.",
            hidden=True,
            group=Group.JOB,
            field="targets",
            read=accuracy_target,
            goal=True,
            check=an_accuracy,
            commands=RESUMED,
        ),
    ] = None,
    target_objective: Annotated[
        float | None,
        Option(
            "Short for --target objective=VALUE.",
            hidden=True,
            group=Group.JOB,
            field="targets",
            read=objective_target,
            goal=True,
            check=an_objective,
            commands=RESUMED,
        ),
    ] = None,
    target_change: Annotated[
        float | None,
        Option(
            "End when the objective changes by less than this in a full pass.",
            metavar="CHANGE",
            group=Group.JOB,
            field="target_change",
            goal=True,
            check=a_change,
        ),
    ] = None,
    init: Annotated[
        Path | None,
        Option(
            "Begin with the parameters of this model, such as runs/NAME/model.safetensors. For a job"
            " with several models, give a folder with their files. Hosts that run workers need the"
            " file at the same path.",
            metavar="FILE",
            group=Group.JOB,
            common=True,
            field="init",
            read=initial_model,
        ),
    ]
    | str = None,
    seed: Annotated[
        int,
        Option(
            "Seed of the order in which points are visited. The job's code can use it too.",
            metavar="N",
            group=Group.JOB,
            common=True,
            field="seed",
            check=at_least(0),
        ),
    ] = 0,
    data_private: Annotated[
        bool,
        Option(
            "Every worker has its own data set. worker.batches gets different points on each"
            " worker, and may get a different number of them. While a worker is gone, passes do not"
            " include its points.",
            "--data-private/--no-data-private",
            show_default=False,
            group=Group.JOB,
            field="data_private",
        ),
    ] = False,
    share_data: Annotated[
        bool,
        Option(
            "With --data-private: points of the workers that this command starts may be sent to other"
            " workers of the job, so that all points are visited equally often. Without this flag the"
            " points never leave their worker. A worker that joins from elsewhere has its own"
            " --share-data.",
            "--share-data/--no-share-data",
            show_default=False,
            group=Group.JOB,
            field="share_data",
            commands=TRAIN,
        ),
    ] = False,
    on_nan: Annotated[
        str,
        Option(
            "What happens when a contribution contains NaN or infinity. refuse: the worker fails. skip:"
            " the contribution is left out, and counted. end: the job ends.",
            metavar="refuse|skip|end",
            group=Group.JOB,
            field="on_nan",
            check=one_of(ON_NAN),
        ),
    ] = "refuse",
    workers: Annotated[
        int,
        Option(
            "Number of workers. Each is a process. With --engine ray also 2..8: the job begins"
            " with 2 workers, and starts others, up to 8, when the cluster has room.",
            metavar="N",
            group=Group.PROCESSES,
            common=True,
            field="workers",
            parser=one_or_two_numbers,
            read=least_workers,
            check=some_workers,
            commands=RESUMED,
        ),
    ]
    | str = 3,
    servers: Annotated[
        int,
        Option(
            "Number of servers. Each is a process.",
            metavar="N",
            group=Group.PROCESSES,
            common=True,
            field="servers",
            check=at_least(1),
            commands=RESUMED,
        ),
    ] = 2,
    replicas: Annotated[
        int,
        Option(
            "How many copies of every slice other servers keep. This many servers may die at the"
            " same time, and no acknowledged contribution is lost. The first server runs the lead,"
            " and must not die.",
            metavar="N",
            group=Group.PROCESSES,
            common=True,
            field="replicas",
            commands=RESUMED,
        ),
    ] = 0,
    local_workers: Annotated[
        int | None,
        Option(
            "How many workers this command starts (default: all). The others join with 'polyrhythm"
            " worker'.",
            metavar="N",
            group=Group.PROCESSES,
            common=True,
            commands=WORKERS_HERE,
        ),
    ] = None,
    local_servers: Annotated[
        int | None,
        Option(
            "How many servers this command starts (default: all). The others join with 'polyrhythm"
            " server'.",
            metavar="N",
            group=Group.PROCESSES,
            common=True,
            commands=RESUMED,
        ),
    ] = None,
    colocate: Annotated[
        bool,
        Option(
            "Start a server beside each worker, so that there are as many servers as workers."
            " Others join with 'polyrhythm worker --colocate'.",
            "--colocate",
            group=Group.PROCESSES,
            commands=JOBS_OF_SERVERS,
        ),
    ] = False,
    devices: flags.Devices | list[str] = "auto",
    respawn: Annotated[
        bool,
        Option(
            "Start a worker or server again when it dies, under the same name, after 0.5 s. The"
            " pause doubles with each further death without a contribution, up to 30 s.",
            "--respawn",
            group=Group.PROCESSES,
            common=True,
            field="respawn",
        ),
    ] = False,
    on_error: Annotated[
        str,
        Option(
            "What happens when a worker's code raises an error. go-on: the other workers go on. end:"
            " the job ends.",
            metavar="go-on|end",
            group=Group.PROCESSES,
            field="on_error",
            check=one_of(ON_ERROR),
        ),
    ] = "go-on",
    on_loss: Annotated[
        str,
        Option(
            "What happens when more servers are lost than there are copies. end: the job ends."
            " resume: the job continues from its newest checkpoint. It does so without the dead"
            " servers, unless --respawn starts them again.",
            metavar="end|resume",
            group=Group.PROCESSES,
            field="on_loss",
            check=one_of(ON_LOSS),
        ),
    ] = "end",
    engine: Annotated[
        str,
        Option(
            "Where servers and workers run. local: a process each. inline: all in this process, for"
            " debugging: breakpoint() works. ray: on a Ray cluster, an actor each.",
            metavar="local|inline|ray",
            group=Group.PROCESSES,
            check=lambda flag, value: check_engine(value),
            commands=WORKERS_HERE,
        ),
    ] = LOCAL,
    address: Annotated[
        str | None,
        Option(
            "--engine ray: the Ray cluster, as HOST:PORT. auto: the cluster of this machine. local: a"
            " new one that ends with the job. Default: RAY_ADDRESS, else auto, else local.",
            metavar="ADDRESS",
            group=Group.PROCESSES,
            commands=WORKERS_HERE,
        ),
    ] = None,
    resources_per_worker: Annotated[
        list[str] | None,
        Option(
            "--engine ray: what each worker asks for, such as CPU=2,GPU=1 (default: CPU=1). Other"
            " names are custom resources; LABEL=VALUE chooses nodes by a label. 2:GPU=1 is for"
            " two of"
            " the workers (repeatable).",
            metavar="NAME=NUMBER,...",
            group=Group.PROCESSES,
            check=some_demands,
            commands=WORKERS_HERE,
        ),
    ]
    | str
    | Mapping[str, object] = None,
    resources_per_server: Annotated[
        list[str] | None,
        Option(
            "--engine ray: what each server asks for, such as CPU=2 (default: CPU=1).",
            metavar="NAME=NUMBER,...",
            group=Group.PROCESSES,
            check=some_demands,
            commands=WORKERS_HERE,
        ),
    ]
    | str
    | Mapping[str, object] = None,
    detach: Annotated[
        bool,
        Option(
            "--engine ray: end this command when the job has begun; the job continues on the"
            " cluster. See"
            " it with 'polyrhythm status', and end it with 'polyrhythm stop'.",
            "--detach",
            group=Group.PROCESSES,
            commands=WORKERS_HERE,
        ),
    ] = False,
    sync: Annotated[
        str,
        Option(
            f"Sync policy: {', '.join(each.syntax for each in POLICIES.values())}. {sync_help()}.",
            metavar="POLICY",
            group=Group.SYNCHRONISATION,
            common=True,
            field="sync",
            commands=RESUMED,
        ),
    ] = "bsp",
    global_batch: Annotated[
        int | None,
        Option(
            "The same as --sync bspg:N: the number of points in each round, divided among the"
            " present workers. So the number does not change when workers join or leave. A share"
            " larger than the batch size of the loop is visited in several batches.",
            hidden=True,
            group=Group.SYNCHRONISATION,
        ),
    ] = None,
    kind: Annotated[
        str,
        Option(
            "What workers send: gradient, local (changes after local steps), statistics, or auto."
            " statistics is for point-wise algorithms. auto: local under psp and fsp and with --outer,"
            " gradient otherwise.",
            metavar="KIND",
            group=Group.SYNCHRONISATION,
            common=True,
            field="kind",
        ),
    ] = AUTO,
    local_steps: Annotated[
        int,
        Option(
            "Kind local: the number of local steps per contribution.",
            metavar="N",
            group=Group.SYNCHRONISATION,
            common=True,
            field="local_steps",
            check=at_least(1),
        ),
    ] = 1,
    outer: Annotated[
        str,
        Option(
            "Kind local: the servers' optimizer for the average change, such as nesterov (DiLoCo). It"
            f" makes one step in each round. With options: {EXAMPLE} or adam:lr=0.01. Its lr is the"
            " learning rate of that step. Both sgd:lr=1 and off are plain averaging.",
            metavar="OPTIMIZER",
            group=Group.SYNCHRONISATION,
            common=True,
            field="outer",
        ),
    ] = "off",
    deterministic: Annotated[
        bool,
        Option(
            "bsp: a repetition of the job computes the same bits, if its code is deterministic. Servers"
            " keep the contributions of a round and add them in the order of the workers' names,"
            " workers use one thread, and rounds wait for every worker.",
            "--deterministic",
            group=Group.SYNCHRONISATION,
            common=True,
            field="deterministic",
        ),
    ] = False,
    optimizer_on: Annotated[
        str,
        Option(
            "bsp with kind gradient: where the optimizer makes its steps. servers: on the servers."
            " workers: servers only add the gradients up, and every worker makes the same step with"
            " the sum. Slices then move between servers without their state, and rounds wait for"
            " every worker.",
            metavar="servers|workers",
            group=Group.SYNCHRONISATION,
            field="optimizer_on",
            check=one_of(OPTIMIZER_ON),
            commands=RESUMED,
        ),
    ] = "servers",
    timer: Annotated[
        str,
        Option(
            "How long a round waits for missing workers: auto, off, or a time such as 120s. auto: three"
            " times the longest of the last 20 rounds, and at least 10 s; 120 s for the first round.",
            metavar="TIME",
            group=Group.SYNCHRONISATION,
            field="timer",
        ),
    ] = "auto",
    weights: Annotated[
        str,
        Option(
            "Policies with rounds: how a round weighs its contributions. points: by the points that"
            " each contains. workers: all equally.",
            metavar="points|workers",
            group=Group.SYNCHRONISATION,
            field="weights",
            check=one_of(WEIGHTS),
        ),
    ] = "points",
    migrate: Annotated[
        str,
        Option(
            "Policies with rounds: how chunks of data move from slow workers to fast ones, so"
            " that all points are visited equally often. lease: only the right to visit a chunk"
            " moves, and the"
            " fast worker reads the points itself. full: the slow worker sends the points while"
            " both"
            " train. blocking: like full, but both workers wait until the points have arrived."
            " off: no"
            " chunks move. auto: off, except under fsp. Under fsp it is lease if all workers can"
            " read"
            " the whole data set, otherwise full (as with --data-private and kind statistics).",
            metavar="HOW",
            group=Group.SYNCHRONISATION,
            field="migrate",
        ),
    ] = "auto",
    updater: Annotated[
        str,
        Option(
            "What servers do with contributions. optimizer: a step of the job's optimizer; with"
            " kind local, they apply the average. addition: they add all contributions up, for"
            " counting, sums and tests.",
            metavar="optimizer|addition",
            group=Group.SYNCHRONISATION,
            field="updater",
            check=one_of(UPDATERS),
        ),
    ] = "optimizer",
    name: Annotated[
        str | None,
        Option(
            "The name of the run, and of its folder in runs/.",
            group=Group.RESULTS,
            metavar="NAME",
            common=True,
            commands=RESUMED,
        ),
    ] = None,
    runs_dir: flags.RunsDir | str = flags.RUNS,
    keep_best: Annotated[
        str | None,
        Option(
            "Also keep the model with the best value of this metric, in model-best.safetensors. Workers"
            " report the metric, such as accuracy or val_loss. A loss or error is best when lowest,"
            " others when highest; lowest:NAME and highest:NAME state the direction.",
            metavar="METRIC",
            group=Group.RESULTS,
            common=True,
            field="keep_best",
            check=a_best_metric,
        ),
    ] = None,
    checkpoint_every: Annotated[
        str | None,
        Option(
            "How often a checkpoint is made: a time such as 60s, or a number such as 100rounds.",
            metavar="TIME",
            group=Group.RESULTS,
            common=True,
            field="checkpoint_every",
            commands=RESUMED,
        ),
    ] = None,
    keep: Annotated[
        int,
        Option(
            "How many of the newest checkpoints are kept.",
            metavar="N",
            group=Group.RESULTS,
            field="keep",
            check=at_least(1),
            commands=RESUMED,
        ),
    ] = 3,
    store: Annotated[
        str | None,
        Option(
            "Where checkpoints are kept, if not in the run's folder: a folder or s3://BUCKET/PATH."
            " gs://BUCKET/PATH and az://CONTAINER/PATH are possible too.",
            metavar="URL",
            group=Group.RESULTS,
            common=True,
            commands=RESUMED,
        ),
    ] = None,
    quiet: flags.Quiet = False,
    trace: Annotated[
        bool,
        Option(
            "Record a trace of every event and decision in the run's folder, for debugging.",
            "--trace",
            group=Group.RESULTS,
            commands=RESUMED,
        ),
    ] = False,
    debug: flags.Debug = False,
    host: Annotated[
        str,
        Option(
            "Address that servers listen on.",
            metavar="ADDRESS",
            group=Group.NETWORK,
            common=True,
            commands=RESUMED,
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int,
        Option(
            "Port of the first server; 0 for any free port.",
            metavar="PORT",
            group=Group.NETWORK,
            common=True,
            check=a_port,
            commands=RESUMED,
        ),
    ] = 0,
    insecure: Annotated[
        bool,
        Option(
            "Allow a --host that other machines can reach.",
            "--insecure",
            group=Group.NETWORK,
            common=True,
            commands=RESUMED,
        ),
    ] = False,
    link: Annotated[
        str,
        Option(
            "How processes are linked: auto, tcp, or local (shared memory).",
            metavar="LINK",
            group=Group.NETWORK,
            common=True,
            field="link",
            check=one_of(LINKS),
            commands=RESUMED,
        ),
    ] = "auto",
    digest: flags.Digest = "auto",
    start_timeout: Annotated[
        float,
        Option(
            "How long round 1 waits for all workers, such as 60 (seconds) or 5min.",
            metavar="TIME",
            group=Group.NETWORK,
            field="start_timeout_s",
            parser=a_number_or_time,
            read=seconds,
            check=a_time,
        ),
    ]
    | str = 60.0,
    lead_timeout: Annotated[
        float,
        Option(
            "Workers and servers end after this long without a heartbeat of the lead.",
            metavar="TIME",
            group=Group.NETWORK,
            field="lead_timeout_s",
            parser=a_number_or_time,
            read=seconds,
            check=a_time,
        ),
    ]
    | str = 120.0,
    threads: flags.Threads = None,
    min_batch: Annotated[
        int,
        Option(
            "The least number of points in a batch. If fewer points are left at the end of the"
            " data, they are added to the last batch.",
            metavar="N",
            group=Group.TUNING,
            field="min_batch",
            check=at_least(1),
        ),
    ] = 2,
    push: Annotated[
        str,
        Option(
            "How contributions are sent over TCP: exact, or int8, which needs a quarter of the"
            " bytes. The rounding error of a contribution is added to the worker's next one. Over"
            " local links, contributions are always exact.",
            metavar="exact|int8",
            group=Group.TUNING,
            field="push",
            check=one_of(PUSHES),
        ),
    ] = "exact",
    placement: Annotated[
        str,
        Option(
            "How slices are assigned to servers. ring: equal numbers of slices. average: equal"
            " bytes. aware: by the measured throughput of hosts and links. elastic: by the times"
            " at which contributions arrived in the last 20 rounds.",
            metavar="ring|average|elastic|aware",
            group=Group.TUNING,
            field="placement",
            check=one_of(tuple(SCHEMES)),
            commands=RESUMED,
        ),
    ] = RING,
    slice_size: Annotated[
        str,
        Option(
            "The largest size of a slice, such as 500kB or 1MiB. auto: 2 MiB on one machine."
            " Between machines, auto chooses a size with which pushes and pulls overlap well and"
            " all servers can hold the same number of slices.",
            metavar="SIZE",
            group=Group.TUNING,
            field="slice_nbytes",
            read=slice_nbytes,
        ),
    ] = "auto",
    wire_dtype: Annotated[
        str,
        Option(
            "The type in which float32 parameters are sent: same (float32), or bf16.",
            metavar="same|bf16",
            group=Group.TUNING,
            field="wire_dtype",
            check=one_of(WIRE_DTYPES),
        ),
    ] = "same",
    in_place: Annotated[
        bool,
        Option(
            "Let workers read parameters in the server's memory, without a copy. This needs --servers"
            " 1, kind gradient, a local link and --wire-dtype same.",
            "--in-place",
            group=Group.TUNING,
            field="in_place",
        ),
    ] = False,
    async_scale: Annotated[
        str,
        Option(
            "asp and ssp: how the learning rate of each contribution is scaled. members: 1/members."
            " root: 1/sqrt(members). none: not at all. auto: members for SGD, none for Adagrad and"
            " SparseAdam, root for Adam and the other adaptive optimizers.",
            metavar="SCALE",
            group=Group.TUNING,
            field="async_scale",
            check=one_of(ASYNC_SCALES),
        ),
    ] = "auto",
    async_momentum: Annotated[
        str,
        Option(
            "asp and ssp: when momentum (and Adam's first moment) decays. round: once per round,"
            " that is after as many contributions as there are members, as under bsp."
            " contribution: after every contribution; training then diverges at much lower"
            " learning rates.",
            metavar="WHEN",
            group=Group.TUNING,
            field="async_momentum",
            check=one_of(ASYNC_MOMENTA),
        ),
    ] = "round",
    read_ahead: Annotated[
        bool,
        Option(
            "asp: begin the next step before the parameters that contain the last contribution"
            " have arrived. This hides the time of the exchange, and often breaks training with"
            " momentum.",
            "--read-ahead",
            group=Group.TUNING,
            field="read_ahead",
        ),
    ] = False,
    most_steps: Annotated[
        int,
        Option(
            "psp: the most steps that a worker makes between two barriers.",
            metavar="N",
            group=Group.TUNING,
            field="most_steps",
            check=at_least(1),
        ),
    ] = 64,
    interval: Annotated[
        str,
        Option(
            "fsp: how long a round lasts. auto: chosen by measuring. binary: chosen by halving. Or a"
            " time such as 250ms.",
            metavar="TIME",
            group=Group.TUNING,
            field="interval",
        ),
    ] = "auto",
    abandon: Annotated[
        str,
        Option(
            "fsp: how long a round waits after its interval for micro-batches that are not finished,"
            " such as 50ms. A micro-batch that takes longer is left out, and its points are visited"
            " again. off: wait for all micro-batches.",
            metavar="TIME",
            group=Group.TUNING,
            field="abandon",
        ),
    ] = "off",
    probe_points: Annotated[
        int,
        Option(
            "fsp: the number of points on which the objective is measured.",
            metavar="N",
            group=Group.TUNING,
            field="probe_points",
            check=at_least(1),
        ),
    ] = 2048,
    migrate_memory: Annotated[
        str,
        Option(
            "--migrate full and blocking: each worker keeps up to this many bytes, such as 500MB or"
            " 2GiB, of the chunks that it gave away. So they can come back without being sent. auto: as"
            " many bytes as its first share has.",
            metavar="SIZE",
            group=Group.TUNING,
            field="migrate_memory",
            read=memory,
        ),
    ] = "auto",
    coordination: Annotated[
        str,
        Option(
            "fsp: who ends the interval of a round. semi: each worker, by its own timer. central: the"
            " lead.",
            metavar="semi|central",
            group=Group.LABORATORY,
            field="coordination",
        ),
    ] = "semi",
    min_step: Annotated[
        str | None,
        Option(
            "Slowdown: every step computes for at least this long, such as 10ms.",
            metavar="TIME",
            group=Group.LABORATORY,
            field="slowdowns.min-step",
            commands=TRAIN,
        ),
    ] = None,
    slow: Annotated[
        list[str] | None,
        Option(
            "Slowdown: 3=4x makes worker-3 compute four times as long (repeatable).",
            metavar="WORKER=FACTOR",
            group=Group.LABORATORY,
            field="slowdowns.slow",
            read=items,
            commands=TRAIN,
        ),
    ] = None,
    slow_at: Annotated[
        list[str] | None,
        Option(
            "Slowdown: 60s:3=4x makes worker-3 compute four times as long after 60 s of training"
            " (repeatable).",
            metavar="TIME:WORKER=FACTOR",
            group=Group.LABORATORY,
            field="slowdowns.slow-at",
            read=items,
            commands=TRAIN,
        ),
    ] = None,
    stall: Annotated[
        list[str] | None,
        Option(
            "Slowdown: 3=32ms/1000 makes worker-3 pause for 32 ms after every 1000 points (repeatable).",
            metavar="WORKER=PAUSE/POINTS",
            group=Group.LABORATORY,
            field="slowdowns.stall",
            read=items,
            commands=TRAIN,
        ),
    ] = None,
    tenant: Annotated[
        list[str] | None,
        Option(
            "Slowdown: 2 starts another process that competes with worker-2 (repeatable).",
            metavar="WORKER",
            group=Group.LABORATORY,
            field="slowdowns.tenant",
            read=items,
            commands=TRAIN,
        ),
    ] = None,
    slow_fold: Annotated[
        list[str] | None,
        Option(
            "Slowdown: 0=500ms makes folds of server s0 take 500 ms longer (repeatable).",
            metavar="SERVER=PAUSE",
            group=Group.LABORATORY,
            field="slowdowns.slow-fold",
            read=items,
        ),
    ] = None,
    check: Annotated[
        bool,
        Option(
            "Check internal invariants after every event, for debugging.",
            "--check",
            group=Group.LABORATORY,
            commands=RESUMED,
        ),
    ] = False,
    **unknown: Never,
) -> "Result":
    """Train a model with several worker and server processes of this machine, or of a Ray cluster,
    wait until the job has ended, and return its result.

    Every option is a keyword and a flag of `polyrhythm train`: `local_steps=8` is `--local-steps
    8`. Messages name an option by its flag. `polyrhythm.toml` and the environment are not read.
    If `main` has `DEFAULTS` in its module, they apply to the options that you do not give.

    Of `epochs`, `rounds`, `points`, `target` and `max_seconds`, the first that is reached ends
    the job. Without any of them the job trains until it is stopped. Ctrl-C shuts the job down
    cleanly: `train` returns, `Result.stopped` is true, and the result has the trained model.

    Args:
        main: what every worker runs: a function `main(worker)`, the path of a file with such a
            function, or the name of a built-in job such as `"digits"`. A function of a script or
            of a notebook is sent to the worker processes together with the functions, classes and
            variables that it uses, so the script needs no `if __name__ == "__main__":`. A job
            whose `main` is a function cannot be continued with `polyrhythm resume`.
        options: the options of the job. `set` and `target` may be dicts (`target={"val_loss":
            0.3}`), and `devices` a list (`devices=["cuda:0", "cpu"]`). `resources_per_worker` and
            `resources_per_server` may be dicts (`resources_per_worker={"CPU": 2, "GPU": 1}`).

    Returns:
        The result, with the trained model, the metrics and their history. With `detach`, the result
        so far of a job that runs.

    Raises:
        UsageError: an option is unknown or wrong, or `main` cannot be sent. No process was
            started.
        JobFailed: the job did not reach its goal. `error.result` is the result so far.
        Interrupted: a second Ctrl-C ended the job at once. It is a `KeyboardInterrupt`.
        PolyrhythmError: another error of `polyrhythm.errors`, for example a data set that is
            missing.

    Example:
        >>> def main(worker: pr.Worker) -> None:
        ...     inputs = torch.linspace(-1, 1, 200).unsqueeze(1)
        ...     model = torch.nn.Linear(1, 1)
        ...     optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
        ...     for x, y in worker.batches((inputs, 3 * inputs), batch_size=20):
        ...         loss = torch.nn.functional.mse_loss(model(x), y)
        ...         loss.backward()
        ...         optimizer.step(objective=loss)
        >>> result = pr.train(main, workers=2, servers=1, sync="bsp", epochs=30)
        >>> result.status
        'ended'
        >>> round(float(result.state_dict()["weight"]))
        3
    """
    given = dict(locals())
    check_options(train, given, unknown)
    code = find_code(main)
    spec = choose_kind(job_of(code, given))
    check_spec(spec)
    cluster, most = cluster_of(given), worker_range(workers)[1]
    check_engine_runs(engine, spec, cluster, elastic=most > spec.workers, host=host)
    check_host(host, insecure)
    here = Here.of(
        spec, local_servers, 0 if code.served else local_workers, most, colocated=colocate
    )
    check_sharing(spec, workers_here=here.workers)
    check_checkpoints(spec, store, here, apart=engine == RAY)
    if DATA in code.defaults:
        from polyrhythm.api.fetching import fetch_for

        fetch_for(code.name, code.defaults, spec.options.get(DATA_DIR), quiet=quiet)
    runs_dir = Path(runs_dir).expanduser()
    spec = with_store(spec, store, runs_dir)
    run_dir = make_run_dir(runs_dir, name, code.stem)
    with discarded_if_not_started(run_dir):
        for line in [] if quiet else [*without_goal(spec), *without_effect(spec)]:
            say(f"polyrhythm: {line}")
        say_starting(here, quiet=quiet)
        # This import takes seconds. It comes after the line above, so that the line is printed at
        # once.
        from polyrhythm.api.running import run_job

    options = ProcessOptions(
        link=link,
        digest=digest,
        host=host,
        port=port,
        threads=threads,
        devices=as_text(devices),
        trace=trace,
        check=check,
        debug=debug,
        main=code.main,
    )
    return run_job(
        spec if engine == RAY else in_run_folder(spec, here, run_dir),
        here,
        run_dir,
        options,
        quiet=quiet,
        engine=engine,
        cluster=cluster,
        remote=code.remote or trial_of_process(),
    )


def job_of(code: Code, given: Mapping[str, Any]) -> JobSpec:
    """The settings of the job, from its code and the options."""
    fields = fields_of(train, given)
    if fields["kind"] == AUTO:
        fields["kind"] = str(code.defaults.get("kind", AUTO))
    waits = {option: fields[option] for option in ("deterministic", "optimizer_on")}
    fields["timer"] = timer_of(fields["timer"], **waits)
    if given["colocate"]:
        fields["servers"] = colocated_servers(fields["servers"], fields["workers"])
    fields["sync"] = with_global_batch(fields["sync"], given["global_batch"])
    return JobSpec(
        job=uuid.uuid4().hex,
        name=code.name,
        path=code.path,
        code_digest=code.digest,
        served=code.served,
        save_model=True,
        options=_options_of_code(code, given),
        **fields,
    )


def _options_of_code(code: Code, given: Mapping[str, Any]) -> dict[str, str]:
    """The options that the job's code gets, from `--set` and `--data-dir`."""
    options = own_options(given["set"])
    if code.name in JOBS and OF_SET in code.defaults:
        options = check_point_options(code.name, options, code.defaults[OF_SET])
    elif code.name in JOBS:
        check_numbers(options)
    if given["data_dir"] is not None:
        options[DATA_DIR] = str(Path(given["data_dir"]).expanduser().resolve())
    return options


def without_goal(spec: JobSpec) -> list[str]:
    """A message if the job never ends by itself. A job of `polyrhythm.serve` often has no goal."""
    if spec.served or has_goal(train, spec):
        return []
    return [
        "the job has no goal, so it trains until Ctrl-C or 'polyrhythm stop' ends it; --epochs 10,"
        " for example, would be a goal"
    ]
