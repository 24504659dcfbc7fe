"""Messages by which workers and servers join, get their chunks of data, report, send heartbeats,
and leave."""

from typing import Annotated

from msgspec import Meta

from polyrhythm.wire.messages.fields import MOST_METRICS, Amount, Message, MetricName, Number
from polyrhythm.wire.messages.job import JobSpec
from polyrhythm.wire.messages.reasons import DONE, Reason
from polyrhythm.wire.messages.specs import (
    Address,
    ChunkLease,
    ChunkSend,
    ColumnSpec,
    Division,
    ModelSpec,
    Route,
    ServerSpec,
)


class Admitted(Message, frozen=True, kw_only=True):
    """The lead has admitted a worker or a server: the settings and the servers of the job. A worker
    connects to every server. For a new server, `server` is the number that the lead has given
    it. `seat`: the server in which the lead runs."""

    job: JobSpec
    servers: tuple[ServerSpec, ...]
    seat: Amount = 0


class ModelSize(Message, frozen=True, kw_only=True):
    """The size of a worker's model in bytes. The lead answers with `Divided`. Workers ask only if the
    lead decides how large slices are (`JobSpec.slice_nbytes`)."""

    nbytes: Amount


class Divided(Message, frozen=True, kw_only=True):
    """How the job's model is cut into slices."""

    division: Division


class Attach(Message, frozen=True, kw_only=True):
    """The tensors of a worker's model, without their values. The first worker's model becomes the
    job's model; the lead refuses a worker with a different one."""

    spec: ModelSpec


class Routing(Message, frozen=True, kw_only=True):
    """The route of every slice. `seed`: this worker must send the initial parameters. A later
    `Routing` moves slices to other servers: the worker then sends its unacknowledged contributions
    again, to the new primaries, but not those up to `secured`: these are in every slice. `seat`: the
    server in which the lead runs."""

    routes: tuple[Route, ...]
    seed: bool = False
    servers: tuple[ServerSpec, ...] = ()
    seat: Amount = 0
    secured: Amount = 0


class Enrol(Message, frozen=True, kw_only=True):
    """A worker says how many points the training data has, and asks for chunks. `batch`: the batch
    size of the user's loop; 0 if unknown. `listens`: where the worker receives points of other
    workers; None if it receives none. `groups`: points at which a row group of a file begins;
    chunks are cut there. `shares`: with `--data-private`, whether the worker may send its points to
    other workers (`--share-data`). `data`: a fingerprint of the data set, by which the lead notices
    that workers have different data sets; empty if unknown."""

    points: Amount
    batch: Amount = 0
    listens: Address | None = None
    groups: Annotated[tuple[Amount, ...], Meta(max_length=8_192)] = ()
    shares: bool = False
    data: Annotated[str, Meta(max_length=64)] = ""


class Leased(Message, frozen=True, kw_only=True):
    """The chunks that a worker may visit from now on. A lease with a higher `number` replaces the
    earlier one. A chunk that is not in the new lease goes to another worker, but only after this
    worker has sent a contribution with the new number.

    If points are delivered from worker to worker (`--migrate full`), the lease also says which
    chunks the worker must send, and which points of other chunks it keeps. The worker drops all
    other points that it has received with deliveries up to number `delivery`."""

    points: int
    seed: int
    chunks: tuple[ChunkLease, ...]
    epochs: int | None = None
    number: int = 0
    sends: tuple[ChunkSend, ...] = ()
    """The chunks that this worker must send. Such a chunk is in no lease until it has arrived."""
    copies: tuple[Amount, ...] = ()
    """The chunks of which the worker keeps an inactive copy, which it must not visit. While the worker
    waits (`--migrate blocking`), its own chunks are among them."""
    arriving: tuple[Amount, ...] = ()
    """The chunks that other workers send to this one."""
    delivery: Amount = 0
    """The highest number of a delivery so far."""
    earlier: Amount = 0
    """Deliveries up to this number were sent to earlier incarnations of the worker, which drops their
    points."""


class Delivered(Message, frozen=True, kw_only=True):
    """A worker has received all points of a chunk (`nbytes` bytes), or the chunk cannot be delivered
    because of `fault`. `number`: the number of the delivery."""

    chunk: Amount
    number: Amount
    nbytes: Amount = 0
    fault: Reason | None = None


class ChunkPart(Message, frozen=True, kw_only=True):
    """From worker to worker: some points of a chunk. The payload contains the values of the first
    column for all these points, then those of the second column, and so on."""

    chunk: Amount
    number: Amount
    """The number of the delivery."""
    points: Amount
    """The number of points of the chunk."""
    offset: Amount
    """The number of points in the parts before this one."""
    count: Amount
    structure: Annotated[str, Meta(max_length=10_000)] = ""
    """How the values of the columns form a point (`learn/migration/layout.py`)."""
    columns: Annotated[tuple[ColumnSpec, ...], Meta(max_length=256)] = ()


class Appointed(Message, frozen=True, kw_only=True):
    """The lead has chosen this worker to evaluate the model for all workers, from now on until its
    incarnation ends."""


class Report(Message, frozen=True, kw_only=True):
    """Values that a worker's code reports, such as its accuracy. `evaluated`: the worker evaluated
    the model for all workers; otherwise the values are about this worker."""

    metrics: Annotated[dict[MetricName, Number], Meta(max_length=MOST_METRICS)]
    evaluated: bool = False


class Leave(Message, frozen=True, kw_only=True):
    """A worker leaves the job. `failed`: its code raised an exception. `rejoins`: it joins
    again under another incarnation, because it has lost its link to a server."""

    reason: Reason = DONE
    failed: bool = False
    rejoins: bool = False


class Evicted(Message, frozen=True, kw_only=True):
    """The lead has removed this incarnation of a worker from the view, because it was silent for
    too long. The worker must join again."""

    reason: Reason


class Stop(Message, frozen=True, kw_only=True):
    """The job has ended. `failed`: it has not reached its goal."""

    reason: Reason
    failed: bool = False


class Alive(Message, frozen=True, kw_only=True):
    """A heartbeat. The identity fields name the worker or the server that sends it. If both fields
    are -1, the lead sends it. Workers and servers send their heartbeats to the lead, and over their
    TCP links to other servers, so that such a link is silent only if it is broken. `sequence`: how
    many heartbeats of the lead this worker or server has read. `loop_over`: the worker's code was
    told that its training loop is over."""

    loop_over: bool = False
