"""Messages between the lead and the servers: placement, seeding, and links between servers."""

from polyrhythm.wire.messages.fields import Count, Message
from polyrhythm.wire.messages.specs import MemberSpec, ModelSpec, Route, Row, ServerSpec


class Place(Message, frozen=True, kw_only=True):
    """The lead orders a server to hold the slices that are routed to it. `fresh`: a worker will
    send the initial parameters; otherwise slices that the server holds already keep their
    values."""

    spec: ModelSpec
    routes: tuple[Route, ...]
    servers: tuple[ServerSpec, ...] = ()
    members: tuple[MemberSpec, ...] = ()
    fresh: bool = True


class Placed(Message, frozen=True, kw_only=True):
    """A server has allocated its slices. `round`: the least version of the slices whose primary it
    is. `rows`: for each worker, the last contribution that all of these slices contain."""

    rows: tuple[Row, ...] = ()


class Seed(Message, frozen=True, kw_only=True):
    """One slice of the initial parameters (the paper's BONJOUR_MDES). The payload is the slice."""


class Seeded(Message, frozen=True, kw_only=True):
    """This server holds the initial parameters of all its slices."""


class CaughtUp(Message, frozen=True, kw_only=True):
    """From a primary: it acknowledges only contributions that the learner `peer` has too."""

    peer: Count


class Unreachable(Message, frozen=True, kw_only=True):
    """A server has lost its link to the server `peer`, or cannot connect to it."""

    peer: Count
    detail: str = ""
    """How the link ended, as the operating system says it."""


class Introduced(Message, frozen=True, kw_only=True):
    """To a server: the lead has admitted this worker under this incarnation, and the worker will
    dial. A server that does not lead takes the links of no other workers."""


class Dismissed(Message, frozen=True, kw_only=True):
    """To a server: this incarnation of a worker was evicted and has not woken in time. End its
    link."""
