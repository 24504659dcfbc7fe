"""The links of one incarnation of a worker, and the routes that it follows.

*When a worker is linked to every server, it sends the description of its model to the lead. It
follows new routes when it is linked to every server in them. If a worker that rejoins cannot
connect to a server, it reports this to the lead, and tries again every two seconds as long as the
lead keeps it as a member.*
"""

import msgspec

from polyrhythm.core.effects import Dial, SeedSlices
from polyrhythm.core.links import Links
from polyrhythm.core.machine import Reason
from polyrhythm.core.names import server_name
from polyrhythm.core.values import plain
from polyrhythm.core.worker.outbox import WorkerOutbox
from polyrhythm.wire import messages as m

_LAST_WORD_NS = 5 * 10**9
"""How long the worker waits for the lead's decision after the link to a server has ended."""
_AGAIN_NS = 2 * 10**9
"""A worker that rejoins waits this long before it tries again to connect to a server that did not
answer."""


class Parted(msgspec.Struct, frozen=True):
    """A server whose link ended, with the reason. The worker waits until `until_ns` for the lead to
    say whether the server is lost."""

    server: int
    incarnation: int
    reason: Reason
    until_ns: int


class Joining:
    __slots__ = (
        "_attached",
        "_ended",
        "_links",
        "_outbox",
        "_routes",
        "_servers",
        "again_ns",
        "broken",
        "lost",
        "parted",
        "relinked",
        "routed",
    )

    def __init__(self, outbox: WorkerOutbox) -> None:
        self._outbox = outbox
        self._links = Links()
        """Links to every server of the job."""
        self._servers: tuple[m.ServerSpec, ...] = ()
        """The servers that the job had when the lead admitted this incarnation."""
        self.again_ns: int | None = None
        """When to connect again to the servers that did not answer; None if all have answered."""
        self._attached = False
        self._routes: m.Routing | None = None
        """New routes that the worker does not follow yet, because it lacks links to some of their
        servers."""
        self.routed = False
        """Whether the worker follows routes."""
        self.parted: Parted | None = None
        self.lost = False
        """Whether the present routes lack a server of the previous routes."""
        self.broken = False
        """Whether a link has ended before the worker could follow these routes. Then messages on
        this link were lost."""
        self.relinked: int | None = None
        """A server to which such a link has ended, and which is still there, so that it does not send
        again what was lost; None if there is none."""
        self._ended: dict[int, int] = {}
        """The servers whose links have ended since the worker followed routes, with their
        incarnations."""

    @property
    def linked(self) -> bool:
        """Whether every server of the job is linked."""
        return bool(self._links) and self._links.complete

    def on_admitted(self, message: m.Admitted) -> None:
        self._outbox.worker, self._outbox.incarnation = message.worker, message.incarnation
        self._outbox.follow(message)
        self._servers = message.servers
        self._links.want(message.servers)

    def dial(self, servers: tuple[m.ServerSpec, ...]) -> list[int]:
        """Request links to the servers in `servers` to which no connection was tried yet. Returns
        the numbers of these servers."""
        missing = self._links.dial(servers)
        if missing:
            self._outbox.out.append(Dial(missing))
        return [spec.server for spec in missing]

    def link(self, server: int, incarnation: int) -> None:
        self._links.on_linked(server, incarnation)

    def attach(self, spec: m.ModelSpec) -> None:
        """Send the model description to the lead, once, as soon as all servers are linked."""
        if self.linked and not self._attached:
            self._attached = True
            self._outbox.tell_lead(m.Attach(**self._outbox.identity(), spec=spec))

    def reroute(self, message: m.Routing) -> None:
        if self._routes is None:
            self.lost = self.broken = False
        self._routes = message

    def follow(self) -> m.Routing | None:
        """The routes to follow from now on, if new ones have come and the worker has links to all
        of their servers; else None."""
        message = self._routes
        if message is None:
            return None
        self.broken = self.broken or self.parted is not None
        if message.servers:
            self.lost = self.lost or self._links.lacks(message.servers)
            self._links.want(message.servers)
        if not self.linked:
            return None
        # earlier routes, which the worker could not follow, may have named servers that have left since
        relinked = [server for server, of in self._ended.items() if self._links.wants(server, of)]
        self.relinked = min(relinked, default=None)
        self._routes, self._ended = None, {}
        # every server is linked, so the worker need not wait for the lead's decision about a lost
        # server
        self.parted = None
        self._outbox.routing = message.routing
        return message

    def seed(self, message: m.Routing) -> None:
        """Send the initial parameters, if the lead has chosen this worker to send them."""
        if message.seed:
            holders: dict[int, list[int]] = {}
            for slice_, route in enumerate(message.routes):
                for server in route.holders:
                    holders.setdefault(server, []).append(slice_)
            for server, ids in sorted(holders.items()):
                self._outbox.out.append(SeedSlices(server, tuple(ids), message.routing))

    def lose_link(self, server: int, incarnation: int) -> bool:
        """Note the end of a link. Returns False if a newer link has replaced it, or if the lead has
        already declared the server lost."""
        if not self._links.on_ended(server, incarnation) or server not in self._links:
            return False
        self._ended[server] = self._links.incarnation(server)
        return True

    def on_unreached(self, server: int, incarnation: int, detail: str, now_ns: int) -> None:
        """Tell the lead that a server does not answer, and try again later."""
        if self.again_ns is None:
            self.again_ns = now_ns + _AGAIN_NS
        incarnation = incarnation or self._links.incarnation(server)
        unreachable = m.Unreachable(
            **self._outbox.identity(),
            peer=server_name(server),
            peer_incarnation=incarnation,
            detail=plain(detail),
        )
        self._outbox.tell_lead(unreachable)

    def dial_again(self, now_ns: int) -> None:
        """Connect again to the servers that did not answer, if it is time."""
        if self.again_ns is not None and now_ns >= self.again_ns:
            self.again_ns = None
            absent = self._links.absent
            self.dial(tuple(spec for spec in self._servers if spec.server in absent))

    def wait_for_word(self, server: int, incarnation: int, reason: Reason, now_ns: int) -> None:
        """Wait for the lead to say which server gets the slices of a server whose link has
        ended."""
        if self.parted is None:
            self.parted = Parted(server, incarnation, reason, now_ns + _LAST_WORD_NS)

    def overdue(self, now_ns: int) -> Parted | None:
        """A server about which the lead has not decided in time; None if there is none. Each server
        is returned only once."""
        parted = self.parted
        if parted is None or now_ns < parted.until_ns:
            return None
        self.parted = None
        return parted
