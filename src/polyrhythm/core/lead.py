"""The lead: the site's coordinator. View, routing, sync policy and data plan come together here.

It never sees a tensor. It counts what servers and workers report, asks the policy, and gives the
one word `Fold` that servers act on; it is a machine of its own even where there is one server.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from polyrhythm.core import events as ev
from polyrhythm.core.data.plan import Plan
from polyrhythm.core.effects import Bind, Drop, End, Note, Send, server_name, worker_name
from polyrhythm.core.machine import Effect, Reason, Waiting
from polyrhythm.core.membership import Member, View
from polyrhythm.core.model import difference
from polyrhythm.core.placement.ring import Ring
from polyrhythm.core.placement.slices import lay_out
from polyrhythm.core.sync import policy as sync
from polyrhythm.core.sync.choose import choose_policy
from polyrhythm.core.tally import Tally
from polyrhythm.errors import InvariantBroken
from polyrhythm.wire import messages as m

_TERM = 1


@dataclass(slots=True)
class _Coming:
    """One contribution on its way: which servers reported it, and its trailer."""

    servers: set[int] = field(default_factory=set)
    trailer: m.Trailer | None = None
    round: int = 0


class LeadMachine:
    def __init__(self, job: m.JobSpec) -> None:
        self.job = job
        self.view = View()
        self._policy = choose_policy(job.sync, job.timer, job.kind)
        self._plan: Plan | None = None
        self._plan_stale = False
        self._addresses: dict[int, m.Address] = {}
        self._knocks: list[tuple[str, m.WorkerBonjour]] = []
        self._spec: m.ModelSpec | None = None
        self._routes: tuple[m.Route, ...] = ()
        self._routing_epoch = 0
        self._holders: frozenset[int] = frozenset()
        self._placed: set[int] = set()
        self._seeder: int | None = None
        self._seeded: set[int] = set()
        self._folds: dict[int, int] = {}
        self._coming: dict[tuple[int, int], _Coming] = {}
        self._tally = Tally()
        self._round = -1
        self._folding: set[int] | None = None
        self._release: frozenset[int] = frozenset()
        self._enlisted: frozenset[tuple[int, int]] = frozenset()
        self._readers: frozenset[int] = frozenset()
        self._reason = Reason("none")
        self._start_at_ns: int | None = None
        self._overdue = False
        self._wake_at_ns: int | None = None
        self._round_since_ns = 0
        self._ending: Reason | None = None
        self._ended = False
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
        if self._round < 0:
            return None if self._overdue else self._start_at_ns
        return self._wake_at_ns

    def why(self) -> Waiting:
        since_ns = self._round_since_ns
        if self._round >= 0:
            return self._policy.why()
        if self._seeder is not None and self._seeded < self._holders:
            return Waiting(Reason("seeding", {"worker": worker_name(self._seeder)}), since_ns)
        missing = self.job.workers - self._attached()
        return Waiting(Reason("gathering", {"missing": missing}), since_ns, self._start_at_ns)

    def check(self) -> None:
        if self._plan is not None:
            self._plan.check()
        for worker, _ in self._coming:
            if worker not in self.view:
                raise InvariantBroken(f"w{worker} left, but its contribution is still awaited")
        if self._folding is not None and not self._folding <= self._holders:
            raise InvariantBroken("a server folds that holds no slice")

    # -- servers -------------------------------------------------------------------------------

    def _on_worker_knock(self, event: ev.WorkerKnocked, now_ns: int) -> None:
        if self._stranger_refused(event.link, event.bonjour):
            return
        if len(self._addresses) < self.job.servers:
            self._knocks.append((event.link, event.bonjour))
        else:
            self._admit(event.link, event.bonjour, now_ns)

    def _stranger_refused(self, link: str, bonjour: m.WorkerBonjour | m.ServerBonjour) -> bool:
        if bonjour.protocol != m.PROTOCOL:
            fault = f"it speaks protocol {bonjour.protocol}, this job speaks {m.PROTOCOL}"
        elif bonjour.job != self.job.job:
            fault = f"it belongs to job {bonjour.job!r}, this is job {self.job.job!r}"
        else:
            return False
        self._refuse(link, f"{bonjour.name} was refused: {fault}")
        return True

    def _on_server_knock(self, event: ev.ServerKnocked, now_ns: int) -> None:
        if not self._stranger_refused(event.link, event.bonjour):
            self._take_server(event.link, event.bonjour, now_ns)

    def _take_server(self, link: str, bonjour: m.ServerBonjour, now_ns: int) -> None:
        if bonjour.server in self._addresses:
            self._refuse(link, f"server s{bonjour.server} is in this job already")
            return
        self._out.append(Bind(link, server_name(bonjour.server)))
        self._addresses[bonjour.server] = bonjour.address
        self._note("server-joined", server=bonjour.server)
        if len(self._addresses) == self.job.servers:
            knocks, self._knocks = self._knocks, []
            for waiting, worker in knocks:
                self._admit(waiting, worker, now_ns)

    def _on_seeded(self, message: m.Seeded, now_ns: int) -> None:
        self._seeded.add(message.server)
        self._open_if_ready(now_ns)

    # -- workers come and go -------------------------------------------------------------------

    def _admit(self, link: str, bonjour: m.WorkerBonjour, now_ns: int) -> None:
        holder = self.view.holder(bonjour.name)
        if holder is not None:
            self._refuse(
                link,
                f"{bonjour.name} was refused: a worker with this name is in the job;"
                " give another with --name",
            )
            return
        if self._ending is not None:
            self._refuse(link, f"{bonjour.name} was refused: the job is ending")
            return
        member = self.view.admit(bonjour.name, now_ns)
        if self._start_at_ns is None:
            self._round_since_ns = now_ns
            self._start_at_ns = now_ns + round(self.job.start_timeout_s * 1e9)
        self._out.append(Bind(link, worker_name(member.worker)))
        servers = tuple(self._addresses[server] for server in sorted(self._addresses))
        self._tell(member, m.Admitted(**self._identity(member), job=self.job, servers=servers))
        self._note("joined", worker=member.worker, name=member.name, epoch=self.view.epoch)

    def _on_attach(self, message: m.Attach, now_ns: int) -> None:
        member = self.view.get(message.worker, message.incarnation)
        if member is None:
            return
        if self._spec is None:
            self._place(message.spec)
        elif (fault := difference(self._spec, message.spec)) is not None:
            self._refuse_member(member, f"{member.name}'s model differs: {fault}", now_ns)
            return
        member.attached = True
        if self._placed >= set(self._addresses):
            self._route(member)
            if self._round < 0:
                self._open_if_ready(now_ns)
            elif self._round > 0 or self._folding is None:
                self._enter(member, now_ns)

    def _on_placed(self, message: m.Placed, now_ns: int) -> None:
        self._placed.add(message.server)
        if self._placed >= set(self._addresses):
            for member in self.view.members():
                if member.attached:
                    self._route(member)

    def _route(self, member: Member) -> None:
        if self._seeder is None:
            self._seeder = member.worker
        seed = self._seeder == member.worker and not self._seeded >= self._holders
        routing = m.Routing(**self._identity(member), routes=self._routes, seed=seed)
        self._tell(member, routing)

    def _place(self, spec: m.ModelSpec) -> None:
        self._spec = spec
        layout = lay_out(spec, self.job.servers, self.job.slice_nbytes)
        self._routes = Ring(sorted(self._addresses)).place(len(layout.slices))
        self._routing_epoch = 1
        self._holders = frozenset(route.primary for route in self._routes)
        place = m.Place(term=_TERM, routing=self._routing_epoch, spec=spec, routes=self._routes)
        for server in sorted(self._addresses):
            self._out.append(Send(server_name(server), place))
        self._note(
            "placed",
            nbytes=layout.nbytes,
            slices=[sum(r.primary == s for r in self._routes) for s in sorted(self._addresses)],
        )

    def _enter(self, member: Member, now_ns: int) -> None:
        member.entered = True
        self._plan_stale = True
        self._ask(sync.Joined(member.worker), now_ns)

    def _on_leave(self, message: m.Leave, now_ns: int) -> None:
        member = self.view.get(message.worker, message.incarnation)
        if member is not None:
            self._remove(member, message.reason or "it was done", now_ns)

    def _on_link_closed(self, event: ev.LinkClosed, now_ns: int) -> None:
        self._knocks = [knock for knock in self._knocks if knock[0] != event.peer]
        if event.peer.startswith("s") and event.peer[1:].isdigit():
            server = int(event.peer[1:])
            if server in self._addresses:
                reason = Reason("server-died", {"server": server, "detail": event.reason})
                self._finish(reason, failed=True)
            return
        for member in self.view.members():
            if worker_name(member.worker) == event.peer:
                self._remove(member, event.reason, now_ns)

    def _remove(self, member: Member, reason: str, now_ns: int) -> None:
        self.view.remove(member.worker)
        for key in [key for key in self._coming if key[0] == member.worker]:
            del self._coming[key]
        self._note("left", worker=member.worker, name=member.name, reason=reason)
        self._plan_stale = True
        if self._seeder == member.worker and not self._seeded >= self._holders:
            self._choose_seeder()
        if member.entered:
            self._ask(sync.Left(member.worker), now_ns)
        if len(self.view) == 0 and (self._ending is not None or self._round >= 0):
            self._finish(self._ending or Reason("deserted"), failed=self._ending is None)

    def _choose_seeder(self) -> None:
        """The worker whose parameters were to begin is gone: another one's do."""
        self._seeder = None
        self._seeded.clear()
        for member in self.view.members():
            if member.attached and self._placed >= set(self._addresses):
                self._route(member)
                return

    def _on_stop_asked(self, event: ev.StopAsked, now_ns: int) -> None:
        self._finish(Reason("stopped"), failed=False)

    # -- data ----------------------------------------------------------------------------------

    def _on_enrol(self, message: m.Enrol, now_ns: int) -> None:
        member = self.view.get(message.worker, message.incarnation)
        if member is None:
            return
        if message.points < 1:
            self._refuse_member(member, f"{member.name}'s data set is empty", now_ns)
            return
        if self._plan is None:
            entered = [other.worker for other in self.view.members() if other.entered]
            self._plan = Plan(message.points, len(entered), self.job.seed, self.job.epochs)
            self._plan.share(entered)
            self._plan_stale = False
        elif message.points != self._plan.points:
            fault = f"{message.points} points, the job's has {self._plan.points}"
            self._refuse_member(member, f"{member.name}'s data set has {fault}", now_ns)
            return
        member.enrolled = True
        self._tell(member, self._plan.lease(member.worker))

    def _share_again(self) -> None:
        """Members changed: at a fold nothing is on its way, so chunks may change hands."""
        if self._plan is None or not self._plan_stale:
            return
        entered = [member.worker for member in self.view.members() if member.entered]
        changed = self._plan.share(entered)
        self._plan_stale = False
        for member in self.view.members():
            if member.worker in changed and member.enrolled:
                self._tell(member, self._plan.lease(member.worker))

    # -- the way of one contribution -----------------------------------------------------------

    def _on_trailer(self, message: m.Trailer, now_ns: int) -> None:
        if self.view.get(message.worker, message.incarnation) is None:
            return
        coming = self._coming.setdefault((message.worker, message.sequence), _Coming())
        coming.trailer = message
        self._complete(message.worker, message.sequence, coming, now_ns)

    def _on_arrived(self, message: m.Arrived, now_ns: int) -> None:
        if self.view.get(message.worker, message.incarnation) is None:
            return
        coming = self._coming.setdefault((message.worker, message.sequence), _Coming())
        coming.servers.add(message.server)
        coming.round = max(coming.round, message.round)
        self._complete(message.worker, message.sequence, coming, now_ns)

    def _complete(self, worker: int, sequence: int, coming: _Coming, now_ns: int) -> None:
        if coming.trailer is None or coming.servers != self._holders:
            return
        del self._coming[worker, sequence]
        points = int(coming.trailer.weight)
        if self._plan is not None:
            points = self._plan.commit(worker, coming.trailer.progress)
        self._tally.count(coming.trailer, points)
        self._ask(sync.Arrived(worker, coming.round), now_ns)

    def _on_abstained(self, message: m.Abstained, now_ns: int) -> None:
        if self.view.get(message.worker, message.incarnation) is not None:
            self._ask(sync.Abstained(message.worker), now_ns)

    def _on_tick(self, event: ev.Tick, now_ns: int) -> None:
        if self._round < 0:
            self._overdue = self._start_at_ns is not None and now_ns >= self._start_at_ns
            self._open_if_ready(now_ns)
        else:
            self._ask(sync.Tick(), now_ns)

    # -- rounds --------------------------------------------------------------------------------

    def _attached(self) -> int:
        return sum(member.attached for member in self.view.members())

    def _open_if_ready(self, now_ns: int) -> None:
        """Round 1 opens with `workers` members, or after the start timeout with those present."""
        if self._round >= 0 or self._spec is None or not self._seeded >= self._holders:
            return
        if not self._attached() or (self._attached() < self.job.workers and not self._overdue):
            return
        self._round = 0
        entering = [member for member in self.view.members() if member.attached]
        for member in entering:
            member.entered = True
            self._policy.on(sync.Joined(member.worker), now_ns)
        self._begin_fold(
            frozenset(member.worker for member in entering),
            Reason("opened", {"round": 1, "members": len(entering)}),
            now_ns,
        )

    def _ask(self, event: sync.PolicyEvent, now_ns: int) -> None:
        if self._ending is not None:
            return
        decision = self._policy.on(event, now_ns)
        self._wake_at_ns = decision.wake_at
        if decision.fold:
            self._round += 1
            self._begin_fold(decision.release, decision.reason, now_ns)
        elif decision.release:
            self._send_release(decision.release, sync.NOBODY)

    def _begin_fold(self, release: frozenset[int], reason: Reason, now_ns: int) -> None:
        self._share_again()
        self._folding = set()
        self._release = release
        self._reason = reason
        members = self.view.specs()
        old, self._enlisted = self._enlisted, frozenset((s.worker, s.incarnation) for s in members)
        # a new member pulls its first version: pushed, it could overtake the member's routing
        self._readers = frozenset(
            s.worker for s in members if s.worker in release and (s.worker, s.incarnation) in old
        )
        fold = m.Fold(
            term=_TERM,
            view=self.view.epoch,
            routing=self._routing_epoch,
            round=self._round,
            readers=tuple(sorted(self._readers)),
            members=members,
        )
        for server in sorted(self._holders):
            self._out.append(Send(server_name(server), fold))

    def _on_folded(self, message: m.Folded, now_ns: int) -> None:
        if self._folding is None or message.round != self._round:
            return
        self._folding.add(message.server)
        if message.weight:
            self._folds[message.server] = self._folds.get(message.server, 0) + 1
        if self._folding != self._holders:
            return
        self._folding = None
        goal = self._goal()
        self._note_round(now_ns, final=goal is not None)
        if goal is not None:
            self._ending = goal
            self._send_stop(goal, now_ns)
            return
        self._send_release(self._release, self._readers)
        opened = self._round
        self._ask(sync.Opened(opened), now_ns)
        if opened == 0:
            self._enter_early(now_ns)

    def _enter_early(self, now_ns: int) -> None:
        """Who attached while the first version was on its way is not a first member."""
        for member in self.view.members():
            if member.attached and not member.entered:
                self._enter(member, now_ns)

    def _goal(self) -> Reason | None:
        if self.job.rounds is not None and self._round >= self.job.rounds:
            return Reason("goal", {"goal": f"{self._round} rounds"})
        if self._plan is not None and self._plan.done:
            return Reason("goal", {"goal": f"{self._plan.passes} passes over the data"})
        return None

    def _send_release(self, release: frozenset[int], readers: frozenset[int]) -> None:
        for member in self.view.members():
            if member.worker in release:
                pushed = member.worker in readers
                self._tell(
                    member,
                    m.Release(**self._identity(member), round=self._round, pushed=pushed),
                )

    def _send_stop(self, goal: Reason, now_ns: int) -> None:
        for member in self.view.members():
            if (member.worker, member.incarnation) not in self._enlisted:
                # the servers do not know it, so it cannot read the final version
                self._refuse_member(member, f"{member.name} came too late: {goal}", now_ns)
                continue
            member.stopped = True
            release = m.Release(
                **self._identity(member),
                round=self._round,
                pushed=member.worker in self._readers,
                stop=True,
                reason=str(goal),
            )
            self._tell(member, release)

    # -- the end -------------------------------------------------------------------------------

    def _finish(self, reason: Reason, *, failed: bool) -> None:
        stop = m.Stop(term=_TERM, view=self.view.epoch, reason=str(reason), failed=failed)
        for member in self.view.members():
            self._out.append(Send(worker_name(member.worker), stop))
        for server in sorted(self._addresses):
            self._out.append(Send(server_name(server), stop))
        for link, _ in self._knocks:
            self._refuse(link, str(reason))
        self._note(
            "ended",
            reason=str(reason),
            failed=failed,
            rounds=max(0, self._round),
            folds=self._folds,
        )
        self._out.append(End(reason, failed))
        self._ended = True

    def _on_report(self, message: m.Report, now_ns: int) -> None:
        member = self.view.get(message.worker, message.incarnation)
        if member is not None:
            self._note("reported", worker=member.worker, name=member.name, **message.metrics)

    # -- small words ---------------------------------------------------------------------------

    def _identity(self, member: Member) -> dict[str, Any]:
        return {
            "term": _TERM,
            "view": self.view.epoch,
            "routing": self._routing_epoch,
            "worker": member.worker,
            "incarnation": member.incarnation,
        }

    def _tell(self, member: Member, message: m.Message) -> None:
        self._out.append(Send(worker_name(member.worker), message))

    def _refuse(self, link: str, reason: str) -> None:
        self._out.append(Send(link, m.Refusal(term=_TERM, reason=reason)))
        self._out.append(Drop(link, reason))
        self._note("refused", reason=reason)

    def _refuse_member(self, member: Member, reason: str, now_ns: int) -> None:
        self._refuse(worker_name(member.worker), reason)
        self._remove(member, reason, now_ns)

    def _note(self, what: str, **fields: Any) -> None:
        self._out.append(Note(what, fields))

    def _note_round(self, now_ns: int, *, final: bool) -> None:
        passes = self._plan.passes if self._plan is not None else 0
        line = self._tally.close(self._round, self._reason.code, passes, now_ns, final=final)
        if line is not None:
            self._note("rounds", **line)

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
    }
