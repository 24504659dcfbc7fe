"""The settings of a job."""

import msgspec


class JobSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a job. Every machine is built from them, so a trace needs nothing else for a
    replay."""

    job: str
    name: str = "job"
    workers: int = 1
    servers: int = 1
    sync: str = "bsp"
    timer: str = "auto"
    kind: str = "gradient"
    local_steps: int = 1
    rounds: int | None = None
    epochs: int | None = None
    seed: int = 0
    start_timeout_s: float = 60.0
    slice_nbytes: int = 2 * 1024 * 1024
    wire_dtype: str = "same"
    in_place: bool = False
    updater: str = "optimizer"
    options: dict[str, str] = {}
    async_scale: str = "members"
    """If contributions are folded one by one: `members` scales each rate by 1/P, `none` does
    not."""
    async_momentum: str = "round"
    """If contributions are folded one by one: momentum decays once per `round` of all members, or
    once per `contribution`."""
    read_ahead: bool = False
    """asp: begin the next step before the parameters that contain the last contribution have
    come."""
    heartbeat_s: float = 0.5
    lead_timeout_s: float = 120.0
    """A worker or server ends when it has received nothing from the lead for this long."""
    respawn: bool = False
    """Dead workers are started again, so a job without workers waits for the next one."""
    target_accuracy: float | None = None
    target_objective: float | None = None
    max_seconds: float | None = None
    path: str = ""
    """The path of the job's file on the host that started it; empty for a built-in job."""
    on_error: str = "go-on"
    """What happens when a worker's code raises: the others `go-on`, or the job must `end`."""
    staging: dict[str, str] = {}
    """Staging by flag: artificial delays of some workers or servers (`learn/staging.py`)."""
    interval: str = "auto"
    coordination: str = "semi"
    most_steps: int = 64
    probe_points: int = 2048
    target_change: float | None = None
    """End when the objective changes by less than this in a full pass."""
    abandon: str = "off"
    """fsp: how long the others wait for a micro-batch after the interval."""
    on_loss: str = "end"
    """What happens when parameters are lost with servers: the job must `end`, or `resume` from its
    newest checkpoint."""
    replicas: int = 0
    """The number of copies of every slice on other servers than its primary."""
    deterministic: bool = False
    """bsp: servers add contributions in the order of the workers' names, so that a repetition of the
    job computes the same bits."""
    keep_best: str = ""
    """The measure by which the best model is kept beside the last one; empty: it is not kept."""
    init: str = ""
    """The path of a saved model from which training begins; empty: from the model of the job."""
    save_model: bool = False
    """Keep the trained model: the lead's process writes it when the job ends."""
    min_batch: int = 2
    """The fewest points of a batch: a smaller remainder joins the batch before it."""
    checkpoint_every: str = ""
    """How often a checkpoint is made: a duration such as 60s, or 100rounds; empty: on request."""
    store: str = ""
    """The address of the store of checkpoints; empty: the job has none."""
    keep: int = 3
    """How many checkpoints are kept; the older ones are deleted."""
    checkpoints: int = 0
    """The highest number of a checkpoint in the store when the job began."""
    resume: str = ""
    """The address of the store of the checkpoint that the job resumes from; empty: it begins."""
    resume_number: int = 0
    """The number of that checkpoint."""
    resume_round: int = 0
    """How many rounds were folded when that checkpoint was made."""
