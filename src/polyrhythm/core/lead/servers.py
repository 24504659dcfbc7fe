"""The lead and its servers: who comes, who is lost, who is silent, and the routes that they follow.

*A server that is gone is replaced by the replicas of what it holds; the job ends only if there are
none. A server that is silent is lost too, unless it cannot be done without: then it is waited for.*
What is where is `placing`'s to know; here servers are told of it, and the journal.
"""

from collections.abc import Mapping

from polyrhythm.core.effects import Bind, Drop, Send, server_name
from polyrhythm.core.lead.outbox import TERM, LeadOutbox
from polyrhythm.core.lead.rounds import Rounds
from polyrhythm.core.lead.routing import Change, Routing
from polyrhythm.core.liveness import Suspicion
from polyrhythm.core.machine import Reason
from polyrhythm.core.peers import SEAT
from polyrhythm.core.text import plain
from polyrhythm.wire import messages as m

_UNKNOWN = 8
"""Heartbeats after which a server is suspect whose rhythm is not known yet: it is placed, so it runs."""


class Servers:
    def __init__(
        self, job: m.JobSpec, placing: Routing, rounds: Rounds, dispatch: LeadOutbox
    ) -> None:
        self._job = job
        self._placing = placing
        self._rounds = rounds
        self._dispatch = dispatch
        self.suspicion = Suspicion(job.heartbeat_s, _UNKNOWN)
        self._silent: set[int] = set()
        """Servers that are silent and cannot be done without."""

    # -- servers come --------------------------------------------------------------------------

    def come(self, link: str, hello: m.ServerHello, now_ns: int) -> bool:
        """One of this job knocks; True if there is a seat for it."""
        placing = self._placing
        server = placing.seat(hello.server)
        if server is None:
            taken = hello.server in placing.addresses
            full = f"{hello.name} was refused: the job has its {self._job.servers} server(s)"
            self._dispatch.refuse(
                link, f"server s{hello.server} is in this job already" if taken else full
            )
            return False
        placing.come(server, hello.address)
        self._dispatch.do(Bind(link, server_name(server), placing.incarnations[server]))
        if hello.server < 0:
            admitted = m.Admitted(term=TERM, server=server, job=self._job, servers=())
            self._dispatch.do(Send(server_name(server), admitted))
        self._dispatch.introduce_all(server)
        self._dispatch.note("server-joined", server=server)
        if placing.all_seeded:
            placing.welcome(now_ns)
            self.tell_routes()
        elif placing.spec is not None:  # not all had the parameters: they are seeded anew
            placing.begin_anew()
            self.tell_routes()
        return True

    def place(self, spec: m.ModelSpec) -> None:
        """The first worker's model is the job's."""
        self._placing.place(spec)
        self.tell_routes()
        slices = self._placing.slice_counts()
        options = spec.optimizer.groups[0] if spec.optimizer.groups else {}
        self._dispatch.note(
            "placed",
            nbytes=self._placing.nbytes,
            slices=slices,
            optimizer=spec.optimizer.name,
            rate=options.get("lr"),
            momentum=options.get("momentum"),
        )

    def tell_routes(self) -> None:
        self._dispatch.place(self._rounds.members)

    # -- servers follow ------------------------------------------------------------------------

    def placed(self, message: m.Placed, now_ns: int) -> bool:
        """A server has made room, or follows new routes; True if that was the last one."""
        known = message.server in self._placing.addresses and message.server != SEAT.server
        if self._job.replicas and known and message.server not in self.suspicion:
            self.suspicion.expect(message.server, now_ns)
        return self._placing.placed(message)

    def caught_up(self, message: m.CaughtUp, now_ns: int) -> bool:
        """A learner has what its primary has; True if that was asked for."""
        if message.server not in self._placing.addresses:
            return False
        slices = self._placing.caught_up(message, now_ns)
        if not slices:
            return False
        self._dispatch.note(
            "copied",
            primary=message.server,
            replica=message.peer,
            slices=slices,
            learning=self._placing.learning,
        )
        self.tell_routes()
        return True

    def move_on(self, now_ns: int) -> None:
        """At a fold, or where there are none at any moment: use what servers have learned."""
        if self._placing.arrive(now_ns):
            self.tell_routes()
            self._note_rerouting()

    def followed(
        self, now_ns: int
    ) -> tuple[Change, Mapping[int, tuple[m.Row, ...]], Mapping[int, int]]:
        """Every server goes by the new routes: what changed, and per server its rows and version."""
        placing = self._placing
        change, rows, versions = placing.followed()
        if change.promoted or change.lost:
            self._dispatch.note(
                "rerouted",
                lost=[server_name(server) for server in change.lost],
                promoted=_named(change.promoted),
                seconds=(now_ns - change.since_ns) / 1e9,
                slices=_named(dict(zip(placing.servers, placing.slice_counts(), strict=True))),
            )
        return change, rows, versions

    def _note_rerouting(self) -> None:
        change = self._placing.change
        assert change is not None
        promoted = _named(change.promoted)
        self._dispatch.note("rerouting", epoch=self._placing.epoch, promoted=promoted)

    # -- servers are lost ----------------------------------------------------------------------

    def lose(self, server: int, how: str, detail: str, now_ns: int) -> Reason | None:
        """Its replicas take over, if it has any for everything that it holds. Otherwise: why the job
        cannot go on."""
        placing = self._placing
        if server not in placing.addresses:
            return None
        self.suspicion.forget(server)
        self._silent.discard(server)
        loss = placing.would_lose(server)
        if loss is not None and not self._job.replicas:
            return Reason("server-died", {"server": server, "detail": detail})
        if loss is not None:
            fields = {"server": server, "detail": detail, "slices": loss.slices}
            return Reason("slices-lost", {**fields, "mb": loss.nbytes / 1e6})
        gone = f"s{server} is not in the job any more: {how}"
        self._dispatch.do(Drop(server_name(server), gone))
        anew = placing.lose_server(server, now_ns)
        self._dispatch.note(
            "server-lost",
            server=server,
            noticed=how,
            detail=detail,
            left=len(placing.addresses),
            servers=self._job.servers,
        )
        if placing.spec is not None:
            self.tell_routes()
            if not anew:
                self._note_rerouting()
        return None

    def link_ended(self, server: int, incarnation: int, reason: str, now_ns: int) -> Reason | None:
        """Why the job cannot go on without it, if so."""
        if self._placing.vacate(server):
            self._dispatch.note("server-left", server=server, reason=reason)
        elif incarnation in (0, self._placing.incarnations.get(server)):
            return self.lose(server, "the end of its link", reason, now_ns)
        return None

    def unreachable(self, message: m.Unreachable, now_ns: int) -> Reason | None:
        """Two servers that cannot talk cannot both stay: the lead's own does, or who told. Both
        tell; the second is not in the job any more by then."""
        if message.server not in self._placing.addresses:
            return None
        if message.incarnation != self._placing.incarnations.get(message.peer):
            return None  # another has its place by now
        lost = message.server if message.peer == SEAT.server else message.peer
        told = server_name(message.server)
        how = f"{told}, which lost its link to it"
        return self.lose(lost, how, plain(message.reason), now_ns)

    # -- signs of life -------------------------------------------------------------------------

    def beat(self, server: int, now_ns: int) -> None:
        if server not in self._placing.addresses:
            return
        if server in self._silent:
            self._silent.remove(server)
            self.suspicion.expect(server, now_ns)
        self.suspicion.beat(server, now_ns)

    def suspect(self, now_ns: int) -> None:
        for server in self.suspicion.silent(now_ns):
            pulse = self.suspicion.pulse(server)
            silent_s = (now_ns - pulse.heard_ns) / 1e9
            fields = {"server": server, "silent_s": silent_s, "derivation": pulse.derivation()}
            if self._placing.would_lose(server) is None:
                self.lose(server, "its silence", str(Reason("server-silent", fields)), now_ns)
            else:
                self.suspicion.forget(server)  # until it beats again
                if server not in self._silent:
                    self._silent.add(server)
                    self._dispatch.note("server-silent", **fields)


def _named(counts: Mapping[int, int]) -> dict[str, int]:
    return {server_name(server): count for server, count in sorted(counts.items())}
