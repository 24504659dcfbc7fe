"""The servers of the job: how they join, apply routes, are drained, become silent and are lost.

*When a server is lost, replicas take over its slices. The job ends only if a slice has no other
copy. A server that is silent for too long counts as lost too. But the job waits for a server that
has the only copy of a slice, or will get it before round 1. A drained server leaves when all of its
slices are on other servers and every worker knows that.* `routing.py` decides where slices are.
This module tells the servers, and writes to the journal.
"""

from collections.abc import Mapping

import msgspec

from polyrhythm.core.effects import Bind, Drop, Send
from polyrhythm.core.kinds import sums_only
from polyrhythm.core.lead.operators import Operators
from polyrhythm.core.lead.outbox import LeadOutbox
from polyrhythm.core.lead.rounds.folds import Rounds
from polyrhythm.core.lead.servers.routing import Change, RoutingTable
from polyrhythm.core.liveness import Suspicion
from polyrhythm.core.machine import Reason
from polyrhythm.core.names import is_loopback, server_name
from polyrhythm.core.placement.division import choose_division
from polyrhythm.core.placement.network import Network
from polyrhythm.core.values import plain
from polyrhythm.wire import messages as m
from polyrhythm.wire.messages.operator import DRAIN
from polyrhythm.wire.messages.reasons import Field

UNKNOWN_FACTOR = 8
"""The limit of silence, in heartbeat intervals, while few heartbeats of a server are known. It is
shorter than for a worker: a server has finished its imports when it joins."""
PATIENCE = 4
"""A factor for the limit of silence of a server that joins a running job: its heartbeats begin when
it has allocated its first slices. *No route changes before that, so the lead must not wait without
end.*"""


class ServersState(msgspec.Struct):
    suspicion: Suspicion
    silent: set[int] = set()
    """The silent servers that have the only copy of a slice."""


class Servers:
    def __init__(
        self,
        state: ServersState,
        job: m.JobSpec,
        routing: RoutingTable,
        network: Network,
        rounds: Rounds,
        outbox: LeadOutbox,
        operators: Operators,
    ) -> None:
        self._job = job
        self._routing = routing
        self._network = network
        self._rounds = rounds
        self._outbox = outbox
        self._operators = operators
        self.suspicion = state.suspicion
        self._silent = state.silent

    # -- servers join --------------------------------------------------------------------------

    def join(self, link: str, hello: m.ServerHello, now_ns: int) -> bool:
        """Admit a server that asks to join. Returns False if it is refused."""
        routing = self._routing
        server = routing.roster.seat(hello.server)
        if server is not None and server >= self._job.servers and routing.slices_stay:
            full = Reason("servers-full", {"name": hello.name, "servers_wanted": self._job.servers})
            self._outbox.refuse(link, full)
            return False
        if server is None:
            self._outbox.refuse(link, Reason("server-taken", {"server": hello.server}))
            return False
        routing.join(server, hello.address)
        self._network.learn(server_name(server), plain(hello.host), hello.address.identity)
        self._outbox.do(Bind(link, server_name(server), routing.roster.incarnations[server]))
        if hello.server < 0:
            seat = self._outbox.seat
            admitted = m.Admitted(
                term=seat.term, server=server, job=self._job, servers=(), seat=seat.server
            )
            self._outbox.do(Send(server_name(server), admitted))
        self._outbox.introduce_all(server)
        noted: dict[str, Field] = {}
        if hello.pid:
            noted = {"pid": hello.pid, "host": plain(hello.host)}
        if routing.all_seeded:
            noted["slices"] = routing.add_server(server, now_ns)
            self.suspicion.expect(server, now_ns, PATIENCE)
        self._outbox.note("server-joined", server=server, **noted)
        if routing.all_seeded:
            self.send_routes()
        # the seeder must send the initial parameters again: not every server had them
        elif routing.spec is not None:
            routing.begin_again()
            self.send_routes()
            self._note_placed(routing.spec)
        return True

    def divide(self, nbytes: int) -> m.Division:
        """Decide the division of the job's model, which has this size. This happens only once."""
        routing = self._routing
        if routing.division is None:
            reachable = any(
                not is_loopback(each.host) for each in routing.roster.addresses.values()
            )
            machines = reachable or len(self._network.hosts) > 1
            routing.division = choose_division(
                self._job, nbytes, machines=machines, overlaps=sums_only(self._job)
            )
        return routing.division

    def place(self, spec: m.ModelSpec) -> None:
        """Route the slices of the first worker's model, which becomes the job's model."""
        self._routing.place(spec)
        self.send_routes()
        self._note_placed(spec)

    def _note_placed(self, spec: m.ModelSpec) -> None:
        """Write to the journal which servers hold the initial parameters. They are placed again if
        a server joins or is lost before round 1."""
        servers = range(1 + max(self._routing.roster.servers))
        slices = [self._routing.slice_count(server) for server in servers]
        options = spec.optimizer.groups[0] if spec.optimizer.groups else {}
        self._outbox.note(
            "placed",
            nbytes=self._routing.nbytes,
            slices=slices,
            slice_nbytes=self._routing.largest,
            held=_by_name(self._routing.held(self._routing.routes)),
            optimizer=spec.optimizer.name,
            rate=options.get("lr"),
            momentum=options.get("momentum"),
        )

    def send_routes(self) -> None:
        self._outbox.place(self._rounds.members)

    # -- servers apply routes ------------------------------------------------------------------

    def on_placed(self, message: m.Placed, now_ns: int) -> bool:
        """Note that a server has allocated its slices, or applies new routes. Returns True if all
        servers have done so now."""
        known = (
            message.server in self._routing.roster.addresses
            and message.server != self._outbox.seat.server
        )
        if known and message.server not in self.suspicion:
            self.suspicion.expect(message.server, now_ns)
        return self._routing.on_placed(message)

    def on_caught_up(self, message: m.CaughtUp, now_ns: int) -> bool:
        """Note that a learner has caught up with its primary. Returns False if the message is
        outdated."""
        if message.server not in self._routing.roster.addresses:
            return False
        slices = self._routing.on_caught_up(message, now_ns)
        if not slices:
            return False
        self._outbox.note(
            "copied",
            primary=message.server,
            replica=message.peer,
            slices=slices,
            learning=self._routing.learning,
        )
        self.send_routes()
        return True

    def advance(
        self, now_ns: int, *, promotes: bool = True, busy: frozenset[int] = frozenset()
    ) -> bool:
        """Let slices take their next steps towards the goal, and let drained servers leave, except
        those in `busy`. `promotes`: slices may change their primary now. Returns True if some do."""
        routing = self._routing
        if routing.advance(now_ns, promotes=promotes):
            self.send_routes()
            if routing.moving:
                self._note_rerouting()
        for server in routing.drained():
            if routing.change is None and server not in busy:
                routing.leave(server, now_ns)
                self.send_routes()
        return routing.moving

    def on_followed(
        self, now_ns: int
    ) -> tuple[Change, Mapping[int, tuple[m.Row, ...]], Mapping[int, int]]:
        """Note that every server applies the new routes. Returns the change, and for each server
        its rows of statistics and its version."""
        routing = self._routing
        change, rows, versions = routing.on_followed()
        if change.promoted or change.lost:
            self._outbox.note(
                "rerouted",
                lost=[server_name(server) for server in change.lost],
                promoted=_by_name(change.promoted),
                seconds=(now_ns - change.since_ns) / 1e9,
                slices=_by_name(
                    dict(zip(routing.roster.servers, routing.slice_counts(), strict=True))
                ),
                held=_by_name(routing.held(routing.routes)),
                learning=routing.learning,
            )
        return change, rows, versions

    def _note_rerouting(self) -> None:
        change = self._routing.change
        assert change is not None
        promoted = _by_name(change.promoted)
        self._outbox.note("rerouting", epoch=self._routing.epoch, promoted=promoted)

    # -- servers are drained -------------------------------------------------------------------

    @property
    def slices_stay(self) -> bool:
        return self._routing.slices_stay

    def drain(self, server: int, by: str, now_ns: int) -> Reason | None:
        """Move the slices of this server to the others, and then let it leave. `by`: the operator
        that requests this; empty if the server requests it itself. A server that requests it after
        all servers have joined, but before round 1, leaves in round 1. Returns why that is not
        possible; None if it is."""
        routing = self._routing
        if routing.roster.has_left(server):
            # this is a second request; `dismiss` answers both when the change is complete
            if routing.change is None or server not in routing.change.left:
                self._operators.done(DRAIN, _drained(server), server=server)
            return None
        if server not in routing.roster.addresses:
            return Reason(
                "drain-unknown", {"server": server, "servers": list(routing.roster.servers)}
            )
        if server == self._outbox.seat.server:
            return Reason("drain-lead", {"server": server})
        if routing.slices_stay:
            return Reason("slices-stay", {"kind": self._job.kind, "sync": self._job.sync})
        if not routing.all_seeded and (by or not routing.roster.gathered):
            return Reason("drain-early", {"server": server})
        if server in routing.roster.draining:
            return None
        self._outbox.note("draining", server=server, by=by, slices=routing.slice_count(server))
        if routing.drain(server, now_ns):
            self.send_routes()
        return None

    def dismiss(self, server: int) -> None:
        """Tell a drained server to end: the other servers and the workers continue without it."""
        self.suspicion.forget(server)
        self._silent.discard(server)
        self._network.forget(server_name(server))
        self._outbox.stop_server(server, _drained(server))
        self._outbox.note("drained", server=server, left=len(self._routing.roster.addresses))
        self._operators.done(DRAIN, _drained(server), server=server)

    # -- servers are lost ----------------------------------------------------------------------

    def lose(self, server: int, noticed: Reason, now_ns: int) -> Reason | None:
        """Let replicas take over from this server. `noticed`: how the loss was noticed. Returns why
        the job cannot continue if a slice has no other copy; else None."""
        routing = self._routing
        if server not in routing.roster.addresses:
            return None
        self.suspicion.forget(server)
        self._silent.discard(server)
        loss = routing.lost_with(server)
        if loss is not None and not self._job.replicas:
            return Reason("server-died", {"server": server}).because(noticed)
        if loss is not None:
            fields = {"server": server, "slices": loss.slices, "mb": loss.nbytes / 1e6}
            return Reason("slices-lost", fields).because(noticed)
        self._network.forget(server_name(server))
        removed = Reason("server-removed", {"server": server}).because(noticed)
        self._outbox.do(Drop(server_name(server), removed))
        # none of its slices is lost, so the server was drained and has ended before it was told to
        died = Reason("drained-by-death", {"server": server}).because(noticed)
        self._operators.done(DRAIN, died, server=server)
        seeds_again = routing.lose_server(server, now_ns)
        if seeds_again and routing.spec is not None:
            self._note_placed(routing.spec)
        self._outbox.note(
            "server-lost",
            server=server,
            **noticed.noted(),
            left=len(routing.roster.addresses),
            servers=self._job.servers,
        )
        if routing.spec is not None:
            self.send_routes()
            if not seeds_again:
                self._note_rerouting()
        return None

    def on_link_ended(
        self, server: int, incarnation: int, detail: str, now_ns: int
    ) -> Reason | None:
        """Handle the end of a server's link. Returns why the job cannot continue; None if it
        can."""
        if self._routing.roster.vacate(server):
            self._outbox.note("server-left", server=server, **_link_ended(detail).noted())
        elif incarnation in (0, self._routing.roster.incarnations.get(server)):
            return self.lose(server, _link_ended(detail), now_ns)
        return None

    def on_unreachable(
        self, server: int, peer: int, incarnation: int, detail: str, now_ns: int
    ) -> Reason | None:
        """Handle the report of a server that its link to the server `peer` has ended. One of the
        two must leave: `peer`, unless the lead runs in it. Returns why the job cannot continue;
        None if it can."""
        if server not in self._routing.roster.addresses:
            return None
        if incarnation != self._routing.roster.incarnations.get(peer):
            return None  # the report is about an earlier server with this number
        lost = server if peer == self._outbox.seat.server else peer
        told = server if lost == peer else peer
        fields: dict[str, Field] = {"by": told, "detail": plain(detail)}
        return self.lose(lost, Reason("unreachable", fields), now_ns)

    def present(self, server: int, incarnation: int | None = None) -> bool:
        """Whether this server, with this incarnation if one is given, is part of the job."""
        known = self._routing.roster.incarnations.get(server)
        return server in self._routing.roster.addresses and incarnation in (None, known)

    # -- signs of life -------------------------------------------------------------------------

    def beat(self, server: int, now_ns: int) -> None:
        if server not in self._routing.roster.addresses:
            return
        if server in self._silent:
            self._silent.remove(server)
            self._outbox.note("server-heard", server=server)
            self.suspicion.expect(server, now_ns)
        self.suspicion.beat(server, now_ns)

    def heard_ns(self, server: int) -> int:
        """When the lead last heard from this server; 0 if the lead does not watch its
        heartbeats."""
        return self.suspicion.pulse(server).heard_ns if server in self.suspicion else 0

    def suspect(self, now_ns: int) -> None:
        for server in self.suspicion.silent(now_ns):
            pulse = self.suspicion.pulse(server)
            fields = {"server": server, **pulse.silence(now_ns)}
            if self._routing.spares(server):
                self.lose(server, Reason("server-silent", fields), now_ns)
            else:
                # Forget the gaps between earlier heartbeats of this server. Its next heartbeat starts a
                # new measurement.
                self.suspicion.forget(server)
                if server not in self._silent:
                    self._silent.add(server)
                    self._outbox.note("server-silent", **fields)


def _drained(server: int) -> Reason:
    return Reason("drained", {"server": server})


def _link_ended(detail: str) -> Reason:
    return Reason("link-ended", {"detail": detail})


def _by_name(counts: Mapping[int, int]) -> dict[str, int]:
    return {server_name(server): count for server, count in sorted(counts.items())}
