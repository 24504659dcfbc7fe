"""Effects: orders of machines to the runtime or the simulator, named in the imperative. Peers have
the names s0, s1, ... (servers), w0, w1, ... (workers), operator-1, ... (links of operators), and
`lead` for the process of the lead."""

from functools import cache
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
    Route,
    ServerSpec,
    Stamp,
)

LEAD = "lead"
WITHOUT_PARAMETERS = "stopped-without-parameters"
"""A report: the job ended while this worker was not a member."""


@cache
def server_name(server: int) -> str:
    return f"s{server}"


@cache
def worker_name(worker: int) -> str:
    return f"w{worker}"


@cache
def worker_number(peer: str) -> int | None:
    """The number of the worker with this name; None if it is not a worker's name."""
    return int(peer[1:]) if peer.startswith("w") and peer[1:].isdigit() else None


@cache
def server_number(peer: str) -> int | None:
    """The number of the server with this name; None if it is not a server's name."""
    return int(peer[1:]) if peer.startswith("s") and peer[1:].isdigit() else None


_OPERATOR = "operator-"


def operator_name(number: int) -> str:
    return f"{_OPERATOR}{number}"


def is_operator(peer: str) -> bool:
    """Whether this is the name of an operator's link. A link has it if and only if its peer has said
    the operator's hello and was authorised."""
    return peer.startswith(_OPERATOR)


class Send(Effect, frozen=True):
    """Send this message to a peer, or over a link that is not bound yet."""

    to: str
    message: Message


class Bind(Effect, frozen=True):
    """The peer at the other end of `link` is `peer` from now on."""

    link: str
    peer: str
    incarnation: int = 0


class Drop(Effect, frozen=True):
    """Close the link to `peer` after all messages to it have been sent."""

    peer: str
    reason: Reason


class Note(Effect, frozen=True):
    """A line for the journal. A process without a journal reports it to the process that started
    it."""

    what: str
    fields: dict[str, Any]


class Beat(Effect, frozen=True):
    """Send this heartbeat to the lead."""

    message: Alive


class BeatAll(Effect, frozen=True):
    """Send the lead's heartbeat over all its links."""

    message: Alive


class End(Effect, frozen=True):
    """The job has ended for this machine."""

    reason: Reason
    failed: bool = False


class CommitCut(Effect, frozen=True):
    """Every server has written its part of this checkpoint: write the record and then the manifest,
    and delete checkpoints that are not kept. The answer is `CutCommitted`."""

    record: Record
    spec: ModelSpec
    files: tuple[FileEntry, ...]


# -- the server ---------------------------------------------------------------------------------


class TakeCut(Effect, frozen=True):
    """Copy the parameters and the optimizer state of the slices whose primary this server is, answer
    with `CutCopied`, write the copy in the background, and answer with `CutStored`."""

    number: int
    round: int


class Build(Effect, frozen=True):
    """Allocate these slices of the model: buffers, aggregates, updaters. Parameters that were
    seeded in another routing epoch are void. `fresh`: a worker sends the initial parameters;
    otherwise other servers send the slices."""

    spec: ModelSpec
    routes: tuple[Route, ...]
    routing: int
    fresh: bool = True


class Reach(Effect, frozen=True):
    """Connect to those of these servers that have a lower number; the others connect to this one.
    `incarnation`: this server's own."""

    servers: tuple[ServerSpec, ...]
    incarnation: int


class Reroute(Effect, frozen=True):
    """Become the primary or a replica of each slice, or drop it, as these routes order; slices keep
    their values. Contributions in an aggregate that changes its primary are void."""

    routes: tuple[Route, ...]
    routing: int


class SendState(Effect, frozen=True):
    """Send to `to` the state of the slices that it copies from this server, except copies with an
    equal stamp. From now on `to` gets every step of these slices."""

    to: int
    held: tuple[Stamp, ...]
    routing: int


class FetchState(Effect, frozen=True):
    """Ask this primary for the state of the slices that are copied from it, with the stamps of the
    copies here."""

    primary: int
    slices: tuple[int, ...]
    routing: int


class Enlist(Effect, frozen=True):
    """Accept contributions of these members only, from now on."""

    members: tuple[MemberSpec, ...]


class StartFold(Effect, frozen=True):
    """Fold the aggregate of `round` into buffer `slot`. `fill`: the slot for the next aggregate,
    for updaters that need no separate one. `share`: the fraction of a full step."""

    round: int
    slot: int
    fill: int
    share: float = 1.0


class Publish(Effect, frozen=True):
    """Send all slices of version `round`, which are in `slot`, to this worker. *A version for one
    incarnation is never sent to another, which would take it for its own.*"""

    worker: int
    incarnation: int
    round: int
    slot: int
    sequence: int
    view: int
    routing: int = 0
    first: bool = False
    """The others were waiting for this worker: send its slices before anything else."""


class FreeSlots(Effect, frozen=True):
    """The memory of these slots is not needed until another effect names them."""

    slots: tuple[int, ...]


class PublishLatest(Effect, frozen=True):
    """Without rounds: send the current value of every slice, as the answer to `ticket`. The slices
    are leased to this worker at one moment (`SliceVersions`)."""

    worker: int
    incarnation: int
    ticket: int
    sequence: int
    view: int
    routing: int = 0


class Unlease(Effect, frozen=True):
    """This worker has copied the answers up to `ticket`; None: the worker is gone."""

    worker: int
    ticket: int | None


class Freeze(Effect, frozen=True):
    """Without rounds: stop folding, so that all workers read the same final parameters."""


class SendParameters(Effect, frozen=True):
    """Send the parameters of these slices to the process of the lead, for the file `number`.
    `copied`: as `CopyParameters` found them; each copy is sent once."""

    number: int
    slices: tuple[int, ...]
    copied: bool = False


class CopyParameters(Effect, frozen=True):
    """Copy the parameters of all slices of this primary, for the file `number`. Earlier copies are not
    needed any more."""

    number: int


# -- the lead -----------------------------------------------------------------------------------


class CreateModel(Effect, frozen=True):
    """Begin a model's file, in the run's folder. Slices that arrive are written to it in another
    thread; each is followed by `SliceStored`. `last`: the job is over."""

    number: int
    file: str
    spec: ModelSpec
    round: int
    last: bool


class CommitModel(Effect, frozen=True):
    """The file has all slices: give it its name. `ModelSaved` follows."""

    number: int


class DiscardModel(Effect, frozen=True):
    """Remove the unfinished file."""

    number: int


# -- the worker ---------------------------------------------------------------------------------


class Dial(Effect, frozen=True):
    """Connect to these servers. The link to the server that runs the lead exists already."""

    servers: tuple[ServerSpec, ...]


class Rejoin(Effect, frozen=True):
    """Close all links and say hello to the lead again, under the same name. The hello names the
    former incarnation, because the lead may not know yet that it has ended."""

    reason: Reason
    incarnation: int = 0


class Arrange(Effect, frozen=True):
    """The lead has accepted the model and routed its slices: allocate the push buffers."""

    routes: tuple[Route, ...]


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
    rates: tuple[float, ...]
    pull: int = 0
    """Without rounds: the ticket of a pull for the parameters; 0 for none."""
    pulled: int = -1
    """The last ticket whose answer was copied, if this request reports it."""


class Expect(Effect, frozen=True):
    """Slices of version `round` and later may be written to the worker's parameters; None: none
    may, because the user's code uses them. Slices of version `keep` that come meanwhile are kept
    until they may."""

    round: int | None
    keep: int | None = None


class Resume(Effect, frozen=True):
    """Let the user's code go on with the parameters of version `round`. `stop`: the job has ended.
    The other fields say when to contribute next, as in `Release`. `anew`: the worker joined again,
    and carries nothing over."""

    round: int
    stop: bool
    steps: int = 0
    interval_ns: int = 0
    probe: tuple[int, int] = (0, 0)
    points: int = 0
    anew: bool = False


class StopWaiting(Effect, frozen=True):
    """The training loop was told to leave and need not wait for a version. `stop`: the job has
    ended without this worker, so no version will come."""

    stop: bool = False


class ContributeNow(Effect, frozen=True):
    """The interval is over: let the user's code contribute what it has."""


class TakeChunks(Effect, frozen=True):
    """Hand the leased chunks to the user's batches."""

    lease: Leased


class Fail(Effect, frozen=True):
    """Raise an error in the user's code: this worker cannot go on. `stopped`: the whole job has
    ended."""

    reason: Reason
    stopped: bool = False
