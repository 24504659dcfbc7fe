"""Events that arise inside a process, named in the past tense. Messages of peers are events too."""

from polyrhythm.core.machine import Event, Reason
from polyrhythm.core.record import Record
from polyrhythm.wire.messages import (
    Address,
    ChunkProgress,
    ContributionReport,
    FileEntry,
    ModelSpec,
    OperatorHello,
    OperatorRequest,
    Row,
    ServerHello,
    WorkerHello,
)


class Tick(Event, frozen=True):
    """The time that a machine has named in `wake_at` has come."""


class WorkerHelloReceived(Event, frozen=True):
    """A worker has sent its hello over `link`. Answers go over that link until it is bound to a
    peer."""

    link: str
    hello: WorkerHello


class ServerHelloReceived(Event, frozen=True):
    """A server has sent its hello over `link`."""

    link: str
    hello: ServerHello


class OperatorHelloReceived(Event, frozen=True):
    """An operator (a command such as `polyrhythm stop`) has sent its hello over `link`."""

    link: str
    hello: OperatorHello


class OperatorRequested(Event, frozen=True):
    """An operator has sent a request over `link`."""

    link: str
    request: OperatorRequest


class LinkClosed(Event, frozen=True):
    """The link to `peer` has ended, for any reason. This incarnation of the peer counts as dead
    from now on; 0: whichever incarnation it was."""

    peer: str
    detail: str
    """How the link ended, as the operating system or the other end describes it."""
    incarnation: int = 0


class LinksQuiet(Event, frozen=True):
    """These links are quiet: nothing has arrived over them since the links were last looked at.
    Each peer is given with the incarnation to which the link belongs. The runtime looks at all
    links before a `Tick`; links within the host are never quiet."""

    peers: tuple[tuple[str, int], ...]


class PeersHeard(Event, frozen=True):
    """Bytes have come over these links since the links were last looked at, even if no message is
    complete yet. The lead's process reports this, because the heartbeat of a worker can wait for
    seconds behind the slices that the worker sends over the same link. Each peer is given with the
    incarnation to which the link belongs."""

    peers: tuple[tuple[str, int], ...]


class LeadLinked(Event, frozen=True):
    """The link to the lead is open. The lead sends a heartbeat every `heartbeat_s` seconds. After
    `timeout_s` seconds of silence the lead counts as lost."""

    heartbeat_s: float
    timeout_s: float


class LeadHeard(Event, frozen=True):
    """Bytes from the lead have arrived, even if no message is complete yet. The runtime reports
    this from time to time, because a heartbeat can wait for minutes behind large slices."""


class StopAsked(Event, frozen=True):
    """A signal or the engine asks the job to end. `at_once`: end immediately; otherwise let every
    worker leave its loop with the final parameters. `failed`: why the job has failed; empty if a
    user asked for the end."""

    at_once: bool = False
    failed: str = ""


class DrainAsked(Event, frozen=True):
    """A signal asks this server to leave the job, which goes on without it."""


class ResumeAsked(Event, frozen=True):
    """The job resumes from a checkpoint with this record and this model. This is the first event
    that the lead gets."""

    record: Record
    spec: ModelSpec
    kept_nbytes: int = 0
    """The size of the state that `worker.keep` added to the checkpoint; 0 if there is none."""


class CutCommitted(Event, frozen=True):
    """The record and the manifest were written, so the checkpoint exists. Or writing failed because
    of `fault`."""

    number: int
    nbytes: int = 0
    fault: str = ""
    taken: bool = False
    """With `fault`: whether writing failed because another job uses the same store. If so, this job
    makes no more checkpoints."""
    unpruned: str = ""
    """Why older checkpoints could not be deleted; empty if there was no fault."""
    unkept: str = ""
    """Why the state of `worker.keep` is not in the checkpoint, although it was received."""


# -- the server ---------------------------------------------------------------------------------


class CutCopied(Event, frozen=True):
    """The slices of a cut are copied. `torn`: see `CutTaken`."""

    number: int
    torn: int = 0


class StateHeld(Event, frozen=True):
    """With `--optimizer-on workers`: a worker has sent the parameters and the state of version
    `round` of all slices whose primary this server is, in the epoch `routing`."""

    round: int
    routing: int


class CutStored(Event, frozen=True):
    """This server's part of a checkpoint is written, or writing failed because of `fault`."""

    number: int
    file: FileEntry | None = None
    fault: str = ""


class ServerCalled(Event, frozen=True):
    """A server has sent its hello over `link` to a server that does not run the lead. Nothing more
    is read from the link until it is bound to the peer."""

    link: str
    server: int
    incarnation: int


class WorkerCalled(Event, frozen=True):
    """A worker has sent its hello over `link` to a server that does not run the lead. Nothing more
    is read from the link until it is bound to the peer."""

    link: str
    worker: int
    incarnation: int


class OperatorCalled(Event, frozen=True):
    """An operator has sent its hello over `link` to a server that does not run the lead."""

    link: str


class SliceSeeded(Event, frozen=True):
    """The initial parameters of one slice were received, in this routing epoch."""

    slice: int
    routing: int


class Contributed(Event, frozen=True):
    """A contribution is complete on this server: all of its slices for this server were added to
    aggregates."""

    worker: int
    incarnation: int
    sequence: int
    round: int
    pull: int = 0
    """Without rounds: the ticket of the worker's pull for the parameters; 0 for none."""
    pulled: int = -1
    """The last ticket whose answer the worker has copied."""
    version: int = 0
    """With rounds: the version with which the contribution was computed."""


class Repeated(Event, frozen=True):
    """A contribution has arrived a second time. It was not added again."""

    worker: int
    incarnation: int
    sequence: int


class Rerouted(Event, frozen=True):
    """This server holds its slices as the routes of this epoch require. `version` and `rows`: the
    steps that are in every slice of this primary. `copied`: per other primary, the steps that are
    in every slice copied from that primary."""

    routing: int
    version: int
    rows: tuple[Row, ...]
    copied: tuple[tuple[int, tuple[Row, ...]], ...] = ()
    round: int = 1
    """The round whose fold will include the contributions that are in aggregates now."""


class StepCopied(Event, frozen=True):
    """Every slice that this server copies from `primary` now contains these steps."""

    primary: int
    rows: tuple[Row, ...]


class StateAdopted(Event, frozen=True):
    """The slices that were fetched from this primary are in memory, and contain these steps."""

    primary: int
    routing: int
    rows: tuple[Row, ...]


class FoldDone(Event, frozen=True):
    """The fold of `round` is done. `weight`: the largest weight that was folded into a slice of this
    server."""

    round: int
    weight: float


class Sent(Event, frozen=True):
    """Version `round` was sent to these workers. Over a stream link, the bytes have left the
    server's buffer."""

    workers: tuple[int, ...]
    round: int


# -- the lead -----------------------------------------------------------------------------------


class SliceStored(Event, frozen=True):
    """The parameters of a slice are in the model file with this number."""

    number: int
    slice: int


class ModelSaved(Event, frozen=True):
    """The model file with this number contains the whole model and has its final name."""

    number: int
    path: str
    nbytes: int


class SavingFailed(Event, frozen=True):
    """The model file with this number could not be written, and was removed. `again`: a later
    attempt may succeed, because the disk or the store is at fault."""

    number: int
    detail: str
    again: bool = False


# -- the worker ---------------------------------------------------------------------------------


class Linked(Event, frozen=True):
    """The link to this server is open."""

    server: int
    incarnation: int = 0


class Sizing(Event, frozen=True):
    """The user's code is about to attach a model of this many bytes, and must know its division."""

    nbytes: int


class Attaching(Event, frozen=True):
    """The user's code attaches its model."""

    spec: ModelSpec


class Enrolling(Event, frozen=True):
    """The user's code asks for chunks of a data set with this many points, in batches of `batch`
    points (0: unknown). `listens`: where this worker receives points of other workers; None if it
    receives none. `groups`: points at which a row group of a file begins. `shares` and `data`: see
    `Enrol`."""

    points: int
    batch: int = 0
    listens: Address | None = None
    groups: tuple[int, ...] = ()
    shares: bool = False
    data: str = ""


class PointsDelivered(Event, frozen=True):
    """This worker has received all points of a chunk (`nbytes` bytes). With `fault`: it cannot send
    or receive them. `number`: the number of the delivery."""

    chunk: int
    number: int
    nbytes: int = 0
    fault: Reason | None = None


class Computed(Event, frozen=True):
    """The user's code has computed a contribution, which is in push buffer `buffer`. `rates`: the
    learning rate of each parameter group."""

    buffer: int
    rates: tuple[float, ...]
    report: ContributionReport


class StateKept(Event, frozen=True):
    """The user's code has called `worker.keep`. `restore`: it waits for the state in the checkpoint
    from which the job resumes."""

    restore: bool = False


class StateRestored(Event, frozen=True):
    """The state in the checkpoint from which the job resumes has arrived."""


class PassedAll(Event, frozen=True):
    """The worker has visited all of its points since its last release, and would now visit them a
    second time."""


class Exhausted(Event, frozen=True):
    """The worker abstains from this round: it has no points left to visit, or it leaves out what it
    has computed. `skipped` says why, and `progress` names the points."""

    lease: int = 0
    skipped: Reason | None = None
    progress: tuple[ChunkProgress, ...] = ()
    model: int = -1


class Landed(Event, frozen=True):
    """One slice of version `round`, or every slice of this server (EVERY_SLICE), is in the worker's
    memory."""

    server: int
    slice: int
    round: int
    sequence: int
    routing: int = 0
    """The routing epoch in which the server acknowledged `sequence`."""
    holds: tuple[int, ...] = ()
    """If routes can change: the slices that the server sent, when `slice` is EVERY_SLICE."""
    incarnation: int = 0
    """The incarnation of the worker that the slice was sent to; 0 if unknown."""
    early: bool = False
    """See `Parameters.early`. Then `routing` is the epoch whose routes the server followed."""


class Skipped(Event, frozen=True):
    """A slice has arrived that the worker no longer needs. The acknowledgement in its message still
    counts."""

    server: int
    sequence: int
    routing: int = 0
    incarnation: int = 0


class Reporting(Event, frozen=True):
    """The user's code reports these values. `round`: the version with which they were measured; -1
    if the worker's parameters are not those of any version, for example after local steps."""

    metrics: dict[str, float]
    round: int = -1
    evaluated: bool = False
    """Whether this worker evaluated the model for all workers."""


class LeaveAsked(Event, frozen=True):
    """A signal asks this worker to leave: the user's code stops waiting for other workers."""


class Leaving(Event, frozen=True):
    """The user's code has ended. `at_once`: do not wait for acknowledgements."""

    reason: Reason
    failed: bool = False
    at_once: bool = False
