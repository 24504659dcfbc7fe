"""A server's links to workers and to other servers: accepting links, dialling, and reporting that a
link has ended."""

import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from polyrhythm.core import effects as fx
from polyrhythm.core import events as ev
from polyrhythm.core.liveness import link_timeout_s
from polyrhythm.core.names import LEAD, operator_name, server_name, server_number
from polyrhythm.core.seat import Seat
from polyrhythm.core.senders import called, hello_event
from polyrhythm.core.values import plain
from polyrhythm.errors import LinkEnded, LinkError, Refused
from polyrhythm.io.link import Link, Measure
from polyrhythm.observe.journal import Journal
from polyrhythm.runtime.driver import Driver
from polyrhythm.runtime.net.boundary import fault_of
from polyrhythm.runtime.net.dial import Dialer
from polyrhythm.runtime.net.handshake import introduce, offers, patience
from polyrhythm.runtime.net.link_readers import LinkReaders, Take
from polyrhythm.runtime.net.peers import Peers, hang_up
from polyrhythm.runtime.options import NodeOptions
from polyrhythm.wire import messages as m
from polyrhythm.wire.messages.reasons import refused
from polyrhythm.wire.proof import Hello

_REPORT_EVERY_S = 1.0
_LONGEST_REASON = 200


@dataclass(frozen=True, slots=True)
class LinkHandlers:
    """The functions that a server's links call. `take` is called with every message.
    `needs_thread`: see `LinkReaders`. `measure`: see `Link.measure_with`. `gone` is called with the
    name of a peer whose link has ended."""

    take: Take
    needs_thread: Callable[[Link], bool]
    measure: Measure = lambda *burst: None
    gone: Callable[[str], None] = lambda peer: None


class ServerLinks:
    def __init__(
        self,
        me: m.ServerHello,
        peers: Peers,
        driver: Driver,
        *,
        job: m.JobSpec,
        options: NodeOptions,
        seat: Callable[[], Seat],
        journal: Journal | None,
        handlers: LinkHandlers,
    ) -> None:
        """`me`: this server's hello. `seat`: where the lead runs, as far as this server knows."""
        self._me = me
        self._name = me.name
        self._peers = peers
        self._driver = driver
        self._leads = driver.hosts(LEAD)
        self._seat = seat
        self._beats_s, self._lead_timeout_s = job.heartbeat_s, job.lead_timeout_s
        self._link_timeout_s = link_timeout_s(job.lead_timeout_s)
        self._digest, self._secret = options.digest, options.secret
        self._journal = journal
        self._operators = itertools.count(1)
        self._refused = 0
        self._reported_s = -_REPORT_EVERY_S
        self._dialer: Dialer | None = None
        self._closing = False
        self._gone = handlers.gone
        self._measure = handlers.measure
        self.reading = LinkReaders(
            handlers.take, driver.run, driver.catch_up, self.end_link, handlers.needs_thread
        )

    def to(self, peer: str) -> Link | None:
        """The link to this peer, which may be the lead."""
        return self._peers.get(self._seat().process_of(peer))

    # -- beginnings ----------------------------------------------------------------------------

    def accept_link(self, link: Link, hello: Hello) -> None:
        """Add a link after its handshake. The lead's machine decides about the link if the lead
        runs in this process; otherwise this server's machine decides. Before the decision, the link
        is read only if the lead runs in this process."""
        link.outlast(self._link_timeout_s)
        link.measure_with(self._measure)
        if isinstance(hello, m.OperatorHello):
            link.peer = operator_name(next(self._operators))
        if self._leads:
            self._peers.add(link)
            self._driver.post(LEAD, hello_event(link.peer, hello))
            self.reading.read(link)
        else:
            self._peers.add_unnamed(link)
            self._driver.post(self._name, called(link.peer, hello))

    def bind(self, effect: fx.Bind) -> None:
        """Give a link the name of its peer, as a machine has decided."""
        if effect.link == self._name:
            return
        if not self._leads:
            self._bind_caller(effect)
            return
        self._replace(self._peers.rename(effect.link, effect.peer, effect.incarnation))
        link = self._peers.get(effect.peer)
        if self._journal is not None and link is not None:
            self._journal.note("linked", peer=effect.peer, link=link.kind.name)
        server = server_number(effect.peer)
        if server is not None:
            self._driver.put(self._name, ev.Linked(server, effect.incarnation))

    def _bind_caller(self, effect: fx.Bind) -> None:
        """Begin to read a link whose peer the lead has announced."""
        link, unused = self._peers.name(effect.link, effect.peer, effect.incarnation)
        if link is None:
            return
        if unused is link:
            self.end_link(link, LinkError(f"{link.peer} is linked to {self._name} already"))
            return
        self._replace(unused)
        server = server_number(effect.peer)
        if server is not None:
            self._driver.put(self._name, ev.Linked(server, effect.incarnation))
        self.reading.begin_apart(link)

    def reach_lead(self, dialer: Dialer, address: m.Address) -> None:
        """Connect this server to the server that runs the lead."""
        link = dialer.dial(address, LEAD)
        self._introduce(link, 0)
        self.follow_lead(link, dialer)

    def follow_lead(self, link: Link, dialer: Dialer) -> None:
        """Use `link` as the link to the lead; its handshake is done. `dialer` connects to the other
        servers that the lead names."""
        self._dialer = dialer
        link.peer = self._seat().process_of(LEAD)
        link.outlast(self._link_timeout_s)
        link.measure_with(self._measure)
        self._peers.add(link)
        self._driver.post(self._name, ev.LeadLinked(self._beats_s, self._lead_timeout_s))
        self.reading.begin(link)

    def reach(self, effect: fx.Reach) -> None:
        for spec in effect.servers:
            if spec.server < self._me.server:
                name = f"dial-{server_name(spec.server)}"
                args = (spec, effect.incarnation)
                threading.Thread(target=self._dial, args=args, name=name, daemon=True).start()

    def _dial(self, spec: m.ServerSpec, incarnation: int) -> None:
        """Connect to a server. This runs on a separate thread, because a paused server may take
        long to answer."""
        name = server_name(spec.server)
        assert self._dialer is not None
        try:
            link = self._dialer.dial(spec.address, name)
            self._introduce(link, incarnation)
        except Exception as error:
            fault = error if isinstance(error, Refused) else fault_of(name, error)
            closed = ev.LinkClosed(name, plain(str(fault)), spec.incarnation)
            self._driver.post(self._name, closed)
            return
        link.incarnation = spec.incarnation
        link.outlast(self._link_timeout_s)
        link.measure_with(self._measure)
        replaced = self._peers.add(link)
        if replaced is link:
            hang_up(link)
            return
        self._replace(replaced)
        self._driver.post(self._name, ev.Linked(spec.server, spec.incarnation))
        self.reading.begin(link)

    def _introduce(self, link: Link, incarnation: int) -> None:
        digests = offers(self._digest, link.kind)
        hello = msgspec.structs.replace(self._me, incarnation=incarnation, digests=digests)
        with patience(link):
            introduce(link, hello, self._secret, self._seat())

    # -- ends ----------------------------------------------------------------------------------

    def end_link(self, link: Link, error: Exception) -> None:
        """End a link, and report it to the machines. If the link has not ended already, the peer
        gets the reason."""
        detail = plain(str(error))
        if not isinstance(error, LinkEnded):
            link.send(m.Refusal(reason=refused(f"{self._name}: {detail}")))
        known = self._peers.remove(link)
        hang_up(link)
        if known:
            self._gone(link.peer)
        if self._journal is not None and not self._closing:
            self._journal.note("link-closed", peer=link.peer, detail=detail)
        if known and not self._closing:
            closed = ev.LinkClosed(link.peer, detail, link.incarnation)
            if self._leads:
                self._driver.post(LEAD, closed)
            self._driver.post(self._name, closed)

    def report_refusal(self, detail: str) -> None:
        """Record that an unknown peer was refused. The journal gets at most one such line per
        second, with the number of peers since the last line."""
        self._refused += 1
        now_s = time.monotonic()
        if self._journal is not None and now_s >= self._reported_s + _REPORT_EVERY_S:
            fields = {"links": self._refused, "detail": detail[:_LONGEST_REASON]}
            self._journal.note("turned-away", **fields)
            self._refused, self._reported_s = 0, now_s

    def _replace(self, link: Link | None) -> None:
        """End the old link of a peer that has connected again. This server had not noticed that the
        old link is dead."""
        if link is not None:
            closed = ev.LinkClosed(link.peer, "it came back", link.incarnation)
            self._driver.post(self._name, closed)
            self.reading.forget(link)
            hang_up(link)
            self._gone(link.peer)

    def drop(self, effect: fx.Drop) -> None:
        link = self._peers.get(effect.peer)
        if link is not None:
            unread = self._peers.is_unnamed(link)
            self._peers.remove(link)
            self._gone(link.peer)
            if unread:
                hang_up(link)
            else:  # the thread that reads this link notices its end, and disposes of it
                threading.Thread(target=link.close, name="close", daemon=True).start()

    def stop_reporting(self) -> None:
        """From now on, do not report the end of a link: this server itself is ending."""
        self._closing = True

    def close(self) -> None:
        self._peers.close()
        self.reading.stop()
        self._peers.dispose()
        self.reading.close()
