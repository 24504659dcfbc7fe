"""Messages between the lead and the servers: placement, seeding, and links between servers."""

from typing import Annotated

from msgspec import Meta

from polyrhythm.wire.messages.fields import Amount, Count, Message
from polyrhythm.wire.messages.reasons import Reason
from polyrhythm.wire.messages.specs import MemberSpec, ModelSpec, Route, Row, ServerSpec


class Place(Message, frozen=True, kw_only=True):
    """The lead orders a server to hold the slices that are routed to it. `fresh`: the slices get
    the initial parameters from a worker. Otherwise the slices that the server holds already keep
    their values. `seat`: the server in which the lead runs."""

    spec: ModelSpec
    routes: tuple[Route, ...]
    servers: tuple[ServerSpec, ...] = ()
    members: tuple[MemberSpec, ...] = ()
    fresh: bool = True
    seat: Amount = 0


class Placed(Message, frozen=True, kw_only=True):
    """A server has allocated its slices. `round`: the least version among the slices whose primary
    it is. `rows`: for each worker, the last contribution that all of these slices contain."""

    rows: tuple[Row, ...] = ()


class Drain(Message, frozen=True, kw_only=True):
    """This server asks the lead to move its slices to other servers, so that it can leave. The lead
    answers with `Stop` once the server holds no slice, or with `Stays`."""


class Stays(Message, frozen=True, kw_only=True):
    """The lead tells a server why it cannot be drained."""

    reason: Reason


class Seed(Message, frozen=True, kw_only=True):
    """One slice of the initial parameters, from the first worker (BONJOUR_MDES in the dSyncPS
    paper). The payload is the slice."""


class Seeded(Message, frozen=True, kw_only=True):
    """This server holds the initial parameters of all its slices."""


class CaughtUp(Message, frozen=True, kw_only=True):
    """A primary tells the lead that the learner `peer` has caught up: from now on the primary
    acknowledges only contributions that this learner has too."""

    peer: Count


class Unreachable(Message, frozen=True, kw_only=True):
    """A server or a worker tells the lead that it cannot reach `peer`, which has a name such as w3
    or s1: the link between the two has ended, is silent, or cannot be opened."""

    peer: Annotated[str, Meta(max_length=24)]
    peer_incarnation: Count = 0
    detail: str = ""
    """How the link ended, in the words of the operating system."""
    silent_s: Annotated[float, Meta(ge=0.0, le=1e9)] = 0.0
    """If the link has not ended: for how long nothing has come over it. The report is repeated with
    every heartbeat, as long as the silence lasts."""


class Introduced(Message, frozen=True, kw_only=True):
    """The lead tells a server that it has admitted this worker with this incarnation. The worker
    will connect to the server. The server refuses workers that the lead has not introduced, unless
    the lead runs in the server's own process."""


class Dismissed(Message, frozen=True, kw_only=True):
    """The lead tells a server to end the link of this incarnation of a worker. The worker was
    evicted, and has stayed silent for too long since then."""
