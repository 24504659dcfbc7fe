"""Effects: instructions from a machine to the process that runs it (the runtime or the simulator),
named in the imperative. `core/names.py` defines the names of the processes that they address."""

from typing import Any

from polyrhythm.core.machine import Effect, Reason
from polyrhythm.core.record import Record
from polyrhythm.wire.messages import (
    Alive,
    FileEntry,
    Leased,
    MemberSpec,
    Message,
    ModelSpec,
    Progress,
    Route,
    Row,
    ServerSpec,
    Stamp,
)

WITHOUT_PARAMETERS = "stopped-without-parameters"
"""The name of the report that the job ended while this worker was not a member. So the worker could
not read the final parameters."""
TRACE_ENDS = "trace-ends"
"""The name of the report that a process can no longer write its trace."""
STAYS = "stays"
"""The name of the report that this server has asked to leave, and may not."""
NO_SLICE = "no-slice"
"""The name of the report that this server has joined the job and holds no slice."""
FIRST_SLICES = "first-slices"
"""The name of the report that this server now has slices. It follows a report `NO_SLICE`."""


class Send(Effect, frozen=True):
    """Send this message to a peer, or over a link whose peer is not known yet (see `Bind`)."""

    to: str
    message: Message


class Bind(Effect, frozen=True):
    """From now on, use `peer` as the name of the process at the other end of `link`."""

    link: str
    peer: str
    incarnation: int = 0


class Drop(Effect, frozen=True):
    """Close the link to `peer` after all messages to it have been sent."""

    peer: str
    reason: Reason


class Note(Effect, frozen=True):
    """Write a line to the journal. A process without a journal sends the line to the process that
    started it."""

    what: str
    fields: dict[str, Any]


class Beat(Effect, frozen=True):
    """Send this heartbeat to the lead. Send it also to other servers that have a TCP link."""

    message: Alive


class BeatAll(Effect, frozen=True):
    """Send the lead's heartbeat over all its links."""

    message: Alive


class End(Effect, frozen=True):
    """End this machine: it has nothing more to do."""

    reason: Reason
    failed: bool = False


class CommitCut(Effect, frozen=True):
    """Every server has written its part of this checkpoint: write the record, then the manifest,
    and delete old checkpoints that need not be kept. The event `CutCommitted` answers."""

    record: Record
    spec: ModelSpec
    files: tuple[FileEntry, ...]
    kept: bool = False
    """Whether the checkpoint includes the state that `ExpectKept` has received."""


class ExpectKept(Effect, frozen=True):
    """Receive a worker's state for the cut `number`. Refuse more than `most_nbytes` bytes, and
    discard any state received before. If `number` is 0, expect no state."""

    number: int = 0
    worker: int = -1
    incarnation: int = 0
    most_nbytes: int = 0


class SendKept(Effect, frozen=True):
    """Send this worker the state from the checkpoint."""

    worker: int
    incarnation: int


class SendCode(Effect, frozen=True):
    """Send the file with the job's code to the operator at this link."""

    to: str


class SendJournal(Effect, frozen=True):
    """Send the operator at this link a page of the journal, which begins at this byte."""

    to: str
    at: int


# -- the server ---------------------------------------------------------------------------------


class TakeCut(Effect, frozen=True):
    """Copy the parameters and the optimizer state of the slices whose primary this server is, and
    answer with `CutCopied`. Then write the copy in the background, and answer with `CutStored`."""

    number: int
    round: int


class Build(Effect, frozen=True):
    """Allocate memory for these slices of the model: buffers, aggregates, updaters. Discard
    parameters that were seeded in an earlier routing epoch. `fresh`: a worker sends the initial
    parameters; otherwise other servers send the slices."""

    spec: ModelSpec
    routes: tuple[Route, ...]
    routing: int
    fresh: bool = True


class Reach(Effect, frozen=True):
    """Connect to each of these servers. Their numbers are lower than this server's; servers with
    higher numbers connect to this server themselves. `incarnation`: the incarnation of this
    server."""

    servers: tuple[ServerSpec, ...]
    incarnation: int


class Reroute(Effect, frozen=True):
    """Follow these routes: become the primary or a replica of each slice, or drop the slice. The
    values of slices do not change. When the primary of a slice changes, contributions in its
    aggregate are discarded."""

    routes: tuple[Route, ...]
    routing: int


class SendState(Effect, frozen=True):
    """Send to server `to` the state of the slices that it copies from this server. Leave out slices
    whose stamp in `held` shows that the copy is current. Send every later step of these slices to
    `to` as well."""

    to: int
    held: tuple[Stamp, ...]
    routing: int


class FetchState(Effect, frozen=True):
    """Request the state of these slices from this primary. The request contains the stamps of this
    server's copies."""

    primary: int
    slices: tuple[int, ...]
    routing: int


class Enlist(Effect, frozen=True):
    """From now on, accept contributions from these members only."""

    members: tuple[MemberSpec, ...]


class StartFold(Effect, frozen=True):
    """Fold the aggregate of `round` into the buffer `slot`. `fill`: with plain addition, the slot
    in which the next version is built. `share`: the fraction of a full optimizer step. `rows`: see
    `Fold.rows`."""

    round: int
    slot: int
    fill: int
    share: float = 1.0
    rows: tuple[Row, ...] = ()


class Publish(Effect, frozen=True):
    """Send all slices of version `round`, which are in `slot`, to this incarnation of the worker.
    *The version goes to this incarnation only: another incarnation could mistake it for the version
    that it waits for.*"""

    worker: int
    incarnation: int
    round: int
    slot: int
    sequence: int
    view: int
    routing: int = 0
    first: bool = False
    """Whether this worker was the last one in the previous round. If so, it gets its slices
    first."""
    whole: bool = False
    """With `--optimizer-on workers`: send the parameters and the optimizer's state that a worker
    has shared, instead of the sum of the gradients."""


class FreeSlots(Effect, frozen=True):
    """Free the memory of these slots. A slot is not used again until another effect names it."""

    slots: tuple[int, ...]


class PublishLatest(Effect, frozen=True):
    """Without rounds: send the current value of every slice, as the answer to the pull `ticket`.
    Lease all slices to the worker at the same moment (`SliceVersions`)."""

    worker: int
    incarnation: int
    ticket: int
    sequence: int
    view: int
    routing: int = 0


class Unlease(Effect, frozen=True):
    """End this worker's leases of the answers up to `ticket`, because it has copied them. If
    `ticket` is None, the worker is gone, and all of its leases end."""

    worker: int
    ticket: int | None


class Freeze(Effect, frozen=True):
    """Without rounds: stop folding, so that all workers read the same final parameters."""


class SendParameters(Effect, frozen=True):
    """Send the parameters of these slices to the lead's process, which writes them to the model
    file with this number. `copied`: send the copies that `CopyParameters` made. Each copy is sent
    once."""

    number: int
    slices: tuple[int, ...]
    copied: bool = False


class CopyParameters(Effect, frozen=True):
    """Copy the parameters of all slices whose primary this server is, for the model file with this
    number. Discard earlier copies."""

    number: int


# -- the lead -----------------------------------------------------------------------------------


class CreateModel(Effect, frozen=True):
    """Begin a model file in the run's folder. A thread writes the slices to it as they arrive, and
    reports each one with `SliceStored`. `last`: this is the final model of the job. `to_store`: write
    it to the job's store instead, because the folder cannot be written."""

    number: int
    file: str
    spec: ModelSpec
    round: int
    last: bool
    to_store: bool = False


class CommitModel(Effect, frozen=True):
    """Rename the model file, which contains all slices, from its temporary name to its final one.
    The event `ModelSaved` answers."""

    number: int


class DiscardModel(Effect, frozen=True):
    """Remove the unfinished model file."""

    number: int


# -- the worker ---------------------------------------------------------------------------------


class Dial(Effect, frozen=True):
    """Connect to these servers. Leave out the server in the lead's process, to which a link
    exists."""

    servers: tuple[ServerSpec, ...]


class Rejoin(Effect, frozen=True):
    """Close all links and send a hello to the lead again, under the same name. The hello contains
    the former incarnation, because the lead may not know yet that this incarnation has ended."""

    reason: Reason
    incarnation: int = 0


class PrepareBuffers(Effect, frozen=True):
    """Allocate the push buffers: the lead has accepted the model and routed its slices.
    `early_since`: per slice, a routing epoch. A sum that was sent before its fold was ordered does
    not count if it names an earlier epoch."""

    routes: tuple[Route, ...]
    early_since: tuple[int, ...] = ()


class SeedSlices(Effect, frozen=True):
    """Send the initial parameters of these slices to this server."""

    server: int
    slices: tuple[int, ...]
    routing: int


class PushSlices(Effect, frozen=True):
    """Send these slices of push buffer `buffer`, as contribution `sequence`, to this server."""

    server: int
    slices: tuple[int, ...]
    sequence: int
    round: int
    view: int
    routing: int
    buffer: int
    weight: float
    """How much the contribution counts in the mean of its round."""
    rates: tuple[float, ...]
    pull: int = 0
    """Without rounds: the ticket of a pull for the parameters; 0 for none."""
    pulled: int = -1
    """The last ticket whose answer the worker has copied; -1 if this request does not report a
    ticket."""


class Expect(Effect, frozen=True):
    """Write arriving slices of version `round` or later to the worker's parameters. If `round` is
    None, write no slices, because the user's code uses the parameters, and keep slices of version
    `keep` until they may be written."""

    round: int | None
    keep: int | None = None


class Resume(Effect, frozen=True):
    """Let the user's code continue with the parameters of version `round`. `stop`: the job has
    ended. `rejoined`: the worker has rejoined the job, so it discards its work since its last
    contribution. The fields from `steps` to `points` say when to contribute next; these and the
    other fields are as in `Release`."""

    round: int
    stop: bool
    steps: int = 0
    interval_ns: int = 0
    probe: tuple[int, int] = (0, 0)
    points: int = 0
    rejoined: bool = False
    torn: bool = False
    whole_only: bool = False
    progress: Progress = Progress()
    rank: int = -1


class TakeProgress(Effect, frozen=True):
    """Tell the user's code how far the job has come, and the worker's rank."""

    progress: Progress
    rank: int


class StopWaiting(Effect, frozen=True):
    """Let the training loop end without waiting for a version, because the worker was asked to
    leave. `stop`: the job has ended without this worker, so no version will come."""

    stop: bool = False


class ContributeNow(Effect, frozen=True):
    """Make the user's code contribute what it has computed: the interval is over."""


class CaptureState(Effect, frozen=True):
    """Copy the state that the user's code keeps, and send it to the lead for cut `number`. Copy it
    at the end of the current iteration of the user's loop. Copy it `at_once` if the cut does not
    include this iteration's contribution."""

    number: int
    worker: int
    incarnation: int
    at_once: bool = False


class ShareState(Effect, frozen=True):
    """With `--optimizer-on workers`: send the parameters and the state of the optimizer of version
    `round` to these servers, each with its slices."""

    slices: tuple[tuple[int, tuple[int, ...]], ...]
    round: int
    routing: int


class TakeChunks(Effect, frozen=True):
    """Give the leased chunks to the iterator from which the user's code takes batches."""

    lease: Leased


class Fail(Effect, frozen=True):
    """Raise an error in the user's code, because this worker cannot continue. `stopped`: the whole
    job has ended."""

    reason: Reason
    stopped: bool = False
