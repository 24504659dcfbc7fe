"""Messages about one contribution: the worker pushes it, the servers fold it, the lead releases the
worker, and the worker pulls the new version."""

import msgspec

from polyrhythm.wire.messages.fields import Amount, Count, Label, Message, Number, Rate, Weight
from polyrhythm.wire.messages.reasons import Reason
from polyrhythm.wire.messages.specs import (
    ChunkProgress,
    MemberSpec,
    Progress,
    Row,
    SliceStep,
)


class Contribution(Message, frozen=True, kw_only=True):
    """One slice of a contribution, to the primary of the slice. `slices`: how many slices of this
    contribution the server gets. The payload is the slice, or the `parts` of it. Everything that
    concerns no single slice is in the `Trailer`, which goes to the lead."""

    slices: Amount
    weight: Weight = 0.0
    """The weight of the slice in the mean over all contributions to a round."""
    rate: Rate = 0.0
    pull: Amount = 0
    """Without rounds: the ticket of a `Pull` that this message also is; 0: none. The answer comes
    after the fold of this contribution."""
    pulled: Count = -1
    """See `Pull.pulled`."""
    parts: tuple[Amount, ...] | None = None
    """For a slice of the model's buffers: the numbers of the parts that this worker changed. The
    payload contains these parts one after the other. Empty: the contribution does not change this
    slice, and there is no payload. A slice of parameters is left out in the same way if the
    contribution is a step of another model. None: the payload is the whole slice."""
    indices: Count | None = None
    """For a slice that consists of rows: how many rows the payload contains. Their numbers within
    the slice come first (64 bits each, ascending), then their values. -1: the worker had no
    gradient, and there is no payload. None: the payload is the whole slice."""
    quantised: bool = False
    """Whether the payload is the whole slice as integers of 8 bits with scales
    (`core/kinds.py`)."""


class ContributionReport(msgspec.Struct, frozen=True, array_like=True, kw_only=True, gc=False):
    """A worker's report about one contribution: everything but the tensors. The user's loop makes
    the report, and the lead counts it. The worker's node adds the times and the size."""

    weight: Weight = 0.0
    """The number of points that the contribution contains."""
    objective: float | None = None
    compute_ns: Amount = 0
    wait_ns: Amount = 0
    transfer_ns: Amount = 0
    progress: tuple[ChunkProgress, ...] = ()
    lease: Amount = 0
    """The number of the lease that the worker had when it visited the contribution's first
    point."""
    steps: Amount = 1
    """How many steps of the user's loop the contribution contains."""
    probe: float | None = None
    """The mean loss over this worker's share of the probe sample, if `Release.probe` asked for
    it."""
    probe_points: Amount = 0
    probe_ns: Amount = 0
    abandoned_ns: Amount = 0
    """The part of `compute_ns` that was spent on an abandoned micro-batch. Its points are not in
    the contribution and will be visited again."""
    batch: Amount = 0
    """If rounds end by the clock: the batch size of the user's loop; 0 if unknown."""
    micro_ns: Amount = 0
    """If rounds end by the clock: the duration of the shortest micro-batch that is worth starting;
    0 if unknown."""
    skipped: Amount = 0
    """How many steps, besides those in the contribution, the worker left out because they were not
    finite."""
    model: Count = -1
    """In a job with several models, if servers make the steps: the number of the model whose step
    this is. -1: the contribution contains steps of all models."""
    visited: Count = -1
    """In a job with several models: how many points this contribution reports as visited. The
    points of a batch add to the weight of every step that is made with it, and are reported once.
    -1: as many as its weight."""
    terminated: Label = ""
    """Kind statistics: why the algorithm has declared the parameters in this contribution final;
    empty if they are not final. Only the evaluator sends this field."""
    nbytes: Count = -1
    """The size in bytes of the contribution's slices, as the worker has sent them. -1: they are the
    whole model, and no slice was quantised, left out or sent row by row."""
    whole_steps: Number = -1.0
    """How many steps over whole batches the contribution is worth: a step over half a batch counts
    half. -1: all of its steps were made with whole batches."""


class Trailer(Message, frozen=True, kw_only=True):
    """The part of a contribution that goes to the lead."""

    report: ContributionReport


class Abstained(Message, frozen=True, kw_only=True):
    """This worker has nothing to contribute to the round: the lead must not wait for it."""

    lease: Amount = 0
    skipped: Reason | None = None
    """Why the worker leaves its contribution out (`--on-nan skip`); None if it has no points to
    visit."""
    progress: tuple[ChunkProgress, ...] = ()
    """The points of the contribution that is left out: they count as visited. In a job with several
    models also the points of the last batch, if all its steps are contributed."""
    model: Count = -1
    """The model whose step is left out: see `ContributionReport.model`."""


class Arrived(Message, frozen=True, kw_only=True):
    """A server tells the lead that it has added all its slices of one contribution to the
    aggregates of `round`."""


class Fold(Message, frozen=True, kw_only=True):
    """The lead orders the servers to fold `round`. The servers send the new version to the workers
    in `readers`. `members` is the view from now on. Without rounds, this message only changes the
    view. `last`: no fold follows."""

    readers: tuple[int, ...] = ()
    members: tuple[MemberSpec, ...] = ()
    last: bool = False
    share: float = 1.0
    """How many points the round has, as a share of a whole batch of every worker. It is less than 1
    when some workers have no points left, or when the clock ended the round before workers had
    visited a whole batch. The step is scaled accordingly (`core/server/stepping.py`)."""
    rows: tuple[Row, ...] = ()
    """Kind statistics: the rows of this version, one for each member, with the last contribution
    that the row contains. Later contributions wait for another fold. Rows of other workers are
    deleted."""


class Folded(Message, frozen=True, kw_only=True):
    """A server has folded `round`. `weight`: the largest weight that it folded into a slice."""

    weight: Weight = 0.0


class Release(Message, frozen=True, kw_only=True):
    """The worker may go on with version `round`. `pushed`: the servers send this version without a
    `Pull`. The next contribution is due after `steps` steps or after `interval_ns`. If both are 0,
    the user's loop decides when it contributes."""

    pushed: bool = True
    stop: bool = False
    steps: int = 0
    interval_ns: int = 0
    probe: tuple[int, int] = (0, 0)
    """(n, m): before training, evaluate part n of the m parts of the probe sample. (0, 0): evaluate
    nothing."""
    points: int = 0
    """If positive: contribute after this many points. -1: after all points of this worker."""
    torn: bool = False
    """Kind statistics: whether this version may contain a contribution in some slices but not in
    others. If so, no parameters are computed from this version."""
    whole_only: bool = False
    """Kind statistics: if points are missing from the sum of this version, no parameters are computed
    from it."""
    progress: Progress = Progress()
    rank: Count = -1
    """The rank of the worker among the members of the view, by worker number; -1 if it is not a
    member."""
    whole: bool = False
    """With `--optimizer-on workers`: the worker does not have the version before this one, so it
    pulls the parameters and the state of the optimizer instead of the sum of the gradients."""


class Progressed(Message, frozen=True, kw_only=True):
    """The lead reports the progress of the job to a worker. Under asp no `Release` follows a
    contribution, so the lead sends this message from time to time."""

    progress: Progress = Progress()
    rank: Count = -1
    """See `Release.rank`."""


class Pause(Message, frozen=True, kw_only=True):
    """The lead tells a worker that the interval of `round` is over: contribute what has been
    computed so far."""


class Asking(Message, frozen=True, kw_only=True):
    """A worker has visited all of its points in `round` and asks the lead to end the round."""


class Acknowledged(Message, frozen=True, kw_only=True):
    """A primary tells a worker that contribution `sequence` is safe: the primary and all replicas
    have it. This holds for all slices whose primary the sender has been since the routing epoch
    `routing`."""


class Pull(Message, frozen=True, kw_only=True):
    """A worker asks a server for its slices. With rounds: the server answers once its version is at
    least `round`. Without rounds: it answers once contribution `sequence` is folded; `round` is a
    ticket, which the answer repeats."""

    pulled: Count = -1
    """The version (or ticket) of a `Pulled` that this message also is; -1: none."""
    whole: bool = False
    """With `--optimizer-on workers`: the worker asks for the parameters and the state of the
    optimizer (`Given`). The server answers when a worker has shared them (`Shared`)."""


class Parameters(Message, frozen=True, kw_only=True):
    """One slice of version `round`; over a link that carries references, all slices of the server.
    `sequence` acknowledges the reader's contributions up to this one. The payload is the slice, or
    the slices in `holds` one after the other."""

    slot: Amount = 0
    holds: tuple[Amount, ...] = ()
    parts: tuple[Amount, ...] | None = None
    """For a slice of the model's buffers: the numbers of the parts in the payload. The reader has
    all other parts already, because they have not changed since they were seeded. None: the payload
    is the whole slice."""
    steps: tuple[SliceStep, ...] = ()
    """With `--optimizer-on workers`: the payload is the sum of the gradients, and this is the step
    that the reader makes with it. One for each slice in the payload; a single one holds for all of
    them."""
    early: bool = False
    """Whether the sum is sent before the fold is ordered, because every member has contributed to this
    slice. *The reader drops it if the server is lost before the release.*"""


class Pulled(Message, frozen=True, kw_only=True):
    """The reader has copied version `round` (without rounds: the answer to ticket `round`). The
    server may overwrite the memory of that version."""
