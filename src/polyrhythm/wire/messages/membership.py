"""Messages by which workers and servers join, get their chunks of data, report, send heartbeats,
and leave."""

from typing import Annotated

from msgspec import Meta

from polyrhythm.wire.messages.fields import (
    MOST_METRICS,
    Amount,
    Message,
    MetricName,
    Number,
)
from polyrhythm.wire.messages.job import JobSpec
from polyrhythm.wire.messages.reasons import DONE, Reason
from polyrhythm.wire.messages.specs import ChunkLease, ModelSpec, Route, ServerSpec


class Admitted(Message, frozen=True, kw_only=True):
    """The lead has admitted a worker or a server: the settings and the servers of the job. A worker
    connects to every server. A new server finds the number that it was given in `server`."""

    job: JobSpec
    servers: tuple[ServerSpec, ...]


class Attach(Message, frozen=True, kw_only=True):
    """The tensors of a worker's model, without their values. The first worker's model becomes the
    job's model; the lead refuses a worker with a different one."""

    spec: ModelSpec


class Routing(Message, frozen=True, kw_only=True):
    """The route of every slice. `seed`: this worker must send the initial parameters. A later
    `Routing` moves slices to other servers: the worker then sends its unacknowledged contributions
    again, to the new primaries."""

    routes: tuple[Route, ...]
    seed: bool = False
    servers: tuple[ServerSpec, ...] = ()


class Enrol(Message, frozen=True, kw_only=True):
    """A worker says how many points the training data has, and asks for chunks. `batch`: the batch
    size of the user's loop; 0 if unknown."""

    points: Amount
    batch: Amount = 0


class Leased(Message, frozen=True, kw_only=True):
    """The chunks that a worker may visit from now on. A lease with a higher `number` replaces the
    earlier one. A chunk that is not in the new lease goes to another worker, but only after this
    worker has sent a contribution with the new number."""

    points: int
    seed: int
    chunks: tuple[ChunkLease, ...]
    epochs: int | None = None
    number: int = 0


class Appointed(Message, frozen=True, kw_only=True):
    """The lead has chosen this worker to evaluate the model for all workers, from now on until its
    incarnation ends."""


class Report(Message, frozen=True, kw_only=True):
    """Values that a worker's code reports, such as its accuracy. `evaluated`: the worker evaluated
    the model for all workers; otherwise the values are about this worker."""

    metrics: Annotated[dict[MetricName, Number], Meta(max_length=MOST_METRICS)]
    evaluated: bool = False


class Leave(Message, frozen=True, kw_only=True):
    """A worker leaves the job. `failed`: its code raised an exception."""

    reason: Reason = DONE
    failed: bool = False


class Evicted(Message, frozen=True, kw_only=True):
    """The lead has removed this incarnation of a worker from the view, because it was silent for
    too long. The worker must join again."""

    reason: Reason


class Stop(Message, frozen=True, kw_only=True):
    """The job has ended. `failed`: it has not reached its goal."""

    reason: Reason
    failed: bool = False


class Alive(Message, frozen=True, kw_only=True):
    """A heartbeat of the worker or server in the identity fields; of the lead if both fields are
    -1. `sequence`: how many heartbeats of the lead this worker or server has read over this
    link."""
