"""Admission to a server that does not run the lead: it accepts only peers that the lead has
announced.

*The lead announces a server with its incarnation in `Place`, and a worker in `Introduced` when it
admits the worker. The announcement and the hello of the peer travel over different links, so a peer
that is not announced yet waits for up to five seconds before it is refused. These peers are refused
at once: a peer that the lead has replaced by a later incarnation; a server with a lower number,
because this server itself dials the servers with lower numbers; and a worker without a number or an
incarnation, because the lead gives both to every worker. Nothing that a peer sends is read before
its link is bound.*
"""

from collections.abc import Iterable
from dataclasses import dataclass

from polyrhythm.core.effects import Bind, Drop, Send
from polyrhythm.core.machine import Effect, Reason
from polyrhythm.core.names import server_name, worker_name
from polyrhythm.wire import messages as m

WAIT_NS = 5 * 10**9
MOST_WAITING = 64
"""The most links of servers that may wait to be announced. For workers the limit is this number or
the number of workers in the job, whichever is larger. Without a limit one member could open any
number of links."""


@dataclass(frozen=True, slots=True)
class _Call:
    peer: str
    incarnation: int
    until_ns: int


class PeerAdmission:
    def __init__(self, server: int, workers: int = 0) -> None:
        """`workers`: the number of workers in the job. They may all connect at once."""
        self._server = server
        self._most_workers = max(MOST_WAITING, workers)
        self._servers: dict[str, int] = {}
        """Per server, the incarnation that the lead has announced."""
        self._workers: dict[str, int] = {}
        """Per worker, the last incarnation that the lead has admitted."""
        self._calling_servers: dict[str, _Call] = {}
        """By link, the servers that wait to be announced."""
        self._calling_workers: dict[str, _Call] = {}
        self.wake_ns: int | None = None
        """When the first waiting peer is refused. This is a plain attribute, because the timer
        thread reads it while another thread handles an event."""

    @property
    def _queues(self) -> tuple[tuple[dict[str, _Call], dict[str, int]], ...]:
        """For servers and for workers: the waiting links, and the incarnations that the lead has
        announced."""
        return (self._calling_servers, self._servers), (self._calling_workers, self._workers)

    def _look_ahead(self) -> None:
        times_ns = [call.until_ns for waiting, _ in self._queues for call in waiting.values()]
        self.wake_ns = min(times_ns, default=None)

    # -- messages of the lead ------------------------------------------------------------------

    def named(self, servers: Iterable[m.ServerSpec]) -> list[Effect]:
        """The lead has announced these servers. They replace all servers that it announced
        before."""
        self._servers = {server_name(spec.server): spec.incarnation for spec in servers}
        return self._settle_waiting()

    def introduced(self, worker: int, incarnation: int) -> list[Effect]:
        """The lead has admitted this worker."""
        peer = worker_name(worker)
        self._workers[peer] = max(incarnation, self._workers.get(peer, 0))
        return self._settle_waiting()

    def admitted(self, worker: int) -> int:
        """The last incarnation of this worker that the lead has admitted."""
        return self._workers.get(worker_name(worker), 0)

    def _settle_waiting(self) -> list[Effect]:
        effects: list[Effect] = []
        for waiting, named in self._queues:
            for link, call in list(waiting.items()):
                settled = self._settle(link, call.peer, call.incarnation, named)
                if settled is not None:
                    del waiting[link]
                    effects += settled
        self._look_ahead()
        return effects

    # -- peers ---------------------------------------------------------------------------------

    def call(self, link: str, server: int, incarnation: int, now_ns: int) -> list[Effect]:
        """A server has sent a hello over `link`."""
        if server < 0 or server == self._server:
            return self._refuse(link, Reason("not-a-server"))
        if server < self._server:
            return self._refuse(link, Reason("dials-itself", {"server": server}))
        peer = server_name(server)
        settled = self._settle(link, peer, incarnation, self._servers)
        if settled is not None:
            return settled
        if len(self._calling_servers) >= MOST_WAITING:
            return self._refuse(link, Reason("too-many-servers-wait"))
        self._calling_servers[link] = _Call(peer, incarnation, now_ns + WAIT_NS)
        self._look_ahead()
        return []

    def call_worker(self, link: str, worker: int, incarnation: int, now_ns: int) -> list[Effect]:
        """A worker has sent a hello over `link`."""
        if worker < 0 or incarnation <= 0:
            return self._refuse(link, Reason("not-a-worker"))
        peer = worker_name(worker)
        settled = self._settle(link, peer, incarnation, self._workers)
        if settled is not None:
            return settled
        if len(self._calling_workers) >= self._most_workers:
            return self._refuse(link, Reason("too-many-workers-wait"))
        self._calling_workers[link] = _Call(peer, incarnation, now_ns + WAIT_NS)
        self._look_ahead()
        return []

    def call_operator(self, link: str) -> list[Effect]:
        """An operator has sent a hello over `link`. It is refused: only the lead handles requests
        of operators."""
        return self._refuse(link, Reason("not-the-lead"))

    def hung_up(self, link: str) -> None:
        for waiting, _ in self._queues:
            waiting.pop(link, None)
        self._look_ahead()

    def overdue(self, now_ns: int) -> list[Effect]:
        effects: list[Effect] = []
        if self.wake_ns is None or now_ns < self.wake_ns:
            return effects
        for waiting, _ in self._queues:
            for link, call in list(waiting.items()):
                if call.until_ns <= now_ns:
                    del waiting[link]
                    effects += self._refuse(link, _unnamed(call.peer, call.incarnation))
        self._look_ahead()
        return effects

    # -- decisions -----------------------------------------------------------------------------

    def _settle(
        self, link: str, peer: str, incarnation: int, known: dict[str, int]
    ) -> list[Effect] | None:
        """Bind or refuse the link. Returns None if the peer may wait, because the lead may still
        announce it."""
        named = known.get(peer, 0)
        if incarnation == named and named > 0:
            return [Bind(link, peer, incarnation)]
        if incarnation < named:
            return self._refuse(link, _unnamed(peer, incarnation))
        return None

    def _refuse(self, link: str, fault: Reason) -> list[Effect]:
        reason = Reason(fault.code, {"by": self._server, **fault.fields})
        return [Send(link, m.Refusal(reason=reason)), Drop(link, reason)]


def _unnamed(peer: str, incarnation: int) -> Reason:
    return Reason("not-named", {"peer": peer, "incarnation": incarnation})
