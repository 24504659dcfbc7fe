"""Messages between the lead and the servers: placement, seeding, and links between servers."""

from polyrhythm.wire.messages.fields import Count, Message
from polyrhythm.wire.messages.specs import MemberSpec, ModelSpec, Route, Row, ServerSpec


class Place(Message, frozen=True, kw_only=True):
    """The lead orders a server to hold the slices that are routed to it. `fresh`: the slices get
    the initial parameters from a worker. Otherwise the slices that the server holds already keep
    their values."""

    spec: ModelSpec
    routes: tuple[Route, ...]
    servers: tuple[ServerSpec, ...] = ()
    members: tuple[MemberSpec, ...] = ()
    fresh: bool = True


class Placed(Message, frozen=True, kw_only=True):
    """A server has allocated its slices. `round`: the least version among the slices whose primary
    it is. `rows`: for each worker, the last contribution that all of these slices contain."""

    rows: tuple[Row, ...] = ()


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
    """A server has lost its link to the server `peer`, or cannot connect to it."""

    peer: Count
    detail: str = ""
    """How the link ended, in the words of the operating system."""


class Introduced(Message, frozen=True, kw_only=True):
    """The lead tells a server that it has admitted this worker with this incarnation. The worker
    will connect to the server. The server refuses workers that the lead has not introduced, unless
    the lead runs in the server's own process."""


class Dismissed(Message, frozen=True, kw_only=True):
    """The lead tells a server to end the link of this incarnation of a worker. The worker was
    evicted, and has stayed silent for too long since then."""
