"""What happens inside a process, in the past tense. Messages of peers are events as they are."""

from polyrhythm.core.machine import Event
from polyrhythm.wire.messages import ChunkProgress, ModelSpec, Row, ServerHello, WorkerHello


class Tick(Event, frozen=True):
    """The time that a machine asked for in `wake_at` has come."""


class WorkerHelloReceived(Event, frozen=True):
    """A stranger's first frame came over `link`; its reply goes there until it is bound to a peer."""

    link: str
    hello: WorkerHello


class ServerHelloReceived(Event, frozen=True):
    link: str
    hello: ServerHello


class LinkClosed(Event, frozen=True):
    """The link to `peer` ended, for whatever reason. This is death at once; of that incarnation, if
    it is known whose link it was (0: it is not)."""

    peer: str
    reason: str
    incarnation: int = 0


class LeadLinked(Event, frozen=True):
    """The link to the lead is up; how often the lead beats, and when it is given up."""

    heartbeat_s: float
    timeout_s: float


class LeadHeard(Event, frozen=True):
    """Something came from the lead, whether or not it has been read. The interpreter says so from
    time to time, for slices that come for minutes hold up the heartbeats behind them."""


class StopAsked(Event, frozen=True):
    """Somebody outside (a signal, the engine) wants the job to end: in order, so that every worker
    leaves its loop with the final parameters; or at once."""

    reason: str
    at_once: bool = False


# -- the server ---------------------------------------------------------------------------------


class ServerCalled(Event, frozen=True):
    """A server has said hello over `link` to a server that does not lead. Nothing that it sends is read
    until the link is bound to it."""

    link: str
    server: int
    incarnation: int


class WorkerCalled(Event, frozen=True):
    """A worker has said hello over `link` to a server that does not lead. Nothing that it sends is read
    until the link is bound to it."""

    link: str
    worker: int
    incarnation: int


class SliceSeeded(Event, frozen=True):
    """The initial parameters of one slice are in their place, as of this routing epoch."""

    slice: int
    routing: int


class Contributed(Event, frozen=True):
    """Every slice that this server gets of a contribution is in its aggregate."""

    worker: int
    incarnation: int
    sequence: int
    round: int
    pull: int = 0
    """Without rounds: the ticket with which the worker asks for the parameters; 0: it does not."""
    pulled: int = -1
    """The last ticket whose answer the worker has copied."""


class Repeated(Event, frozen=True):
    """A contribution came again that this server has already; it was not added a second time."""

    worker: int
    incarnation: int
    sequence: int


class Rerouted(Event, frozen=True):
    """What this server holds is what the routing epoch says. `version` and `rows`: what all slices
    that it is the primary of have at least; `copied`: per primary, what its copies here have."""

    routing: int
    version: int
    rows: tuple[Row, ...]
    copied: tuple[tuple[int, tuple[Row, ...]], ...] = ()
    round: int = 1
    """The round in which everything is folded that has been added and is not."""


class StepCopied(Event, frozen=True):
    """Every slice that is copied from this primary has made these steps here."""

    primary: int
    rows: tuple[Row, ...]


class StateAdopted(Event, frozen=True):
    """Everything that was fetched from this primary is in its place, and has these steps in it."""

    primary: int
    routing: int
    rows: tuple[Row, ...]


class FoldDone(Event, frozen=True):
    round: int
    weight: float


class Sent(Event, frozen=True):
    """Version `round` has left for these workers: over a stream they need its buffer no more."""

    workers: tuple[int, ...]
    round: int


# -- the worker ---------------------------------------------------------------------------------


class Linked(Event, frozen=True):
    """The link to this server is up."""

    server: int
    incarnation: int = 0


class Attaching(Event, frozen=True):
    spec: ModelSpec


class Enrolling(Event, frozen=True):
    points: int
    batch: int = 0


class Computed(Event, frozen=True):
    """The user's step is done and its contribution lies in push buffer `buffer`."""

    buffer: int
    weight: float
    rates: tuple[float, ...]
    objective: float | None
    compute_ns: int
    wait_ns: int
    transfer_ns: int
    progress: tuple[ChunkProgress, ...]
    lease: int = 0
    steps: int = 1
    probe: float | None = None
    probe_points: int = 0
    probe_ns: int = 0
    abandoned_ns: int = 0
    batch: int = 0
    micro_ns: int = 0


class PassedAll(Event, frozen=True):
    """The worker has visited all of its points since it resumed: more would be the same again."""


class Exhausted(Event, frozen=True):
    """The worker has no points left to visit: it abstains from this round."""

    reason: str
    lease: int = 0


class Landed(Event, frozen=True):
    """One slice of version `round`, or EVERY_SLICE of this server, is in the worker's buffer."""

    server: int
    slice: int
    round: int
    sequence: int
    routing: int = 0
    """The epoch in which the server acknowledged `sequence`."""
    holds: tuple[int, ...] = ()
    """Which slices EVERY_SLICE was, where that can change."""
    incarnation: int = 0
    """Of the reader that it was sent to, where that is known."""


class Skipped(Event, frozen=True):
    """A slice came that is not awaited. It acknowledges all the same."""

    server: int
    sequence: int
    routing: int = 0
    incarnation: int = 0


class Reporting(Event, frozen=True):
    metrics: dict[str, float]


class LeaveAsked(Event, frozen=True):
    """Somebody wants this worker to leave: its user's code need not wait for others any more."""


class Leaving(Event, frozen=True):
    """The user's code has ended; `at_once`: what is not acknowledged is not waited for."""

    reason: str
    failed: bool = False
    at_once: bool = False
