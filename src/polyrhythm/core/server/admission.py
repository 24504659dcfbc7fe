"""Decides which links a server keeps: links of peers that the lead has announced (`PeerAdmission`),
and a limited number of links before the end of their handshake (`Strangers`). Reports silent links
to the lead (`QuietLinks`)."""

from collections.abc import Iterable

import msgspec

from polyrhythm.core.effects import Bind, Drop, Send
from polyrhythm.core.liveness import silent_link_s
from polyrhythm.core.machine import Effect, Reason
from polyrhythm.core.names import server_name, worker_name
from polyrhythm.wire import messages as m

WAIT_NS = 5 * 10**9
MOST_WAITING = 64
"""The most links of servers that may wait to be announced. For workers the limit is this number or
the number of workers in the job, whichever is larger. Without a limit one member could open any
number of links."""


class _Call(msgspec.Struct, frozen=True):
    peer: str
    incarnation: int
    until_ns: int


class PeerAdmission:
    """Admission to a server that does not run the lead: the server accepts only peers that the lead
    has announced.

    *The lead announces a server with its incarnation in `Place`, and a worker in `Introduced` when
    it admits the worker. The announcement and the peer's hello travel over different links, so a
    peer without announcement may wait for up to five seconds.* Three kinds of peers are refused at
    once: a peer that the lead has replaced by a later incarnation; a server with a lower number,
    because this server connects to lower numbers itself; and a worker without a number or an
    incarnation, because the lead gives both to every worker. *Nothing that a peer sends is read
    before its link is bound.*
    """

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
        """When the first waiting peer must be refused. This is a plain attribute, because the timer
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

    def on_named(self, servers: Iterable[m.ServerSpec]) -> list[Effect]:
        """Accept the servers that the lead has announced. They replace all servers that it
        announced before."""
        self._servers = {server_name(spec.server): spec.incarnation for spec in servers}
        return self._settle_waiting()

    def on_introduced(self, worker: int, incarnation: int) -> list[Effect]:
        """Accept this worker, which the lead has admitted."""
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

    def on_server_hello(
        self, link: str, server: int, incarnation: int, now_ns: int
    ) -> list[Effect]:
        """Handle the hello of a server over `link`."""
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

    def on_worker_hello(
        self, link: str, worker: int, incarnation: int, now_ns: int
    ) -> list[Effect]:
        """Handle the hello of a worker over `link`."""
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

    def on_operator_hello(self, link: str) -> list[Effect]:
        """Refuse the hello of an operator over `link`: only the lead handles requests of
        operators."""
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
        """Bind or refuse the link. Returns None if the peer must wait, because the lead may still
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


MOST = 64
PATIENCE_NS = 10 * 10**9


class Strangers:
    """The links whose handshake is not complete, in two kinds: silent (no hello yet) and unproven
    (a hello but no proof yet). The oldest of each kind come first. The caller numbers the links.

    *There are at most 64 links of each kind; one more closes the oldest of its kind. When file
    descriptors are scarce, the oldest silent link is closed before the next connection is accepted,
    or the oldest unproven one if none is silent, so some descriptors stay free for members. A peer
    has ten seconds for the whole handshake.* A flood of silent connections therefore never closes
    the link of a peer that has sent a hello.
    """

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._silent: dict[int, int] = {}
        """The deadlines of the links whose peers have not sent a hello."""
        self._unproven: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._silent) + len(self._unproven)

    def make_room(self) -> list[int]:
        """The links to close when file descriptors are scarce and a connection waits to be
        accepted."""
        kind = self._silent or self._unproven
        return [self._oldest(kind)] if kind else []

    def on_accepted(self, link: int, now_ns: int) -> list[int]:
        """Add a link that was accepted. Returns the links to close."""
        closing = []
        if len(self._silent) >= self._most:
            closing.append(self._oldest(self._silent))
        self._silent[link] = now_ns + PATIENCE_NS
        return closing

    def on_hello(self, link: int) -> list[int]:
        """Note that the peer has sent its hello, but no proof yet. Returns the links to close."""
        closing = []
        if len(self._unproven) >= self._most:
            closing.append(self._oldest(self._unproven))
        self._unproven[link] = self._silent.pop(link)
        return closing

    def gone(self, link: int) -> None:
        """Forget a link: its handshake is complete, or it has closed."""
        self._silent.pop(link, None)
        self._unproven.pop(link, None)

    def overdue(self, now_ns: int) -> list[int]:
        """Remove and return the links whose deadline has passed."""
        links = {**self._silent, **self._unproven}
        late = [link for link, until_ns in links.items() if until_ns <= now_ns]
        for link in late:
            self.gone(link)
        return late

    def wake_at(self) -> int | None:
        return min((*self._silent.values(), *self._unproven.values()), default=None)

    def _oldest(self, kind: dict[int, int]) -> int:
        link = next(iter(kind))
        del kind[link]
        return link


_LOOKS_MISSED = 3
"""If the server has not checked its links for this many heartbeat intervals, it was paused. Then
silence counts only from the present check."""

Peer = tuple[str, int]
"""The name of a peer, and the incarnation to which the link belongs."""


class QuietLinks:
    """Links over which nothing comes although they have not ended.

    *A process sends a heartbeat over each of its TCP links to servers once per heartbeat interval,
    unless it has other bytes to send. So a link without a byte for longer is silent (`liveness` has
    the limit). The server then reports the peer to the lead, once per heartbeat, until a byte
    comes. A link that carries a large tensor slowly is not silent, because every byte counts.*

    A server cannot know whether the link or the peer is at fault. The lead decides that
    (`core/lead/servers/broken_links.py`), because both ends report to it.
    """

    def __init__(self, heartbeat_s: float) -> None:
        self._limit_ns = round(silent_link_s(heartbeat_s) * 1e9)
        self._pause_ns = round(_LOOKS_MISSED * heartbeat_s * 1e9)
        self._since_ns: dict[Peer, int] = {}
        """Per peer that was quiet at the last check: when that was first noticed."""
        self._looked_ns = 0

    def look(self, quiet: tuple[Peer, ...], now_ns: int) -> None:
        """Record the peers that have sent nothing since the last check. All other peers have sent
        something."""
        paused = now_ns - self._looked_ns > self._pause_ns
        before = {} if paused else self._since_ns
        self._since_ns = {peer: before.get(peer, now_ns) for peer in quiet}
        self._looked_ns = now_ns

    def silent(self, now_ns: int) -> list[tuple[Peer, float]]:
        """The peers whose links are silent, with the duration of the silence in seconds."""
        quiet = [(peer, now_ns - since_ns) for peer, since_ns in self._since_ns.items()]
        return [(peer, quiet_ns / 1e9) for peer, quiet_ns in quiet if quiet_ns >= self._limit_ns]
