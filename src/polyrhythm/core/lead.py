"""The lead: the site's coordinator. View, routing, sync policy and data plan come together here.

It never sees a tensor. It counts what servers and workers report, asks the policy, and gives the
one word `Fold` that servers act on; it is a machine of its own even where there is one server. What
it keeps has files of its own, each with its rule: `door`, `membership`, `suspicion`, `placing`,
`opening`, `arrivals`, `windows`, `rounds`, `departures`, `course`, `data/sharing`, `tally`.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

from polyrhythm.core import events as ev
from polyrhythm.core.arrivals import Arrivals, Complete
from polyrhythm.core.course import Course
from polyrhythm.core.data.sharing import Sharing
from polyrhythm.core.departures import Departures
from polyrhythm.core.door import Door
from polyrhythm.core.effects import (
    Bind,
    Drop,
    End,
    Note,
    Send,
    server_name,
    server_number,
    worker_name,
    worker_number,
)
from polyrhythm.core.goals import Goals
from polyrhythm.core.machine import Effect, Reason, Waiting
from polyrhythm.core.membership import Member, View
from polyrhythm.core.model import difference, nonsense
from polyrhythm.core.opening import Opening
from polyrhythm.core.placing import Placing
from polyrhythm.core.rounds import Rounds
from polyrhythm.core.suspicion import Suspicion
from polyrhythm.core.sync import policy as sync
from polyrhythm.core.sync.choose import choose_policy
from polyrhythm.core.tally import Tally
from polyrhythm.core.windows import Windows
from polyrhythm.wire import messages as m

_TERM = 1
_UNKNOWN_SERVER = 8
"""Heartbeats after which a server is suspect whose rhythm is not known yet: it is placed, so it runs."""
_OWN = 0
"""The server that the lead runs in."""
_IDLE_ROUNDS = 3
"""So many rounds in which everybody abstains: chunks have been shared again, and it did not help."""
_WORTH_SAYING_NS = 10**9
"""A wait that is longer than this is noted, and noted again after as long."""
_LOOK_EVERY_NS = 250 * 10**6


def _names(names: Iterable[str]) -> str:
    return ", ".join(names)


class LeadMachine:
    def __init__(self, job: m.JobSpec) -> None:
        self.job = job
        self.view = View()
        self._policy = choose_policy(job)
        self._door = Door(job.job)
        self._placing = Placing(job.servers, job.slice_nbytes, job.replicas)
        self._opening = Opening(job.workers, job.start_timeout_s)
        self._arrivals = Arrivals(keeps=self._policy.rounds and job.replicas > 0)
        self._windows = Windows(m.WINDOW)
        self._rounds = Rounds()
        self._course = Course()
        self._goals = Goals(job)
        self._departures = Departures(job.start_timeout_s if job.respawn else 0.0)
        self._suspicion = Suspicion(job.heartbeat_s)
        self._server_suspicion = Suspicion(job.heartbeat_s, _UNKNOWN_SERVER)
        self._silent_servers: set[int] = set()
        """Servers that are silent and cannot be done without."""
        self._sharing = Sharing(job.seed, job.epochs)
        self._tally = Tally()
        self._wake_at_ns: int | None = None
        self._said_ns = 0
        self._moved_ns = 0
        """When a contribution was last complete, or a fold begun."""
        self._empty_handed: set[int] = set()
        """Workers that have had nothing to contribute so far, and of whom that was noted."""
        self._look_ns = 0
        self._ending: Reason | None = None
        self._ended = False
        self._frozen = False
        """Without rounds: servers have been told to fold nothing after this."""
        self._counted = 0
        self._idle = 0
        self._told: tuple[m.MemberSpec, ...] = ()
        """The members as the servers know them."""
        self._fold: m.Fold | None = None
        """What the servers were told last."""
        self._put_off: tuple[frozenset[int], Reason, bool] | None = None
        """A fold that was decided while slices change their primary or are owed."""
        self._out: list[Effect] = []

    # -- the machine ---------------------------------------------------------------------------

    def handle(self, event: Any, now_ns: int) -> Sequence[Effect]:
        self._out = []
        if not self._ended:
            handler = self._HANDLERS.get(type(event))
            if handler is not None:
                handler(self, event, now_ns)
        return self._out

    def wake_at(self) -> int | None:
        if self._ended:
            return None
        wake_ns = self._wake_at_ns if self._rounds.open else self._opening.wake_at()
        other_ns = self._suspicion.wake_at()
        if other_ns is not None and (wake_ns is None or other_ns < wake_ns):
            wake_ns = other_ns
        other_ns = self._server_suspicion.wake_at()
        if other_ns is not None and (wake_ns is None or other_ns < wake_ns):
            wake_ns = other_ns
        other_ns = self._departures.wake_at()
        if other_ns is not None and (wake_ns is None or other_ns < wake_ns):
            wake_ns = other_ns
        return wake_ns

    def why(self) -> Waiting:
        placing, opening = self._placing, self._opening
        if self._ending is not None and not self._rounds.folding:
            present = _names(worker_name(member.worker) for member in self.view.members())
            return Waiting(Reason("ending", {"workers": present}), self._moved_ns)
        if self._rounds.open:
            return self._why_of_failover() or self._why_of_servers() or self._policy.why()
        if placing.spec is not None and not placing.all_placed:
            return Waiting(Reason("placing"), opening.since_ns)
        if placing.seeder is not None and not placing.all_seeded:
            seeding = Reason("seeding", {"worker": worker_name(placing.seeder)})
            return Waiting(seeding, opening.since_ns)
        gathering = Reason("gathering", {"missing": opening.missing(self.view.attached)})
        return Waiting(gathering, opening.since_ns, opening.until_ns)

    def _why_of_failover(self) -> Waiting | None:
        change = self._placing.change
        if change is not None and change.lost:
            late = _names(map(server_name, self._placing.late))
            fields = {"lost": change.lost[-1], "servers": late}
            return Waiting(Reason("failover", fields), change.since_ns)
        if self._arrivals.owed:
            workers, servers = self._arrivals.owing()
            owing = _names(map(worker_name, sorted(workers)))
            fields = {"workers": owing, "servers": _names(map(server_name, sorted(servers)))}
            return Waiting(Reason("resending", fields), self._moved_ns)
        return None

    def _why_of_servers(self) -> Waiting | None:
        """A server owes a fold, or what everybody who is missing has sent to it: then it is the
        server that is waited for, and no worker."""
        holders = self._placing.holders
        if self._rounds.folding:
            late = _names(map(server_name, sorted(self._rounds.late(holders))))
            folding = Reason("folding", {"round": self._rounds.round, "servers": late})
            return Waiting(folding, self._moved_ns)
        if not self._policy.rounds and (full := self._windows.full()) is not None:
            workers, since_ns = full
            return Waiting(Reason("window", self._late_to(workers)), since_ns)
        workers, servers = self._arrivals.late(self._placing.reigns)
        paced = self._policy.why()
        held = _names(map(worker_name, sorted(workers)))
        if not workers or paced.reason.fields.get("missing", held) != held:
            return None
        late = _names(map(server_name, sorted(servers)))
        return Waiting(
            Reason("unreported", {"held": held, "servers": late}), self._moved_ns, paced.until_ns
        )

    def _late_to(self, workers: set[int]) -> dict[str, Any]:
        _, servers = self._arrivals.late(self._placing.reigns, workers)
        held = _names(map(worker_name, sorted(workers)))
        return {"held": held, "servers": _names(map(server_name, sorted(servers)))}

    def check(self) -> None:
        self._sharing.check()
        self._placing.check()
        self._arrivals.check(self._heeds)
        if not self._placing.moving:
            self._rounds.check(self._placing.holders)

    # -- the door ------------------------------------------------------------------------------

    def _on_server_knock(self, event: ev.ServerKnocked, now_ns: int) -> None:
        link, bonjour = event.link, event.bonjour
        fault = self._door.fault(bonjour)
        if fault is not None:
            self._refuse(link, f"{bonjour.name} was refused: {fault}")
            return
        server = self._placing.seat(bonjour.server)
        if server is None:
            taken = bonjour.server in self._placing.addresses
            full = f"{bonjour.name} was refused: the job has its {self.job.servers} server(s)"
            self._refuse(
                link, f"server s{bonjour.server} is in this job already" if taken else full
            )
            return
        self._placing.come(server, bonjour.address)
        incarnation = self._placing.incarnations[server]
        self._out.append(Bind(link, server_name(server), incarnation))
        if bonjour.server < 0:
            admitted = m.Admitted(term=_TERM, server=server, job=self.job, servers=())
            self._out.append(Send(server_name(server), admitted))
        self._note("server-joined", server=server)
        if self._placing.all_seeded:
            self._placing.welcome(now_ns)
            self._send_place()
        elif self._placing.spec is not None:
            self._begin_placing_anew(now_ns)
        if self._placing.gathered:
            for waiting, worker in self._door.open():
                self._admit(waiting, worker, now_ns)

    def _on_worker_knock(self, event: ev.WorkerKnocked, now_ns: int) -> None:
        fault = self._door.fault(event.bonjour)
        if fault is not None:
            self._refuse(event.link, f"{event.bonjour.name} was refused: {fault}")
        elif self._placing.gathered:
            self._admit(event.link, event.bonjour, now_ns)
        else:
            self._door.wait(event.link, event.bonjour)

    def _admit(self, link: str, bonjour: m.WorkerBonjour, now_ns: int) -> None:
        holder = self.view.holder(bonjour.name)
        if holder is not None and holder.incarnation == bonjour.incarnation:
            self._departures.falls_asleep(*holder.key)
            self._remove(holder, "it came back over another link", now_ns)
        elif holder is not None:
            fault = "a worker with this name is in the job; give another with --name"
            self._refuse(link, f"{bonjour.name} was refused: {fault}")
            return
        if self._ending is not None:
            self._refuse(link, f"{bonjour.name} was refused: the job is ending")
            return
        again = self.view.known(bonjour.name)
        member = self.view.admit(bonjour.name, now_ns)
        self._opening.admitted(now_ns)
        self._departures.came(member.worker)
        self._suspicion.expect(member.worker, now_ns)
        self._out.append(Bind(link, worker_name(member.worker), member.incarnation))
        servers = self._placing.specs
        self._tell(member, m.Admitted(**self._identity(member), job=self.job, servers=servers))
        what = "rejoined" if again else "joined"
        self._note(what, worker=member.worker, name=member.name, epoch=self.view.epoch)

    # -- members come and go -------------------------------------------------------------------

    def _on_attach(self, message: m.Attach, now_ns: int) -> None:
        member = self.view.get(message.worker, message.incarnation)
        if member is None:
            return
        if (fault := nonsense(message.spec)) is not None:
            self._refuse_member(member, f"{member.name}'s model cannot be held: {fault}", now_ns)
            return
        if self._placing.spec is None:
            self._place(message.spec)
        elif (fault := difference(self._placing.spec, message.spec)) is not None:
            self._refuse_member(member, f"{member.name}'s model differs: {fault}", now_ns)
            return
        self.view.attach(member)
        if self._placing.all_placed and self._placing.change is None:
            self._route(member)
            if not self._rounds.open:
                self._open_if_ready(now_ns)
            elif not self._rounds.opening:
                self._enter(member, now_ns)

    def _enter(self, member: Member, now_ns: int) -> None:
        member.entered = True
        self._ask(sync.Joined(member.worker), now_ns)

    def _on_enrol(self, message: m.Enrol, now_ns: int) -> None:
        member = self.view.get(message.worker, message.incarnation)
        if member is None:
            return
        if not self._sharing.begun:
            self._note("data", points=message.points, batch=message.batch)
        lease = self._sharing.enrol(member, message.points, self.view)
        if isinstance(lease, str):
            self._refuse_member(member, f"{member.name}'s data set {lease}", now_ns)
        else:
            self._tell(member, lease)

    def _on_leave(self, message: m.Leave, now_ns: int) -> None:
        member = self.view.get(message.worker, message.incarnation)
        if member is None:
            return
        self._remove(member, message.reason or "it was done", now_ns)
        if message.failed and self.job.on_error == "end" and not self._ended:
            fields = {"name": member.name, "detail": message.reason}
            self._finish(Reason("worker-failed", fields), now_ns, failed=True)

    def _on_link_closed(self, event: ev.LinkClosed, now_ns: int) -> None:
        self._door.leave(event.peer)
        server, worker = server_number(event.peer), worker_number(event.peer)
        member = self.view.at(worker) if worker is not None else None
        if server is not None and self._placing.vacate(server):
            self._note("server-left", server=server, reason=event.reason)
        elif server is not None and event.incarnation in (
            0,
            self._placing.incarnations.get(server),
        ):
            self._lose_server(server, "the end of its link", event.reason, now_ns)
        elif member is not None and event.incarnation in (0, member.incarnation):
            self._remove(member, event.reason, now_ns)
        elif worker is not None and self._departures.hung_up(worker, event.incarnation, now_ns):
            self._end_if_deserted(now_ns)

    def _remove(self, member: Member, reason: str, now_ns: int) -> None:
        self.view.remove(member.worker)
        self._suspicion.forget(member.worker)
        self._windows.forget(*member.key)
        self._goals.left(member.worker)
        self._note("left", worker=member.worker, name=member.name, reason=reason)
        if self._placing.lose(member.worker):
            self._send_place()
        if not self._rounds.open:
            self._opening.lost()
            self._open_if_ready(now_ns)
        if member.entered:
            self._departures.leave(member.key)
            owed = self._arrivals.owed
            self._arrivals.excuse(*member.key)
            self._ask(sync.Left(member.worker), now_ns)
            if owed and not self._arrivals.owed:
                self._on_paid(now_ns)
        self._end_if_deserted(now_ns)

    def _end_if_deserted(self, now_ns: int) -> None:
        if len(self.view):
            return
        if self._ending is not None:
            self._finish(self._ending, now_ns, failed=False)
        elif self._rounds.open and self._departures.deserted(now_ns):
            self._finish(Reason("deserted"), now_ns, failed=True)

    # -- servers are lost and found ------------------------------------------------------------

    def _lose_server(self, server: int, how: str, detail: str, now_ns: int) -> None:
        """Its replicas take over, if it has any for everything that it holds."""
        if server not in self._placing.addresses or self._ended:
            return
        self._server_suspicion.forget(server)
        self._silent_servers.discard(server)
        loss = self._placing.would_lose(server)
        if loss is not None and not self.job.replicas:
            reason = Reason("server-died", {"server": server, "detail": detail})
            self._finish(reason, now_ns, failed=True)
            return
        if loss is not None:
            fields = {"server": server, "detail": detail, "slices": loss.slices}
            reason = Reason("slices-lost", {**fields, "mb": loss.nbytes / 1e6})
            self._finish(reason, now_ns, failed=True)
            return
        self._out.append(Drop(server_name(server), f"s{server} is not in the job any more: {how}"))
        anew = self._placing.lose_server(server, now_ns)
        self._note("server-lost", server=server, noticed=how, detail=detail)
        if anew:
            self._begin_placing_anew(now_ns, already=True)
        elif self._placing.spec is not None:
            self._send_place()
            self._say_what_moves(now_ns)

    def _begin_placing_anew(self, now_ns: int, *, already: bool = False) -> None:
        """The servers have changed before all had the parameters: they are seeded anew."""
        if not already:
            self._placing.begin_anew()
        self._send_place()

    def _say_what_moves(self, now_ns: int) -> None:
        change = self._placing.change
        assert change is not None
        promoted = {server_name(server): n for server, n in sorted(change.promoted.items())}
        self._note("rerouting", epoch=self._placing.epoch, promoted=promoted)

    def _on_unreachable(self, message: m.Unreachable, now_ns: int) -> None:
        """Two servers that cannot talk cannot both stay: the lead's own does, or who told. Both
        tell; the second is not in the job any more by then."""
        if message.server not in self._placing.addresses:
            return
        if message.incarnation != self._placing.incarnations.get(message.peer):
            return  # another has its place by now
        lost = message.server if message.peer == _OWN else message.peer
        told = server_name(message.server)
        self._lose_server(lost, f"{told}, which lost its link to it", message.reason, now_ns)

    def _suspect_servers(self, now_ns: int) -> None:
        for server in self._server_suspicion.silent(now_ns):
            pulse = self._server_suspicion.pulse(server)
            silent_s = (now_ns - pulse.heard_ns) / 1e9
            fields = {"server": server, "silent_s": silent_s, "derivation": pulse.derivation()}
            if self._placing.would_lose(server) is None:
                reason = Reason("server-silent", fields)
                self._lose_server(server, "its silence", str(reason), now_ns)
            else:
                self._server_suspicion.forget(server)  # until it beats again
                if server not in self._silent_servers:
                    self._silent_servers.add(server)
                    self._note("server-silent", **fields)

    def _on_caught_up(self, message: m.CaughtUp, now_ns: int) -> None:
        if message.server not in self._placing.addresses:
            return
        slices = self._placing.caught_up(message, now_ns)
        if slices:
            self._note(
                "copied",
                primary=message.server,
                replica=message.peer,
                slices=slices,
                learning=self._placing.learning,
            )
            self._send_place()
            if not self._policy.rounds:
                self._move_on(now_ns)

    def _move_on(self, now_ns: int) -> None:
        """At a fold, or where there are none at any moment: use what servers have learned."""
        if self._ending is None and not self._ended and self._placing.arrive(now_ns):
            self._send_place()
            self._say_what_moves(now_ns)

    def _on_followed(self, now_ns: int) -> None:
        """Every server goes by the new routes: so must workers, and what was under way goes on."""
        change, rows, versions = self._placing.followed()
        if change.promoted or change.lost:
            took_s = (now_ns - change.since_ns) / 1e9
            lost = [server_name(server) for server in change.lost]
            promoted = {server_name(server): n for server, n in sorted(change.promoted.items())}
            counts = zip(self._placing.servers, self._placing.slice_counts(), strict=True)
            slices = {server_name(server): count for server, count in counts}
            self._note("rerouted", lost=lost, promoted=promoted, seconds=took_s, slices=slices)
        for member in self._attached():
            if change.promoted or change.lost or not member.routed:
                self._route(member)
        if change.promoted:
            self._recount(rows, versions, now_ns)
        self._fold_if_put_off(now_ns)
        if not self._rounds.folding:
            self._move_on(now_ns)
        if not self._rounds.open:
            self._open_if_ready(now_ns)
        elif not self._rounds.opening:
            self._enter_early(now_ns)

    def _recount(
        self,
        rows: Mapping[int, tuple[m.Row, ...]],
        versions: Mapping[int, int],
        now_ns: int,
    ) -> None:
        """What has arrived and what is folded, by what the primaries of now say."""
        holders = self._placing.holders
        for complete in self._arrivals.reroute(self._placing.reigns, rows, self._placing.epoch):
            self._count(complete, now_ns)
        for worker, incarnation in self._arrivals.owing_members():
            if self.view.get(worker, incarnation) is None:
                self._arrivals.excuse(worker, incarnation)
        if not self._rounds.folding:
            return
        told = self._rounds.told
        if self._policy.rounds and self._rounds.round > 0:
            told = frozenset(s for s in holders if versions[s] >= self._rounds.round)
        if self._rounds.reroute(holders, told & holders):
            self._after_fold(now_ns)
        elif not self._arrivals.owed:
            self._tell_fold_again()

    def _tell_fold_again(self) -> None:
        """Who is a primary only now, or has more slices than it had, may not have heard it."""
        assert self._fold is not None
        for server in sorted(self._rounds.late(self._placing.holders)):
            self._out.append(Send(server_name(server), self._fold))

    def _fold_if_put_off(self, now_ns: int) -> None:
        if self._placing.moving or self._arrivals.owed or self._ended or self._rounds.folding:
            return
        if self._put_off is not None:
            (release, reason, last), self._put_off = self._put_off, None
            self._begin_fold(release, reason, now_ns, last=last)

    # -- signs of life -------------------------------------------------------------------------

    def _on_alive(self, message: m.Alive, now_ns: int) -> None:
        if self.view.get(message.worker, message.incarnation) is not None:
            self._suspicion.beat(message.worker, now_ns)
        elif message.server in self._placing.addresses:
            if message.server in self._silent_servers:
                self._silent_servers.remove(message.server)
                self._server_suspicion.expect(message.server, now_ns)
            self._server_suspicion.beat(message.server, now_ns)
        self._say_what_is_awaited(now_ns)

    def _evict_the_silent(self, now_ns: int) -> None:
        for worker in self._suspicion.silent(now_ns):
            member = self.view.at(worker)
            if member is None:
                continue
            pulse = self._suspicion.pulse(worker)
            silent_s = (now_ns - pulse.heard_ns) / 1e9
            derivation = pulse.derivation()
            fields = {"worker": worker, "silent_s": silent_s, "derivation": derivation}
            reason = str(Reason("silent", fields))
            self._note("evicted", name=member.name, limit_s=pulse.limit_ns() / 1e9, **fields)
            self._tell(member, m.Evicted(**self._identity(member), reason=reason))
            self._departures.falls_asleep(*member.key)
            self._remove(member, "it was silent for too long", now_ns)

    def _say_what_is_awaited(self, now_ns: int) -> None:
        if now_ns < self._look_ns:
            return
        self._look_ns = now_ns + _LOOK_EVERY_NS
        waiting = self.why()
        since_ns = max(waiting.since_ns, self._said_ns)
        if waiting.reason.code in ("none", "going") or now_ns < since_ns + _WORTH_SAYING_NS:
            return
        self._said_ns = now_ns
        until_ns = waiting.until_ns
        self._note(
            "waiting",
            reason=waiting.reason.code,
            fields=waiting.reason.fields,
            since_s=(now_ns - waiting.since_ns) / 1e9,
            until_s=None if until_ns is None else (until_ns - now_ns) / 1e9,
        )

    def _on_stop_asked(self, event: ev.StopAsked, now_ns: int) -> None:
        self._finish(Reason("stopped"), now_ns, failed=False)

    # -- placing and seeding -------------------------------------------------------------------

    def _place(self, spec: m.ModelSpec) -> None:
        self._placing.place(spec)
        self._send_place()
        slices = self._placing.slice_counts()
        self._note("placed", nbytes=self._placing.nbytes, slices=slices)

    def _send_place(self) -> None:
        placing = self._placing
        assert placing.spec is not None
        place = m.Place(
            term=_TERM,
            view=self.view.epoch,
            routing=placing.epoch,
            spec=placing.spec,
            routes=placing.routes,
            servers=placing.specs,
            members=self._told,
            fresh=not placing.all_seeded,
        )
        self._tell_servers(place)

    def _on_placed(self, message: m.Placed, now_ns: int) -> None:
        known = message.server in self._placing.addresses and message.server != _OWN
        if self.job.replicas and known and message.server not in self._server_suspicion:
            self._server_suspicion.expect(message.server, now_ns)
        if not self._placing.placed(message):
            return
        if self._placing.change is not None:
            self._on_followed(now_ns)
        else:
            for member in self._attached():
                self._route(member)

    def _route(self, member: Member) -> None:
        member.routed = True
        seed = self._placing.seeds(member.worker)
        routing = m.Routing(
            **self._identity(member),
            routes=self._placing.routes,
            seed=seed,
            servers=self._placing.specs,
        )
        self._tell(member, routing)

    def _on_seeded(self, message: m.Seeded, now_ns: int) -> None:
        self._placing.seeded(message)
        self._open_if_ready(now_ns)

    # -- the way of one contribution -----------------------------------------------------------

    def _heeds(self, worker: int, incarnation: int) -> bool:
        """What this one sent counts: it is a member, or not all servers know yet that it left."""
        known = self.view.get(worker, incarnation) is not None
        return known or self._departures.pending(worker, incarnation)

    def _on_trailer(self, message: m.Trailer, now_ns: int) -> None:
        member = self.view.get(message.worker, message.incarnation)
        if member is None and not self._departures.pending(message.worker, message.incarnation):
            return
        self._suspicion.spoke(message.worker, now_ns)
        if member is not None and not 0 < message.weight < math.inf:
            fault = f"{member.name}'s contribution weighs {message.weight}"
            self._refuse_member(member, f"{fault}: it must be a positive number", now_ns)
            return
        if not self._policy.rounds:
            self._windows.sent(message.worker, message.incarnation, message.sequence, now_ns)
        self._count(self._arrivals.trailer(message, self._placing.reigns), now_ns)

    def _on_arrived(self, message: m.Arrived, now_ns: int) -> None:
        if self._heeds(message.worker, message.incarnation):
            if not self._policy.rounds:
                self._rounds.folded_one(message.server)
            owed = self._arrivals.owed
            self._count(self._arrivals.arrived(message, self._placing.reigns), now_ns)
            if owed and not self._arrivals.owed:
                self._on_paid(now_ns)

    def _on_paid(self, now_ns: int) -> None:
        """Everything that was lost with a server is where it belongs, or nobody will send it."""
        if self._rounds.folding and not self._placing.moving:
            self._tell_fold_again()
        self._fold_if_put_off(now_ns)

    def _count(self, complete: Complete | None, now_ns: int) -> None:
        if complete is None:
            return
        self._moved_ns = now_ns
        trailer = complete.trailer
        self._windows.counted(trailer.worker, trailer.incarnation, trailer.sequence)
        if self._policy.rounds:
            self._rounds.arrived(trailer.worker)
        self._tally.count(trailer, self._sharing.commit(trailer), now_ns)
        member = self.view.get(trailer.worker, trailer.incarnation)
        if member is not None:
            lease = trailer.lease
            if member.confirms and not self._arrivals.awaits(*member.key):
                lease, member.confirms = member.confirms, 0
            if self._sharing.moving:
                self._confirm_lease(member, lease, now_ns)
            self._ask(sync.Arrived(trailer.worker, complete.round, trailer), now_ns)
        if not self._policy.rounds:
            self._advance(now_ns)
            self._end_if_idle(now_ns)

    def _confirm_lease(self, member: Member, number: int, now_ns: int) -> None:
        self._send_leases(self._sharing.confirm(member, number, self.view), now_ns)

    def _send_leases(self, leases: list[tuple[Member, m.Leased]], now_ns: int) -> None:
        for member, lease in leases:
            self._tell(member, lease)
            if lease.chunks:
                self._call_back(member, now_ns)

    def _call_back(self, member: Member, now_ns: int) -> None:
        """Without rounds: one who rests has chunks to visit again."""
        if member.resting and not self._policy.rounds:
            member.resting = False
            self._ask(sync.Returned(member.worker), now_ns)

    def _on_abstained(self, message: m.Abstained, now_ns: int) -> None:
        member = self.view.get(message.worker, message.incarnation)
        if member is None:
            return
        member.resting = True
        self._ask(sync.Abstained(message.worker), now_ns)
        if self._arrivals.awaits(*member.key):
            member.confirms = message.lease  # what it visited before is not counted yet
        else:
            self._note_empty_handed(member)
            self._confirm_lease(member, message.lease, now_ns)
        if self._sharing.outdated(member, message.lease):
            self._call_back(member, now_ns)
        self._end_if_idle(now_ns)

    def _end_if_idle(self, now_ns: int) -> None:
        """Without rounds: everybody rests, and neither a chunk nor a contribution is on its way."""
        if self._policy.rounds or self._ending is not None or self._ended or not len(self.view):
            return
        moving = self._sharing.moving or self._rounds.folding or self._departures.any
        busy = moving or self._arrivals.any
        if not busy and self.view.all_rest():
            self._finish(Reason("idle", {"rounds": _IDLE_ROUNDS}), now_ns, failed=True)

    def _note_empty_handed(self, member: Member) -> None:
        new = member.worker not in self._tally.workers and member.worker not in self._empty_handed
        if new and not self._sharing.moving:  # otherwise some may be on their way to it
            self._empty_handed.add(member.worker)
            self._note("empty-handed", worker=member.worker, name=member.name)

    def _on_tick(self, event: ev.Tick, now_ns: int) -> None:
        self._evict_the_silent(now_ns)
        self._suspect_servers(now_ns)
        if self._departures.overdue(now_ns):
            self._end_if_deserted(now_ns)
        if self._rounds.open:
            self._ask(sync.Tick(), now_ns)
        else:
            self._opening.tick(now_ns)
            self._open_if_ready(now_ns)

    # -- rounds --------------------------------------------------------------------------------

    def _attached(self) -> list[Member]:
        return [member for member in self.view.members() if member.attached]

    def _open_if_ready(self, now_ns: int) -> None:
        ready = self._placing.all_seeded and self._opening.due(self.view.attached)
        if self._rounds.open or not ready:
            return
        entering = self._attached()
        for member in entering:
            member.entered = True
            self._policy.on(sync.Joined(member.worker), now_ns)
        self._goals.opened(now_ns)
        self._begin_fold(
            frozenset(member.worker for member in entering),
            Reason("opened", {"round": 1, "members": len(entering)}),
            now_ns,
        )

    def _ask(self, event: sync.PolicyEvent, now_ns: int) -> None:
        if self._ending is not None or self._ended:
            return
        decision = self._policy.on(event, now_ns)
        self._wake_at_ns = decision.wake_at
        if decision.pause:
            self._send_pause()
        if decision.said is not None:
            said = decision.said
            self._note("policy", code=said.code, fields=said.fields, words=str(said))
        if decision.fold:
            self._begin_fold(decision.release, decision.reason, now_ns)
        elif decision.release:
            # without rounds, who passes the gate as it arrives has asked for its parameters already
            asked = sync.NOBODY
            if isinstance(event, sync.Arrived) and not self._policy.rounds:
                asked = frozenset((event.worker,))
            self._send_release(decision.release, asked)

    def _send_pause(self) -> None:
        for member in self.view.members():
            if member.entered:
                self._tell(member, m.Pause(**self._identity(member), round=self._rounds.round + 1))

    def _on_asking(self, message: m.Asking, now_ns: int) -> None:
        if self.view.get(message.worker, message.incarnation) is not None:
            self._ask(sync.Asked(message.worker), now_ns)

    def _begin_fold(
        self, release: frozenset[int], reason: Reason, now_ns: int, *, last: bool = False
    ) -> None:
        if self._policy.rounds and (self._placing.moving or self._arrivals.owed):
            self._put_off = (release, reason, last)
            return
        self._told = members = self.view.specs()
        self._moved_ns = now_ns
        self._rounds.begin_fold(release, reason, members)
        self._departures.told()
        self._frozen = last
        fold = self._fold = m.Fold(
            term=_TERM,
            view=self.view.epoch,
            routing=self._placing.epoch,
            round=self._rounds.round,
            readers=tuple(sorted(self._rounds.readers)) if self._policy.rounds else (),
            members=members,
            last=last,
        )
        for server in sorted(self._placing.holders):
            self._out.append(Send(server_name(server), fold))

    def _on_folded(self, message: m.Folded, now_ns: int) -> None:
        if not self._placing.moving:
            if self._rounds.folded(message, self._placing.holders):
                self._after_fold(now_ns)
        elif not self._policy.rounds:
            self._rounds.heard(message)

    def _after_fold(self, now_ns: int) -> None:
        self._arrivals.folded(self._rounds.round)
        gone = self._departures.confirmed()
        for worker, incarnation in gone:
            self._arrivals.forget(worker, incarnation)
        if self._ending is not None and not self._policy.rounds and not self._frozen:
            # the goal was reached while the view turned
            self._begin_fold(sync.NOBODY, self._ending, now_ns, last=True)
            return
        if self._ending is not None:
            self._send_stop(self._ending, now_ns)
            return
        if self._policy.rounds:
            goal = self._goal(self._rounds.round, self._rounds.reason.code, now_ns)
            if goal is not None:
                self._ending = goal
                self._send_stop(goal, now_ns)
                return
            if (trouble := self._no_way_on()) is not None:
                self._finish(trouble, now_ns, failed=True)
                return
        self._send_leases(self._sharing.share_again(self.view, gone), now_ns)
        self._send_release(self._rounds.release, self._rounds.readers)
        opened = self._rounds.round
        self._ask(sync.Opened(opened), now_ns)
        if opened == 0:
            self._enter_early(now_ns)
        self._end_if_idle(now_ns)
        self._move_on(now_ns)

    def _advance(self, now_ns: int) -> None:
        """Without rounds: as many contributions as there are members are worth one."""
        if self._ending is not None or self._ended:
            return
        self._course.advance(len(self.view))
        goal = self._goal(self._course.round, "on-arrival", now_ns)
        if goal is None and self.job.epochs is not None and not self._sharing.begun:
            if self.job.rounds is None:
                self._finish(Reason("no-batches"), now_ns, failed=True)
        elif goal is not None:
            self._ending = goal
            if not self._rounds.folding:
                self._begin_fold(sync.NOBODY, goal, now_ns, last=True)

    def _enter_early(self, now_ns: int) -> None:
        """Who attached while the first version was on its way is not a first member."""
        for member in self._attached():
            if not member.entered:
                self._enter(member, now_ns)

    def _goal(self, round_: int, reason: str, now_ns: int) -> Reason | None:
        """What was reached with what has just been folded; the journal is told of that."""
        self._goals.folded(round_, self._sharing.passes)
        goal = self._goals.reached(now_ns)
        line = self._tally.close(round_, reason, self._sharing.passes, now_ns, goal is not None)
        if line is not None:
            if reason == "timer":
                line["missing"] = self._rounds.reason.fields["missing"]
            self._note("rounds", **line)
            self._goals.measured(line["objective"])
        return goal or self._goals.reached(now_ns)

    def _no_way_on(self) -> Reason | None:
        """Rounds that can never complete a pass: better an end with a reason than none."""
        if self._rounds.round == 0 or self.job.rounds is not None:
            return None
        before, self._counted = self._counted, self._tally.contributions
        contributed = self._counted > before
        if self.job.epochs is not None and contributed and not self._sharing.begun:
            return Reason("no-batches")
        routine = self._rounds.reason.code == "all-arrived" and not self._sharing.moving
        self._idle = self._idle + 1 if routine and not contributed else 0
        return Reason("idle", {"rounds": self._idle}) if self._idle >= _IDLE_ROUNDS else None

    def _send_release(self, release: frozenset[int], readers: frozenset[int]) -> None:
        for worker in self._rounds.last_first(release):
            member = self.view.at(worker)
            # who came back while the servers folded is unknown to them, and enters at the next fold
            if member is not None and self._rounds.enlists(*member.key):
                member.resting = False
                self._release(member, readers)

    def _release(self, member: Member, readers: frozenset[int], **stop: Any) -> None:
        terms = self._policy.terms(member.worker)
        release = m.Release(
            term=_TERM,
            view=self.view.epoch,
            routing=self._placing.epoch,
            worker=member.worker,
            incarnation=member.incarnation,
            round=self._rounds.round,
            pushed=member.worker in readers,
            steps=terms.steps,
            interval_ns=terms.interval_ns,
            points=terms.points,
            probe=self._rounds.part_of(member.worker) if terms.probe else (0, 0),
            **stop,
        )
        self._tell(member, release)

    def _send_stop(self, goal: Reason, now_ns: int) -> None:
        for member in self.view.members():
            if not self._rounds.enlists(*member.key):
                # the servers do not know it, so it cannot read the final version
                self._refuse_member(member, f"{member.name} came too late: {goal}", now_ns)
                continue
            member.stopped = True
            self._release(member, self._rounds.readers, stop=True, reason=str(goal))

    # -- the end -------------------------------------------------------------------------------

    def _finish(self, reason: Reason, now_ns: int, *, failed: bool) -> None:
        if self._ending is None and self._rounds.open:
            line = self._tally.line(self._at, reason.code, self._sharing.passes, now_ns)
            self._note("rounds", **line)
        stop = m.Stop(term=_TERM, view=self.view.epoch, reason=str(reason), failed=failed)
        for member in self.view.members():
            self._out.append(Send(worker_name(member.worker), stop))
        self._tell_servers(stop)
        for link, _ in self._door.open():
            self._refuse(link, str(reason))
        self._note(
            "ended",
            reason=str(reason),
            failed=failed,
            rounds=self._at,
            folds=self._rounds.folds,
        )
        self._out.append(End(reason, failed))
        self._ended = True

    def _on_report(self, message: m.Report, now_ns: int) -> None:
        member = self.view.get(message.worker, message.incarnation)
        if member is not None:
            metrics = dict(message.metrics)
            self._goals.reported(member.worker, metrics)
            self._note("reported", worker=member.worker, name=member.name, metrics=metrics)

    # -- small words ---------------------------------------------------------------------------

    def _identity(self, member: Member) -> dict[str, Any]:
        return {
            "term": _TERM,
            "view": self.view.epoch,
            "routing": self._placing.epoch,
            "worker": member.worker,
            "incarnation": member.incarnation,
        }

    def _tell(self, member: Member, message: m.Message) -> None:
        self._out.append(Send(worker_name(member.worker), message))

    def _tell_servers(self, message: m.Message) -> None:
        for server in self._placing.servers:
            self._out.append(Send(server_name(server), message))

    def _refuse(self, link: str, reason: str) -> None:
        self._out.append(Send(link, m.Refusal(term=_TERM, reason=reason)))
        self._out.append(Drop(link, reason))
        self._note("refused", reason=reason)

    def _refuse_member(self, member: Member, reason: str, now_ns: int) -> None:
        self._refuse(worker_name(member.worker), reason)
        self._remove(member, reason, now_ns)

    def _note(self, what: str, **fields: Any) -> None:
        self._out.append(Note(what, fields))

    @property
    def _at(self) -> int:
        """How many rounds were folded, or how much that is worth it."""
        return max(0, self._rounds.round) if self._policy.rounds else self._course.round

    _HANDLERS: ClassVar[dict[type, Callable[["LeadMachine", Any, int], None]]] = {
        ev.WorkerKnocked: _on_worker_knock,
        ev.ServerKnocked: _on_server_knock,
        ev.LinkClosed: _on_link_closed,
        ev.StopAsked: _on_stop_asked,
        ev.Tick: _on_tick,
        m.Placed: _on_placed,
        m.Seeded: _on_seeded,
        m.Attach: _on_attach,
        m.Enrol: _on_enrol,
        m.Trailer: _on_trailer,
        m.Arrived: _on_arrived,
        m.Abstained: _on_abstained,
        m.Folded: _on_folded,
        m.Report: _on_report,
        m.Leave: _on_leave,
        m.Asking: _on_asking,
        m.Alive: _on_alive,
        m.Unreachable: _on_unreachable,
        m.CaughtUp: _on_caught_up,
    }
