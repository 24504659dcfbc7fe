"""The settings of a job."""

import msgspec


class Target(msgspec.Struct, frozen=True):
    """A value of a metric at which the job ends. `at_least`: the metric must rise to the value;
    otherwise it must fall to it."""

    metric: str
    value: float
    at_least: bool

    def met(self, value: float) -> bool:
        return value >= self.value if self.at_least else value <= self.value


class JobSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a job. Every machine is built from them, so a trace needs no other settings
    to be replayed."""

    job: str
    name: str = "job"
    workers: int = 1
    servers: int = 1
    sync: str = "bsp"
    timer: str = "auto"
    kind: str = "gradient"
    local_steps: int = 1
    outer: str = "off"
    """Kind local: the optimizer with which servers fold the averaged change of a round
    (`core/kinds.py`). `off`: they add the average."""
    weights: str = "points"
    """How a round weighs its contributions: `points`, by the points that each contains; `workers`,
    all equally."""
    rounds: int | None = None
    epochs: int | None = None
    points: int | None = None
    """The job ends when this many points have counted."""
    seed: int = 0
    start_timeout_s: float = 60.0
    slice_nbytes: int = 2 * 1024 * 1024
    """The greatest size of a slice; 0 if the lead decides it (`core/placement/division.py`)."""
    wire_dtype: str = "same"
    push: str = "exact"
    """How workers send contributions over TCP: `exact`, or `int8`, quantised to integers of 8 bits
    (`core/kinds.py`)."""
    in_place: bool = False
    updater: str = "optimizer"
    options: dict[str, str] = {}
    async_scale: str = "auto"
    """Without rounds: how the learning rate of every contribution is scaled. `members` divides it
    by the number of members, `root` by the root of this number, `none` leaves it as it is, and
    `auto` chooses by the optimizer."""
    async_momentum: str = "round"
    """Without rounds: how often momentum decays. `contribution`: once per contribution. `round`:
    once per P contributions, where P is the number of members."""
    read_ahead: bool = False
    """asp: whether a worker begins its next step before it has received the parameters that contain
    its last contribution."""
    heartbeat_s: float = 0.5
    lead_timeout_s: float = 120.0
    """A worker or server ends when it has received nothing from the lead for this long."""
    respawn: bool = False
    """Whether dead workers are started again. If so, a job whose workers are all dead waits for the
    next one instead of ending."""
    targets: tuple[Target, ...] = ()
    """The job ends when one of these metrics has reached its value (`core/metrics.py`)."""
    max_seconds: float | None = None
    path: str = ""
    """The path of the job's file on the host that started it; empty for a built-in job."""
    code_digest: str = ""
    """The SHA-256 digest of the job's file when the job began; empty if it has none."""
    on_error: str = "go-on"
    """What happens when a worker's code raises an exception: `go-on`, the other workers go on;
    `end`, the job ends."""
    on_nan: str = "refuse"
    """What happens when a contribution is not finite: `refuse`, the worker fails; `skip`, the
    worker abstains from the round; `end`, the job ends."""
    link: str = "auto"
    """How the processes that the job's own command starts are linked (`--link`); a resumed job keeps
    it. Processes that join the job decide that by themselves."""
    slowdowns: dict[str, str] = {}
    """Artificial delays of some workers or servers, by the flag that sets them
    (`learn/slowdowns.py`)."""
    interval: str = "auto"
    coordination: str = "semi"
    most_steps: int = 64
    probe_points: int = 2048
    target_change: float | None = None
    """The job ends when the objective changes by less than this in a full pass."""
    migrate: str = "off"
    """Whether and how points move from slow workers to fast ones: auto, off, lease, full or
    blocking."""
    abandon: str = "off"
    """fsp: how long a round waits, after its interval, for a worker that has not finished its
    micro-batch."""
    on_loss: str = "end"
    """What happens when servers die and no other server has their slices: `end`, the job ends;
    `resume`, it goes back to its newest checkpoint."""
    replicas: int = 0
    """How many servers hold a copy of each slice, besides its primary."""
    placement: str = "ring"
    """By which scheme slices are assigned to servers (`core/placement/schemes.py`)."""
    optimizer_on: str = "servers"
    """bsp: where the steps of the optimizer are made: on the `servers`, or on the `workers`, each of
    which then steps its own copy of the parameters (`core/kinds.py`)."""
    deterministic: bool = False
    """bsp: whether servers add contributions in the order of the workers' names, so that a
    repetition of the job computes the same bits."""
    keep_best: str = ""
    """The metric by which the best model is chosen: its name, or `lowest:NAME` or `highest:NAME`.
    The best model is saved beside the last one. Empty: only the last model is saved."""
    init: str = ""
    """The path of a saved model with which training begins. Empty: it begins with the model that
    the job's code makes."""
    save_model: bool = False
    """Whether the lead's process writes the trained model to a file when the job ends."""
    min_batch: int = 2
    """The fewest points of a batch: a smaller remainder joins the batch before it."""
    checkpoint_every: str = ""
    """How often a checkpoint is made: a duration such as 60s, or a number of rounds such as
    100rounds. Empty: only on request."""
    store: str = ""
    """The address of the store of checkpoints; empty: the job has no store."""
    keep: int = 3
    """How many checkpoints are kept; the older ones are deleted."""
    checkpoints: int = 0
    """The highest number of a checkpoint in the store when the job began."""
    resume: str = ""
    """The address of the store with the checkpoint from which the job resumes; empty: the job
    begins from the start."""
    resume_number: int = 0
    """The number of the checkpoint from which the job resumes."""
    resume_round: int = 0
    """The number of rounds before the checkpoint from which the job resumes."""
    served: bool = False
    """Whether the job has no code: its workers are processes that others start (`polyrhythm
    serve`). Such a job waits for workers even if all have left."""
    data_private: bool = False
    """Whether every worker has its own data set, which no other worker can read."""
    share_data: bool = False
    """With `data_private`: whether the workers that the job's own command starts may send their points
    to others. A worker that joins the job decides that by itself."""
    migrate_memory: int | None = None
    """If points are sent from worker to worker: the most bytes of the inactive copies that a worker
    keeps. None: as many bytes as the points of a worker's first share have."""
