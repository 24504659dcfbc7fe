"""Messages by which workers and servers join, get their data, report, show that they live, and
leave."""

from typing import Annotated

from msgspec import Meta

from polyrhythm.wire.messages.fields import Amount, Label, Message, Number
from polyrhythm.wire.messages.job import JobSpec
from polyrhythm.wire.messages.reasons import DONE, Reason
from polyrhythm.wire.messages.specs import ChunkLease, ModelSpec, Route, ServerSpec


class Admitted(Message, frozen=True, kw_only=True):
    """The settings and the servers of the job. A worker links to all of them. A server that asked
    for a number finds it in `server`."""

    job: JobSpec
    servers: tuple[ServerSpec, ...]


class Attach(Message, frozen=True, kw_only=True):
    """A worker's model. The first one becomes the job's; all others must equal it."""

    spec: ModelSpec


class Routing(Message, frozen=True, kw_only=True):
    """The route of every slice. `seed`: this worker sends the initial parameters. A later `Routing`
    moves slices: the worker sends unacknowledged contributions again, to the new primaries."""

    routes: tuple[Route, ...]
    seed: bool = False
    servers: tuple[ServerSpec, ...] = ()


class Enrol(Message, frozen=True, kw_only=True):
    """A worker tells how many points its data set has and asks for chunks. `batch`: the batch size
    of the user's loop; 0 if unknown."""

    points: Amount
    batch: Amount = 0


class Leased(Message, frozen=True, kw_only=True):
    """The chunks that a worker may visit from now on. A later `number` replaces an earlier lease. A
    chunk that it no longer contains goes to another worker once this one has contributed under the
    new number."""

    points: int
    seed: int
    chunks: tuple[ChunkLease, ...]
    epochs: int | None = None
    number: int = 0


class Report(Message, frozen=True, kw_only=True):
    """Values that a worker's code reports, such as its accuracy."""

    metrics: Annotated[dict[Label, Number], Meta(max_length=100)]


class Leave(Message, frozen=True, kw_only=True):
    """A worker leaves the job. `failed`: its code raised an exception."""

    reason: Reason = DONE
    failed: bool = False


class Evicted(Message, frozen=True, kw_only=True):
    """This incarnation of a worker was silent for too long and is not in the view any more: it must
    join again."""

    reason: Reason


class Stop(Message, frozen=True, kw_only=True):
    """The job has ended. `failed`: before its goal."""

    reason: Reason
    failed: bool = False


class Alive(Message, frozen=True, kw_only=True):
    """A heartbeat of the worker or the server that it names, or of the lead if it names none.
    `sequence`: how many heartbeats of the lead this worker or server has read over this link."""
