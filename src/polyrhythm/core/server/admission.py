"""Servers that link to a server that does not lead: only those that the lead has named come in.

*The lead names a server with its incarnation in `Place`. The order to dial reaches two servers at
different times, so a server that is not named yet waits up to five seconds for the lead's word and is
refused after that. One that the lead has replaced by a later incarnation is refused at once, and so
is one with a lower number, which never calls because this server dials it. Until a server is bound,
nothing that it sends is read.*
"""

from collections.abc import Iterable

from polyrhythm.core.effects import Bind, Drop, Send, server_name
from polyrhythm.core.machine import Effect
from polyrhythm.wire import messages as m

WAIT_NS = 5 * 10**9
MOST_WAITING = 64
"""Links of servers that are not named yet. A member could open any number of them."""


class PeerAdmission:
    def __init__(self, server: int) -> None:
        self._server = server
        self._me = server_name(server)
        self._named: dict[int, int] = {}
        """Per server, the incarnation that the lead has named."""
        self._waiting: dict[str, tuple[int, int, int]] = {}
        """Per link: the server that it says it is, its incarnation, and until when it may wait."""
        self.wake_ns: int | None = None
        """When the first of them has waited long enough. A plain value, because the thread that keeps
        the time asks for it while another thread handles an event."""

    def _look_ahead(self) -> None:
        times_ns = [until_ns for _, _, until_ns in self._waiting.values()]
        self.wake_ns = min(times_ns, default=None)

    def named(self, servers: Iterable[m.ServerSpec]) -> list[Effect]:
        """The lead has named these servers, and no others."""
        self._named = {spec.server: spec.incarnation for spec in servers}
        effects: list[Effect] = []
        for link, (server, incarnation, _) in list(self._waiting.items()):
            if (settled := self._settle(link, server, incarnation)) is not None:
                del self._waiting[link]
                effects += settled
        self._look_ahead()
        return effects

    def call(self, link: str, server: int, incarnation: int, now_ns: int) -> list[Effect]:
        """A server has said hello over `link`."""
        settled = self._settle(link, server, incarnation)
        if settled is not None:
            return settled
        if len(self._waiting) >= MOST_WAITING:
            return self._refuse(link, "too many servers wait to be named by the lead")
        self._waiting[link] = (server, incarnation, now_ns + WAIT_NS)
        self._look_ahead()
        return []

    def hung_up(self, link: str) -> None:
        self._waiting.pop(link, None)
        self._look_ahead()

    def overdue(self, now_ns: int) -> list[Effect]:
        effects: list[Effect] = []
        for link, (server, incarnation, until_ns) in list(self._waiting.items()):
            if until_ns <= now_ns:
                del self._waiting[link]
                effects += self._refuse(link, self._unnamed(server, incarnation))
        self._look_ahead()
        return effects

    def _settle(self, link: str, server: int, incarnation: int) -> list[Effect] | None:
        """What to do with the link; None: the lead may still name the server."""
        if server < 0 or server == self._server:
            return self._refuse(link, "the hello does not have the number of another server")
        if server < self._server:
            return self._refuse(link, f"{self._me} dials {server_name(server)} itself")
        named = self._named.get(server, 0)
        if incarnation == named and named > 0:
            return [Bind(link, server_name(server), incarnation)]
        if incarnation < named:
            return self._refuse(link, self._unnamed(server, incarnation))
        return None

    def _unnamed(self, server: int, incarnation: int) -> str:
        return f"the lead has not named {server_name(server)}, incarnation {incarnation}, to it"

    def _refuse(self, link: str, reason: str) -> list[Effect]:
        return [Send(link, m.Refusal(reason=f"{self._me}: {reason}")), Drop(link, reason)]
