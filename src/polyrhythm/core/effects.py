"""What an interpreter must do, in the imperative. Peers are named s0, s1 … and w0, w1 …; `lead` is
wherever the lead's machine runs."""

from functools import cache
from typing import Any

from polyrhythm.core.machine import Effect, Reason
from polyrhythm.wire.messages import (
    Alive,
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
"""A report: the job ended while this worker was out of it."""


@cache
def server_name(server: int) -> str:
    return f"s{server}"


@cache
def worker_name(worker: int) -> str:
    return f"w{worker}"


@cache
def worker_number(peer: str) -> int | None:
    """The worker behind a peer's name; None if that is no worker's."""
    return int(peer[1:]) if peer.startswith("w") and peer[1:].isdigit() else None


@cache
def server_number(peer: str) -> int | None:
    return int(peer[1:]) if peer.startswith("s") and peer[1:].isdigit() else None


class Send(Effect, frozen=True):
    to: str
    message: Message


class Bind(Effect, frozen=True):
    """The stranger behind `link` is `peer` from now on."""

    link: str
    peer: str
    incarnation: int = 0


class Drop(Effect, frozen=True):
    """Close the link to `peer` once what was sent to it has left."""

    peer: str
    reason: str


class Note(Effect, frozen=True):
    """A line for the journal; from a process that keeps none, a report to whoever started it."""

    what: str
    fields: dict[str, Any]


class Beat(Effect, frozen=True):
    """Send this sign of life to the lead."""

    message: Alive


class BeatAll(Effect, frozen=True):
    """Send the lead's sign of life to every process that is linked to it."""

    message: Alive


class End(Effect, frozen=True):
    """This machine's part in the job is over."""

    reason: Reason
    failed: bool = False


# -- the server ---------------------------------------------------------------------------------


class Build(Effect, frozen=True):
    """Make room for these slices of the model: buffers, aggregate, updater. What was seeded under
    another routing epoch is void. Not `fresh`: they come from other servers, not from a worker."""

    spec: ModelSpec
    routes: tuple[Route, ...]
    routing: int
    fresh: bool = True


class Reach(Effect, frozen=True):
    """Open a link to each of these servers that has a lower number; the others come. `incarnation`:
    this server's own."""

    servers: tuple[ServerSpec, ...]
    incarnation: int


class Reroute(Effect, frozen=True):
    """Be the primary, a replica or nobody of each slice, as these routes say, and keep what is in the
    slices. What was added to an aggregate that changes its primary is void."""

    routes: tuple[Route, ...]
    routing: int


class SendState(Effect, frozen=True):
    """Send the state of the slices that this server is the primary of and `to` has a copy of, but
    not of those whose copy has the same stamp; from now on it makes every step of them too."""

    to: int
    held: tuple[Stamp, ...]
    routing: int


class FetchState(Effect, frozen=True):
    """Ask this primary for the state of what is copied from it here, saying what there is."""

    primary: int
    slices: tuple[int, ...]
    routing: int


class Enlist(Effect, frozen=True):
    """Contributions of these members, and of nobody else, may be added from now on."""

    members: tuple[MemberSpec, ...]


class StartFold(Effect, frozen=True):
    """Fold the aggregate of `round` into buffer `slot`; `fill`: the slot that the next aggregate
    may grow in, for updaters that need no separate one; `share`: how much of a full step it is."""

    round: int
    slot: int
    fill: int
    share: float = 1.0


class Publish(Effect, frozen=True):
    """Send all slices of version `round`, which lie in `slot`, to this worker. *What is meant for
    one incarnation does not go to another, which would take it for its own.*"""

    worker: int
    incarnation: int
    round: int
    slot: int
    sequence: int
    view: int
    routing: int = 0
    first: bool = False
    """Others wait too, but were waiting for this one: it leaves before anything else is done."""


class FreeSlots(Effect, frozen=True):
    """These slots' memory is not needed until they are named again."""

    slots: tuple[int, ...]


class PublishLatest(Effect, frozen=True):
    """Without rounds: send every slice as it is now, as the answer to `ticket`; whoever does it
    leases the slices to this worker in one go (`SliceVersions`)."""

    worker: int
    incarnation: int
    ticket: int
    sequence: int
    view: int
    routing: int = 0


class Unlease(Effect, frozen=True):
    """This worker has copied what it got with `ticket` and before; None: it is gone."""

    worker: int
    ticket: int | None


class Freeze(Effect, frozen=True):
    """Without rounds: fold nothing any more, so that all read the same final parameters."""


# -- the worker ---------------------------------------------------------------------------------


class Dial(Effect, frozen=True):
    """Open links to these servers (the one that runs the lead is linked already)."""

    servers: tuple[ServerSpec, ...]


class Rejoin(Effect, frozen=True):
    """Drop all links and knock at the lead's door again, under the same name, saying which
    incarnation it was: the lead may not have noticed yet that that one is over."""

    reason: str
    incarnation: int = 0


class Arrange(Effect, frozen=True):
    """The model is accepted and its slices are routed: make the push buffers."""

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
    """Without rounds: ask for the parameters with this ticket; 0: do not ask."""
    pulled: int = -1
    """The last ticket whose answer was copied, where the request says so."""


class Expect(Effect, frozen=True):
    """Slices of versions from `round` on may land in the worker's parameters; None: none may,
    because the user's code is using them. Those of `keep` that come meanwhile land when they may."""

    round: int | None
    keep: int | None = None


class Resume(Effect, frozen=True):
    """Give the user's code the parameters of version `round`; `stop`: the job has ended. The rest is
    when to contribute next, as in `Release`; `anew`: it joined again, and carries nothing over."""

    round: int
    stop: bool
    steps: int = 0
    interval_ns: int = 0
    probe: tuple[int, int] = (0, 0)
    points: int = 0
    anew: bool = False


class StopWaiting(Effect, frozen=True):
    """The training loop, which was told to leave, need not wait for a version. `stop`: the job has
    ended without this worker, and there is no version to wait for."""

    stop: bool = False


class ContributeNow(Effect, frozen=True):
    """The interval is over: let the user's code contribute what it has."""


class TakeChunks(Effect, frozen=True):
    lease: Leased


class Fail(Effect, frozen=True):
    """Tell the user's code that this worker cannot go on; `stopped`: nobody can."""

    reason: Reason
    stopped: bool = False
