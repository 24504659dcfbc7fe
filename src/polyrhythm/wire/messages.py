"""The typed messages: what a frame's head says. Machines take them as events and return them.

Every message carries its whole identity from the first commit on (term, epochs, worker,
incarnation, sequence, round, slice, weight), used or not yet, so that replicas, failover and
migration need no new format. Fields travel by position: new ones are added at the end.
"""

from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from polyrhythm.wire.events import EventType

PROTOCOL = 2
EVERY_SLICE = -1
"""In place of a slice's number: all slices that this server holds, side by side."""
WINDOW = 2
"""So many contributions of a worker may be unacknowledged."""

# -- what a field may hold ---------------------------------------------------------------------
# The decoder refuses values outside these ranges, so that no machine meets a number that overflows
# when it is added, multiplied, squared or written to the journal.

MOST_COUNT = 2**53
MOST_NUMBER = 1e100
Count: TypeAlias = Annotated[int, Meta(ge=-1, le=MOST_COUNT)]
"""A number, an epoch, a sequence or a duration in nanoseconds; -1 where a field may say "none"."""
Amount: TypeAlias = Annotated[int, Meta(ge=0, le=MOST_COUNT)]
Number: TypeAlias = Annotated[float, Meta(ge=-MOST_NUMBER, le=MOST_NUMBER)]
"""A finite number whose square is finite too. The bounds refuse NaN as well."""
Seconds: TypeAlias = Annotated[float, Meta(gt=0.0, le=1e9)]
LEAST_WEIGHT = 1e-3
"""Of a contribution: what is divided by it must still fit into half precision."""
Weight: TypeAlias = Annotated[float, Meta(ge=0.0, le=float(MOST_COUNT))]
Rate: TypeAlias = Annotated[float, Meta(ge=-1e4, le=1e4)]
"""A learning rate. An optimizer multiplies it, and the product must fit into half precision."""
Label: TypeAlias = Annotated[str, Meta(max_length=1_000)]
Option: TypeAlias = (
    bool | Count | Number | Label | Annotated[list[Number], Meta(max_length=16)] | None
)
"""An option of an optimizer."""


class Message(msgspec.Struct, frozen=True, array_like=True, kw_only=True, gc=False):
    """The identity that every message has."""

    term: Count = 0
    view: Count = 0
    routing: Count = 0
    worker: Count = -1
    incarnation: Count = 0
    sequence: Count = 0
    round: Count = 0
    slice: Count = EVERY_SLICE
    weight: Weight = 0.0
    server: Count = -1


# -- what the messages are made of ------------------------------------------------------------


class Address(msgspec.Struct, frozen=True, array_like=True):
    """Where a server listens. `identity` names host, network namespace and user."""

    host: str
    port: int
    local: str
    identity: str


class TensorSpec(msgspec.Struct, frozen=True, array_like=True):
    """One tensor of the model. `group` is its parameter group, -1 for a buffer."""

    name: Label
    shape: tuple[Amount, ...]
    dtype: Label
    group: Count
    strides: tuple[Amount, ...]


class OptimizerSpec(msgspec.Struct, frozen=True, array_like=True):
    """An optimizer by name and numbers: no pickle. One dict of options per parameter group."""

    name: Label
    groups: tuple[dict[Label, Option], ...]


class ModelSpec(msgspec.Struct, frozen=True, array_like=True):
    tensors: tuple[TensorSpec, ...]
    optimizer: OptimizerSpec


class Route(msgspec.Struct, frozen=True, array_like=True):
    """Who holds one slice. What is acknowledged is on the primary and on every replica; learners are
    on their way to being replicas, and are not waited for."""

    primary: Count
    replicas: tuple[Count, ...] = ()
    learners: tuple[Count, ...] = ()
    since: Count = 0
    """The routing epoch in which `primary` became the primary."""

    @property
    def holders(self) -> tuple[int, ...]:
        """The servers that have a copy of the slice, and those that are learning it."""
        return (self.primary, *self.replicas, *self.learners)


class ServerSpec(msgspec.Struct, frozen=True, array_like=True):
    """A server of the job and where it listens. The incarnation is the routing epoch in which it
    came, so that one who takes a dead server's place is not taken for it."""

    server: Count
    address: Address
    incarnation: Count = 0


class Row(msgspec.Struct, frozen=True, array_like=True):
    """The last contribution of one worker that is in a slice."""

    worker: Count
    incarnation: Count
    sequence: Count


class Stamp(msgspec.Struct, frozen=True, array_like=True):
    """What a copy of a slice has in it: the routing epoch in which the primary of its last step took
    the slice over, and how many steps it has made. Equal stamps mean equal copies."""

    slice: Count
    primary_since: Count = 0
    number: Count = 0


class SliceStep(msgspec.Struct, frozen=True, array_like=True):
    """Everything but the tensors that decides what a fold does to a slice. The primary makes it once
    (`core/server/stepping.py`), applies it and forwards it, so every replica makes the same step."""

    weight: Weight
    """Of the aggregate, which an optimizer divides by it; 0: the slice stays as it is."""
    rate: Rate = 0.0
    clock: Count = -1
    """The sequence of the contribution whose rate this is."""
    scale: Number = 1.0
    """How much of a full step this is: 1/P where contributions are folded one by one, and the share of
    the workers that still train where they are folded in rounds."""
    per_round: Count = 1
    """So many steps make a round: momentum decays once per round, so each step takes the P-th root."""

    def alike(self, other: "SliceStep") -> bool:
        """Whether one optimizer step can make both, given the same rates."""
        same = self.weight == other.weight and self.scale == other.scale
        return same and self.per_round == other.per_round


class ChunkProgress(msgspec.Struct, frozen=True, array_like=True):
    """Points of a chunk visited in its current pass, up to `cursor`. Commits with its trailer."""

    chunk: Count
    passes: Count
    cursor: Count


class ChunkLease(msgspec.Struct, frozen=True, array_like=True):
    """A chunk as leased: the points [first, last) of the seeded permutation, and where to begin."""

    chunk: int
    first: int
    last: int
    passes: int
    cursor: int


class MemberSpec(msgspec.Struct, frozen=True, array_like=True):
    worker: Count
    incarnation: Count
    name: str


class JobSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What a job is. Every machine is built from it, so a trace needs nothing else to replay."""

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
    """Where contributions are folded one by one: `members` scales each rate by 1/P, `none` not."""
    async_momentum: str = "round"
    """Where contributions are folded one by one: momentum decays once per `round` of all members, or
    once per `contribution`."""
    read_ahead: bool = False
    """asp: begin the next step before the parameters that contain the last contribution are here."""
    heartbeat_s: float = 0.5
    lead_timeout_s: float = 120.0
    """A worker or server that has heard nothing from the lead for so long ends."""
    respawn: bool = False
    """Dead workers are replaced, so a job without any waits a while for the next."""
    target_accuracy: float | None = None
    target_objective: float | None = None
    max_seconds: float | None = None
    path: str = ""
    """Where the job's file lies on the host that began it; empty for a built-in job."""
    on_error: str = "go-on"
    """What the others do when a worker's code raises: `go-on`, or `end` with the job."""
    staging: dict[str, str] = {}
    """What makes equal machines differ, by flag (`learn/staging.py`)."""
    interval: str = "auto"
    coordination: str = "semi"
    most_steps: int = 64
    probe_points: int = 2048
    target_change: float | None = None
    """End when the objective changes by less than this in a full pass."""
    abandon: str = "off"
    """fsp: how long after the interval a micro-batch is waited for."""
    replicas: int = 0
    """On so many servers besides its primary every slice has a copy."""
    min_batch: int = 2
    """The fewest points of a batch: a smaller remainder joins the batch before it."""


# -- the link ----------------------------------------------------------------------------------


class WorkerHello(Message, frozen=True, kw_only=True):
    """The first frame of a worker: to a server with its incarnation, to the lead with the one that
    it had before, if any."""

    name: str
    job: str
    identity: str
    protocol: int = PROTOCOL
    digests: tuple[int, ...] = ()
    capabilities: tuple[str, ...] = ("torch",)
    nonce: bytes = b""
    """Over TCP: random bytes, for the proofs of both ends (`wire/proof.py`)."""


class ServerHello(Message, frozen=True, kw_only=True):
    name: str
    job: str
    address: Address
    identity: str
    protocol: int = PROTOCOL
    digests: tuple[int, ...] = ()
    nonce: bytes = b""


class Challenge(Message, frozen=True, kw_only=True):
    """The answer to a hello over TCP: the acceptor's nonce, its name and job, and its proof that it
    knows the job's secret."""

    nonce: bytes
    name: str
    job: str
    proof: bytes = b""


class Proof(Message, frozen=True, kw_only=True):
    """The opener's proof that it knows the job's secret."""

    proof: bytes


class HelloReply(Message, frozen=True, kw_only=True):
    """The answer to a hello: the digest of all later frames, and who answered."""

    name: str
    digest: int
    address: Address
    heartbeat_s: Seconds = 0.5
    """How often the lead beats, and after what silence it is given up: a worker that was not
    admitted yet knows nothing else of the job."""
    lead_timeout_s: Seconds = 120.0
    protocol: int = PROTOCOL


class Refusal(Message, frozen=True, kw_only=True):
    reason: str
    ending: bool = False
    """The job ends in order, and admits no worker any more."""


class SegmentOffered(Message, frozen=True, kw_only=True):
    """A memory segment whose descriptor travels with this frame (local links only)."""

    segment: Amount
    nbytes: Amount


class SegmentWithdrawn(Message, frozen=True, kw_only=True):
    """This segment will not be referred to any more: unmap it, so that its memory goes."""

    segment: Amount


# -- joining and leaving -----------------------------------------------------------------------


class Admitted(Message, frozen=True, kw_only=True):
    """What the job is. A worker links to all its servers; a server that left its number open finds
    it in `server`."""

    job: JobSpec
    servers: tuple[ServerSpec, ...]


class Attach(Message, frozen=True, kw_only=True):
    """A worker's model. The first one's becomes the job's; the others' must equal it."""

    spec: ModelSpec


class Routing(Message, frozen=True, kw_only=True):
    """Where each slice lives, cut from the job's spec. `seed`: this worker's parameters begin. A
    later one says where slices live from now on: what was not acknowledged is sent there again."""

    routes: tuple[Route, ...]
    seed: bool = False
    servers: tuple[ServerSpec, ...] = ()


class Enrol(Message, frozen=True, kw_only=True):
    """A worker says how many points its data set has and asks for chunks. `batch`: how many points
    its user takes at a time; 0: it does not say."""

    points: Amount
    batch: Amount = 0


class Leased(Message, frozen=True, kw_only=True):
    """What a worker may visit from now on. A later `number` replaces what it had; a chunk that is
    not in it any more goes to another once this worker has contributed under this number."""

    points: int
    seed: int
    chunks: tuple[ChunkLease, ...]
    epochs: int | None = None
    number: int = 0


class Report(Message, frozen=True, kw_only=True):
    metrics: Annotated[dict[Label, Number], Meta(max_length=100)]


class Leave(Message, frozen=True, kw_only=True):
    """`failed`: the user's code raised."""

    reason: str = ""
    failed: bool = False


class Evicted(Message, frozen=True, kw_only=True):
    """This incarnation was silent for too long and is out of the view: join again."""

    reason: str = ""


class Stop(Message, frozen=True, kw_only=True):
    reason: str = ""
    failed: bool = False


# -- the way of one contribution ---------------------------------------------------------------


class Contribution(Message, frozen=True, kw_only=True):
    """One slice of a contribution. Weight, rate and how many slices this server gets are in every
    slice frame; all else is in the trailer. The payload is the slice, or `parts` of it."""

    slices: Amount
    rate: Rate = 0.0
    pull: Amount = 0
    """Without rounds: a `Pull` with this ticket that asks for this contribution's answer; 0: none."""
    pulled: Count = -1
    """As in `Pull`."""
    parts: tuple[Amount, ...] | None = None
    """Of a slice of buffers: the parts that this worker changed, side by side in the payload. Empty:
    none of them, and there is no payload. None: the slice is whole."""


class Trailer(Message, frozen=True, kw_only=True):
    objective: float | None = None
    compute_ns: Amount = 0
    wait_ns: Amount = 0
    transfer_ns: Amount = 0
    progress: tuple[ChunkProgress, ...] = ()
    lease: Amount = 0
    """The number of the lease under which the first of these points was visited."""
    steps: Amount = 1
    """How many steps of the user's loop are in it."""
    probe: float | None = None
    """The mean loss over this worker's share of the probe sample, where it was asked for."""
    probe_points: Amount = 0
    probe_ns: Amount = 0
    abandoned_ns: Amount = 0
    """Of the computing: on points that were left out, and will be visited again."""
    batch: Amount = 0
    """Where rounds end by the clock: how many points the user's own batch has; 0: unknown."""
    micro_ns: Amount = 0
    """Where rounds end by the clock: the shortest micro-batch worth starting; 0: unknown."""


class Abstained(Message, frozen=True, kw_only=True):
    """This worker has nothing to contribute to the round, and is not to be waited for."""

    reason: str = ""
    lease: Amount = 0


class Arrived(Message, frozen=True, kw_only=True):
    """A server has added every slice it gets of one contribution; `round` is the round it is in."""


class Fold(Message, frozen=True, kw_only=True):
    """The lead's word: fold `round`. `readers` get its version; `members` is the view from now.
    Where contributions are folded as they come there is nothing left to fold, and it is the view
    that turns. `last`: nothing is folded after this."""

    readers: tuple[int, ...] = ()
    members: tuple[MemberSpec, ...] = ()
    last: bool = False
    share: float = 1.0
    """How much of a full step the fold is: less than 1 while workers that have visited all of their
    points count as workers that change nothing."""


class Folded(Message, frozen=True, kw_only=True):
    """`weight` is the largest weight that a slice of this server folded."""


class Release(Message, frozen=True, kw_only=True):
    """Go on with version `round`. `pushed`: the servers send it without being asked. The rest says
    when to contribute next: after `steps` steps, after `interval_ns`; 0: the user's loop knows."""

    pushed: bool = True
    stop: bool = False
    reason: str = ""
    steps: int = 0
    interval_ns: int = 0
    probe: tuple[int, int] = (0, 0)
    """Evaluate the probe sample's part n of m first; of 0: do not."""
    points: int = 0
    """Contribute after so many points; -1: after all that this worker has."""


class Pause(Message, frozen=True, kw_only=True):
    """The interval of `round` is over: contribute what there is."""


class Asking(Message, frozen=True, kw_only=True):
    """This worker has passed over all of its points in `round`, and asks for the barrier."""


class Acknowledged(Message, frozen=True, kw_only=True):
    """Contribution `sequence` cannot be lost any more, as far as this server's slices go: those that
    it is the primary of since the epoch `routing`."""


class Pull(Message, frozen=True, kw_only=True):
    """Send me your slices once your version is at least `round`. Without rounds: send them as they
    are, `sequence` included, and put `round` on the answer."""

    pulled: Count = -1
    """What this reader got by then it has copied, as if it had said `Pulled`."""


class Parameters(Message, frozen=True, kw_only=True):
    """One slice of version `round`, or all of a server's where the link carries references;
    `sequence` acknowledges the reader's contributions so far. The payload is the slice, or the
    slices named in `holds` side by side."""

    slot: Amount = 0
    holds: tuple[Amount, ...] = ()
    parts: tuple[Amount, ...] | None = None
    """Of a slice of buffers: the parts in the payload. The others are as they were seeded, and the
    reader has them. None: the slice is whole."""


class Pulled(Message, frozen=True, kw_only=True):
    """The reader has copied version (or answer) `round`: it may be overwritten."""


# -- the lead and its servers ------------------------------------------------------------------


class Place(Message, frozen=True, kw_only=True):
    """Hold these slices (those routed to you). `fresh`: parameters follow from the seeding worker;
    otherwise slices that you hold already stay what they are, whatever you are to them now."""

    spec: ModelSpec
    routes: tuple[Route, ...]
    servers: tuple[ServerSpec, ...] = ()
    members: tuple[MemberSpec, ...] = ()
    fresh: bool = True


class Placed(Message, frozen=True, kw_only=True):
    """This server has made room for its slices. `round`: the version that all slices of which it is
    the primary have at least; `rows`: per worker, the last contribution that all of them have."""

    rows: tuple[Row, ...] = ()


class Seed(Message, frozen=True, kw_only=True):
    """One slice of the initial parameters (the paper's BONJOUR_MDES). The payload is the slice."""


class Seeded(Message, frozen=True, kw_only=True):
    """This server holds the initial parameters of all its slices."""


class Alive(Message, frozen=True, kw_only=True):
    """A sign of life: of the worker or the server that it names, otherwise of the lead. `sequence`:
    how many of the lead's this worker or server has read over this link."""


class CaughtUp(Message, frozen=True, kw_only=True):
    """From a primary: nothing of its slices will be acknowledged that `peer`, a learner, lacks."""

    peer: Count


class Unreachable(Message, frozen=True, kw_only=True):
    """A server has lost its link to `peer`, another server, or cannot get one."""

    peer: Count
    reason: str = ""


class Introduced(Message, frozen=True, kw_only=True):
    """To a server: the lead has admitted this worker under this incarnation, and the worker will dial.
    A server that does not lead takes the links of no other workers."""


class Dismissed(Message, frozen=True, kw_only=True):
    """To a server: this incarnation of a worker was evicted and has not woken in time. End its link."""


# -- a primary and its replicas ----------------------------------------------------------------


class Copy(Message, frozen=True, kw_only=True):
    """One step of a slice, for a replica to make too. The payload is the aggregate that was folded,
    or without rounds the contribution; a step without weight has none."""

    stamp: Stamp
    step: SliceStep
    rows: tuple[Row, ...] = ()


class Copied(Message, frozen=True, kw_only=True):
    """A replica has made the step in every slice that it copies from this primary."""

    rows: tuple[Row, ...] = ()


class Fetch(Message, frozen=True, kw_only=True):
    """To a primary: send me the slices of yours that I am to copy. `held`: what I have of them."""

    held: tuple[Stamp, ...] = ()


class State(Message, frozen=True, kw_only=True):
    """One tensor of one slice's state: `part` of `parts`, called `name`; of 0 parts: the copy that is
    there is the same. `slices`: how many slices the answer has."""

    slices: Amount
    stamp: Stamp
    rows: tuple[Row, ...] = ()
    name: Label = ""
    dtype: Label = ""
    shape: tuple[Amount, ...] = ()
    part: Amount = 0
    parts: Amount = 0


class Adopted(Message, frozen=True, kw_only=True):
    """A replica or learner holds what it fetched from this primary, and every step in `rows`."""

    rows: tuple[Row, ...] = ()


EVENT_TYPES: dict[type[Message], EventType] = {
    ServerHello: EventType.SRV_BONJOUR,
    Alive: EventType.ALIVE,
    Seed: EventType.BONJOUR_MDES,
    WorkerHello: EventType.WRK_BONJOUR,
    Contribution: EventType.WRK_UPDATE,
    HelloReply: EventType.GREETING,
    Challenge: EventType.CHALLENGE,
    Proof: EventType.PROOF,
    Refusal: EventType.REFUSED,
    SegmentOffered: EventType.SEGMENT,
    SegmentWithdrawn: EventType.SEGMENT_WITHDRAWN,
    Admitted: EventType.ADMITTED,
    Attach: EventType.ATTACH,
    Routing: EventType.ROUTING,
    Enrol: EventType.ENROL,
    Leased: EventType.LEASED,
    Report: EventType.REPORT,
    Leave: EventType.LEAVE,
    Stop: EventType.STOP,
    Evicted: EventType.EVICTED,
    Trailer: EventType.TRAILER,
    Abstained: EventType.ABSTAINED,
    Arrived: EventType.ARRIVED,
    Fold: EventType.FOLD,
    Folded: EventType.FOLDED,
    Release: EventType.RELEASE,
    Pause: EventType.PAUSE,
    Asking: EventType.ASKING,
    Acknowledged: EventType.ACKNOWLEDGED,
    Pull: EventType.PULL,
    Parameters: EventType.PARAMETERS,
    Pulled: EventType.PULLED,
    Place: EventType.PLACE,
    Placed: EventType.PLACED,
    Seeded: EventType.SEEDED,
    CaughtUp: EventType.CAUGHT_UP,
    Unreachable: EventType.UNREACHABLE,
    Introduced: EventType.INTRODUCED,
    Dismissed: EventType.DISMISSED,
    Copy: EventType.COPY,
    Copied: EventType.COPIED,
    Fetch: EventType.FETCH,
    State: EventType.STATE,
    Adopted: EventType.ADOPTED,
}
DECODERS: dict[int, msgspec.msgpack.Decoder[Message]] = {
    event: msgspec.msgpack.Decoder(kind) for kind, event in EVENT_TYPES.items()
}
encode_head = msgspec.msgpack.Encoder().encode


_NAMES: dict[int, str] = {event: kind.__name__ for kind, event in EVENT_TYPES.items()}


def frame_of(event: int) -> str:
    """A frame of a known type, named by the message that it carries."""
    name = _NAMES[event]
    return f"{article(name)} {name} frame"


def article(name: str) -> str:
    return "an" if name[0] in "AEIOU" else "a"
