"""Messages of one contribution: pushed to the servers, folded, released, and pulled back."""

from polyrhythm.wire.messages.fields import Amount, Count, Message, Rate
from polyrhythm.wire.messages.specs import ChunkProgress, MemberSpec


class Contribution(Message, frozen=True, kw_only=True):
    """One slice of a contribution. Every slice carries the weight, the rate, and the number of
    slices that this server gets; the trailer carries the rest. The payload is the slice, or `parts`
    of it."""

    slices: Amount
    rate: Rate = 0.0
    pull: Amount = 0
    """Without rounds: the ticket of a `Pull` that asks for the parameters with this contribution; 0
    for none."""
    pulled: Count = -1
    """See `Pull.pulled`."""
    parts: tuple[Amount, ...] | None = None
    """For a slice of buffers: the parts that this worker changed, which lie side by side in the
    payload. If empty, there is no payload. None: the payload is the whole slice."""


class Trailer(Message, frozen=True, kw_only=True):
    """To the lead: the part of a contribution that concerns no slice."""

    objective: float | None = None
    compute_ns: Amount = 0
    wait_ns: Amount = 0
    transfer_ns: Amount = 0
    progress: tuple[ChunkProgress, ...] = ()
    lease: Amount = 0
    """The number of the lease under which the first of these points was visited."""
    steps: Amount = 1
    """How many steps of the user's loop the contribution contains."""
    probe: float | None = None
    """The mean loss over this worker's share of the probe sample, if the release asked for it."""
    probe_points: Amount = 0
    probe_ns: Amount = 0
    abandoned_ns: Amount = 0
    """The part of the computing time spent on points that were left out and will be visited
    again."""
    batch: Amount = 0
    """If rounds end by the clock: the batch size of the user's loop; 0 if unknown."""
    micro_ns: Amount = 0
    """If rounds end by the clock: the shortest micro-batch worth starting; 0 if unknown."""


class Abstained(Message, frozen=True, kw_only=True):
    """This worker has nothing to contribute to the round: the lead must not wait for it."""

    lease: Amount = 0


class Arrived(Message, frozen=True, kw_only=True):
    """A server has added all its slices of one contribution; `round` is the round that they count
    in."""


class Fold(Message, frozen=True, kw_only=True):
    """The lead orders the servers to fold `round`. `readers` get the new version; `members` is the
    view from now on. If contributions are folded on arrival, this only changes the view. `last`: no
    fold follows."""

    readers: tuple[int, ...] = ()
    members: tuple[MemberSpec, ...] = ()
    last: bool = False
    share: float = 1.0
    """The fraction of a full step: less than 1 while workers that have visited all of their points
    count as workers that change nothing."""


class Folded(Message, frozen=True, kw_only=True):
    """A server has folded `round`. `weight`: the largest weight that it folded into a slice."""


class Release(Message, frozen=True, kw_only=True):
    """The worker may go on with version `round`. `pushed`: the servers send it without a `Pull`.
    The next contribution is due after `steps` steps or after `interval_ns`; if both are 0, the
    user's loop decides."""

    pushed: bool = True
    stop: bool = False
    steps: int = 0
    interval_ns: int = 0
    probe: tuple[int, int] = (0, 0)
    """(n, m): evaluate part n of m of the probe sample first; (0, 0): do not."""
    points: int = 0
    """Contribute after so many points; -1: after all points of this worker."""


class Pause(Message, frozen=True, kw_only=True):
    """The interval of `round` is over: contribute what has been computed."""


class Asking(Message, frozen=True, kw_only=True):
    """This worker has visited all of its points in `round` and asks for the barrier."""


class Acknowledged(Message, frozen=True, kw_only=True):
    """Contribution `sequence` is safe in the slices whose primary this server is since the routing
    epoch `routing`: the primary and all replicas have it."""


class Pull(Message, frozen=True, kw_only=True):
    """Ask a server for its slices once its version is at least `round`. Without rounds: ask for the
    current slices, with contribution `sequence` folded; `round` is a ticket that the answer
    repeats."""

    pulled: Count = -1
    """The reader has copied the versions up to this one, as if it had sent `Pulled`."""


class Parameters(Message, frozen=True, kw_only=True):
    """One slice of version `round`, or all slices of a server if the link carries references.
    `sequence` acknowledges the reader's contributions so far. The payload is the slice, or the
    slices named in `holds` side by side."""

    slot: Amount = 0
    holds: tuple[Amount, ...] = ()
    parts: tuple[Amount, ...] | None = None
    """For a slice of buffers: the parts in the payload. The reader has the others, which have not
    changed since they were seeded. None: the payload is the whole slice."""


class Pulled(Message, frozen=True, kw_only=True):
    """The reader has copied version (or answer) `round`: the server may overwrite its memory."""
