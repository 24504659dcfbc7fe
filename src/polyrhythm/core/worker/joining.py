"""How an incarnation of a worker comes into the job, and follows where the slices go.

*It hands in its model when every server is linked, and goes by new routes when all whom they name
are.*
"""

from dataclasses import dataclass

from polyrhythm.core.effects import Arrange, Dial, SeedSlices
from polyrhythm.core.links import Links
from polyrhythm.core.worker.outbox import WorkerOutbox
from polyrhythm.wire import messages as m

_LAST_WORD_NS = 5 * 10**9
"""For the lead to say why a server's link ended, before this worker gives up."""


@dataclass(frozen=True, slots=True)
class Parted:
    """A server whose link ended, why, and until when the lead may say what becomes of it."""

    server: int
    incarnation: int
    reason: str
    until_ns: int


class Joining:
    def __init__(self, post: WorkerOutbox) -> None:
        self._post = post
        self._links = Links()
        """To every server of the job."""
        self._attached = False
        self._routes: m.Routing | None = None
        """Other primaries, not all of which are linked yet."""
        self.routed = False
        """It goes by routes."""
        self.parted: Parted | None = None

    @property
    def linked(self) -> bool:
        """Every server of the job is."""
        return bool(self._links) and self._links.complete

    def admitted(self, message: m.Admitted) -> None:
        self._post.worker, self._post.incarnation = message.worker, message.incarnation
        self._post.heed(message)
        self._links.want(message.servers)

    def dial(self, servers: tuple[m.ServerSpec, ...]) -> list[int]:
        """Ask for links to those that were not asked for: who that is."""
        missing = self._links.dial(servers)
        if missing:
            self._post.do(Dial(missing))
        return [spec.server for spec in missing]

    def link(self, server: int, incarnation: int) -> None:
        self._links.linked(server, incarnation)

    def attach(self, spec: m.ModelSpec) -> None:
        """Once, as soon as all are linked."""
        if self.linked and not self._attached:
            self._attached = True
            self._post.tell_lead(m.Attach(**self._post.identity(), spec=spec))

    def reroute(self, message: m.Routing) -> None:
        self._routes = message

    def follow(self) -> m.Routing | None:
        """The routes to go by from now on, once all are linked."""
        message = self._routes
        if message is None:
            return None
        if message.servers:
            self._links.want(message.servers)
        if not self.linked:
            return None
        self._routes = None
        self.parted = None  # all who are in the job are linked
        self._post.routing = message.routing
        self._post.do(Arrange(message.routes))
        return message

    def seed(self, message: m.Routing) -> None:
        """If it is this worker's parameters that training begins with."""
        if message.seed:
            holders: dict[int, list[int]] = {}
            for slice_, route in enumerate(message.routes):
                for server in route.holders:
                    holders.setdefault(server, []).append(slice_)
            for server, ids in sorted(holders.items()):
                self._post.do(SeedSlices(server, tuple(ids), message.routing))

    def part(self, server: int, incarnation: int) -> bool:
        """A link has ended; False if another is in its place, or the lead has said already that
        the server is gone."""
        ended = self._links.ended(server, incarnation)
        return ended and (not self.routed or server in self._links)

    def wait_for_word(self, server: int, incarnation: int, reason: str, now_ns: int) -> None:
        """Another has its slices, or is about to: the lead will say."""
        if self.parted is None:
            self.parted = Parted(server, incarnation, reason, now_ns + _LAST_WORD_NS)

    def overdue(self, now_ns: int) -> Parted | None:
        """The lead has not said it in time; once."""
        parted = self.parted
        if parted is None or now_ns < parted.until_ns:
            return None
        self.parted = None
        return parted
