"""The server: it holds slices, and has no barrier of its own.

*Where the policy has rounds, a server adds slices, reports `Arrived`, and folds only on the lead's
`Fold`; what comes late joins the next aggregate. Where it has none, each slice is folded as it
comes.* Adding and folding single slices is done by whoever received them, under the ledger's word;
the machine keeps versions and their readers, and says what happened to the lead.

With replicas it is the primary of some slices and copies others. *What it is the primary of it
acknowledges, reports as folded and gives to readers only when every replica has it.* A new routing
epoch makes it the primary of more, or of fewer: it keeps what is in the slices, says what that is, and
fetches what it is to copy from others.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from polyrhythm.core import events as ev
from polyrhythm.core.effects import (
    LEAD,
    Beat,
    Build,
    Drop,
    End,
    Enlist,
    FreeSlots,
    Freeze,
    Note,
    Publish,
    PublishLatest,
    Reach,
    Reroute,
    Send,
    SendState,
    StartFold,
    Unlease,
    server_name,
    server_number,
    worker_name,
    worker_number,
)
from polyrhythm.core.heartbeat import Heartbeat
from polyrhythm.core.lead_watch import LeadWatch
from polyrhythm.core.links import Links
from polyrhythm.core.machine import Effect, Reason, Waiting
from polyrhythm.core.server.acks import Acks
from polyrhythm.core.server.admission import PeerAdmission
from polyrhythm.core.server.early_acks import EarlyAcks
from polyrhythm.core.server.leases import Leases, Versions
from polyrhythm.core.server.replica_fetch import ReplicaFetch
from polyrhythm.core.server.replication import Replication, Step, fold_step
from polyrhythm.core.server.routing_epoch import RoutingEpoch
from polyrhythm.core.sync.registry import traits_of
from polyrhythm.errors import InvariantBroken
from polyrhythm.wire import messages as m


class ServerMachine:
    def __init__(self, server: int, job: m.JobSpec) -> None:
        self.server = server
        self.job = job
        self._rounds = traits_of(job.sync).rounds
        self._leases = Leases(
            rotating=self._rounds and job.updater == "addition", replicas=job.replicas > 0
        )
        self._receipts = Acks()
        self.replication = Replication()
        self._copying = ReplicaFetch(server)
        self._partners = Links()
        """Servers that slices are copied to or from."""
        self._callers = PeerAdmission(server, job.workers)
        self._term = 0
        self._view = 0
        self._mine: frozenset[int] = frozenset()
        self._fetches: dict[int, m.Fetch] = {}
        """Per server, what it asked for and cannot have yet."""
        self._early = EarlyAcks()
        self._meanwhile: list[Step] = []
        """What was settled while the slices changed their places."""
        self._following = RoutingEpoch()
        self._built = False
        self._unseeded: set[int] = set()
        self._frozen = False
        self._ended = False
        self._heartbeat = Heartbeat()
        self._lead = LeadWatch()
        """Not begun where the lead runs in the same process: both live and stop together."""
        self._folding: m.Fold | None = None
        self._starting = False
        """The fold itself is being done; after that only replicas are waited for."""
        self._weight = 0.0
        self._target = (0, 0)
        self._since_ns = 0
        self._out: list[Effect] = []

    # -- the machine ---------------------------------------------------------------------------

    def handle(self, event: Any, now_ns: int) -> Sequence[Effect]:
        self._out = []
        handler = self._HANDLERS.get(type(event))
        if handler is not None and not self._ended:
            handler(self, event, now_ns)
        return self._out

    def wake_at(self) -> int | None:
        if self._ended:
            return None
        times_ns = (self._heartbeat.next_ns, self._lead.wake_ns, self._callers.wake_ns)
        return min((time_ns for time_ns in times_ns if time_ns is not None), default=None)

    def _on_tick(self, event: ev.Tick, now_ns: int) -> None:
        if self._heartbeat.due(now_ns):
            alive = m.Alive(**self._identity(), sequence=self._lead.beats)
            self._out.append(Beat(alive))
        self._out += self._callers.overdue(now_ns)
        self._note(self._lead.look(now_ns))
        if (lost := self._lead.lost(now_ns)) is not None:
            self._end(lost, failed=True)

    # -- the lead's signs of life --------------------------------------------------------------

    def _on_lead_linked(self, event: ev.LeadLinked, now_ns: int) -> None:
        self._note(self._lead.begin(event.heartbeat_s, event.timeout_s, now_ns))

    def _on_alive(self, message: m.Alive, now_ns: int) -> None:
        self._note(self._lead.hear(now_ns, beat=True))

    def _on_lead_heard(self, event: ev.LeadHeard, now_ns: int) -> None:
        self._note(self._lead.hear(now_ns))

    def _note(self, note: Note | None) -> None:
        if note is not None:
            self._out.append(note)

    def why(self) -> Waiting:
        if (waiting := self._lead.waiting()) is not None:
            return waiting
        if not self._mine or self._unseeded:
            return Waiting(Reason("placing"), self._since_ns)
        round_ = self.versions.version + 1
        if self._following.place is not None:
            absent = ", ".join(map(server_name, self._partners.absent))
            links = absent or server_name(self.server)
            return Waiting(Reason("rerouting", {"servers": links}), self._since_ns)
        if self.replication.pending:
            late = ", ".join(map(server_name, self.replication.awaited))
            return Waiting(Reason("copying", {"servers": late}), self._since_ns)
        if self._folding is not None:
            return Waiting(Reason("folding", {"round": round_}), self._since_ns)
        missing = ", ".join(map(worker_name, self._receipts.missing()))
        return Waiting(
            Reason("round", {"round": round_, "missing": missing or "the lead"}), self._since_ns
        )

    @property
    def versions(self) -> Versions:
        return self._leases.versions

    def check(self) -> None:
        self.versions.check()
        self.replication.check()
        if self._folding is not None and self._folding.round < self.versions.version:
            raise InvariantBroken("a fold went backwards")

    # -- beginning -----------------------------------------------------------------------------

    def _on_place(self, message: m.Place, now_ns: int) -> None:
        if message.routing <= self._following.routing:
            return
        self._term = message.term
        self._since_ns = now_ns
        if self._heartbeat.next_ns is None:
            self._heartbeat.begin(self.job.heartbeat_s, now_ns)
        self._out += self._callers.named(message.servers)
        self._following.set_out(message)
        if not self._starting:  # otherwise when the fold is done, which writes the slices
            self._follow()

    def _follow(self) -> None:
        """Hold what the routes say."""
        place = self._following.place
        assert place is not None
        holders = [set(r.holders) for r in place.routes if self.server in r.holders]
        partners = set().union(*holders) - {self.server}
        specs = [spec for spec in place.servers if spec.server in partners]
        self._partners.want(specs)
        if place.fresh or not self._built:
            self._built = True
            self._out.append(Build(place.spec, place.routes, place.routing, place.fresh))
            self._begin_with(place)
            self._meet()
        else:
            self._meet()  # what the slices have is told of these
            self._out.append(Reroute(place.routes, place.routing))
        if self._partners:
            me = next(s.incarnation for s in place.servers if s.server == self.server)
            self._out.append(Reach(self._partners.dial(specs), me))
        self._placed_if_ready()

    def _meet(self) -> None:
        """Who only copies hears of members with its routes, and of nobody by a fold."""
        if self._following.introduced is not None:
            self._enlist(self._following.introduced)
            self._following.introduced = None

    def _begin_with(self, place: m.Place) -> None:
        mine = self._primary_of(place)
        self._mine = frozenset(mine)
        kept = {i for i, route in enumerate(place.routes) if self.server in route.holders}
        self._unseeded = kept if place.fresh else set()
        self._copying.begin(place)
        self.replication = Replication()
        self.replication.reroute(mine.items(), place.routing)
        self._following.begin(place.routing)

    def _primary_of(self, place: m.Place) -> dict[int, m.Route]:
        return {i: route for i, route in enumerate(place.routes) if route.primary == self.server}

    def _on_slice_seeded(self, event: ev.SliceSeeded, now_ns: int) -> None:
        if event.routing != self._following.routing or event.slice not in self._unseeded:
            return  # a dead seeder's, overtaken by the order to make room anew, or a repetition
        self._unseeded.remove(event.slice)
        if not self._unseeded:
            self._tell_lead(m.Seeded(**self._identity()))

    # -- routes change -------------------------------------------------------------------------

    def _on_server_called(self, event: ev.ServerCalled, now_ns: int) -> None:
        self._out += self._callers.call(event.link, event.server, event.incarnation, now_ns)

    def _on_worker_called(self, event: ev.WorkerCalled, now_ns: int) -> None:
        self._out += self._callers.call_worker(event.link, event.worker, event.incarnation, now_ns)

    def _on_introduced(self, message: m.Introduced, now_ns: int) -> None:
        self._out += self._callers.introduced(message.worker, message.incarnation)

    def _on_linked(self, event: ev.Linked, now_ns: int) -> None:
        self._partners.came(event.server, event.incarnation)
        self._placed_if_ready()

    def _on_rerouted(self, event: ev.Rerouted, now_ns: int) -> None:
        """The slices are what the routes say: so are their readers, and what is acknowledged."""
        places = self._following.hold(event)
        if places is None:
            return
        place = places[-1]
        for each in places:
            self._copying.follow(each)
        before, self._mine = self._mine, frozenset(self._primary_of(place))
        if self._mine != before:
            self.replication.reconsider(event.rows, event.version)
        settled, self._meanwhile = self._meanwhile, []
        for each in places:
            settled += self.replication.reroute(self._primary_of(each).items(), each.routing)
        self._view = max(self._view, place.view)
        if self._mine != before:
            settled = []  # of the slices that it had: what all have now is for `_take_over` to say
            self._following.since = place.routing
            self._folding = None  # the lead says it again, for what has not folded
            self._leases.move(event.version)
            if self._rounds and event.version > 0:
                self.replication.issue(fold_step(event.version))
            self._take_over(event, anew=self._rounds and not before)
        for primary, made in event.copied:  # what was said before may have been of other slices
            self._on_step_copied(ev.StepCopied(primary, made), now_ns)
        self._settle(settled, now_ns)
        for message in self._early.take():
            self._confirm(message, now_ns, adopted=isinstance(message, m.Adopted))
        for fetch in list(self._fetches.values()):
            self._on_fetch(fetch, now_ns)
        self._placed_if_ready()

    def _take_over(self, event: ev.Rerouted, *, anew: bool) -> None:
        for worker, incarnation, sequence in self._receipts.take_over(event.rows, anew=anew):
            if self._rounds:
                self._receipts.arrive(worker, sequence, event.round)
            elif self.replication.issue((worker, incarnation, sequence)):
                self._secure(worker, incarnation, sequence)

    def _placed_if_ready(self) -> None:
        """Every slice is in its place, everybody it is copied to or from is linked, and, with
        rounds, what was folded is on every replica."""
        place, rerouted = self._following.place, self._following.rerouted
        if place is None or rerouted is None:
            return
        if not self._partners.complete:
            return
        self._out += self._copying.fetch(place)
        if self._folding is not None or (self._rounds and self.replication.pending):
            return
        self._following.arrive()
        for worker, sequence in self._receipts.fold(self.versions.version):
            self._acknowledge(worker, sequence)
        rows = rerouted.rows if self._rounds else self._receipts.secured(rerouted.rows)
        self._tell_lead(m.Placed(**self._identity(), round=rerouted.version, rows=rows))
        for pull in list(self._leases.pulls.values()):
            self._answer(pull)
        for fetch in list(self._fetches.values()):
            self._on_fetch(fetch, self._since_ns)

    def _on_state_adopted(self, event: ev.StateAdopted, now_ns: int) -> None:
        if not self._copying.adopted(event):
            return
        adopted = m.Adopted(
            term=self._term, routing=self._following.held, server=self.server, rows=event.rows
        )
        self._out.append(Send(server_name(event.primary), adopted))

    def _on_step_copied(self, event: ev.StepCopied, now_ns: int) -> None:
        copied = m.Copied(
            term=self._term, routing=self._following.held, server=self.server, rows=event.rows
        )
        self._out.append(Send(server_name(event.primary), copied))

    def _on_fetch(self, message: m.Fetch, now_ns: int) -> None:
        """Once this server goes by the routes that the other one goes by, and is not folding."""
        if self._following.changing or self._starting or message.routing > self._following.held:
            self._fetches[message.server] = message
            return
        self._fetches.pop(message.server, None)
        if self.replication.copies(message.server):  # that one knows whether it still wants them
            self._out.append(SendState(message.server, message.held, message.routing))

    def _on_copied(self, message: m.Copied, now_ns: int) -> None:
        self._confirm(message, now_ns, adopted=False)

    def _on_adopted(self, message: m.Adopted, now_ns: int) -> None:
        self._confirm(message, now_ns, adopted=True)

    def _confirm(self, message: m.Copied | m.Adopted, now_ns: int, *, adopted: bool) -> None:
        peer = message.server
        if message.routing > self._following.held:
            if not self._early.keep(message):
                excess = (
                    "it confirmed copies in too many routing epochs that the lead has not named"
                )
                self._out.append(Drop(server_name(peer), excess))
            return  # of which slices that is said, the lead will say
        if not self.replication.knows(peer, message.routing):
            return  # it was said of what it copied before
        caught_up = self.replication.caught_up(peer)
        settled = self.replication.confirm(peer, message.rows, adopted=adopted)
        if self.replication.caught_up(peer) and not caught_up:
            held = self._following.held  # which the lead may await still
            self._tell_lead(m.CaughtUp(**self._identity() | {"routing": held}, peer=peer))
        self._settle(settled, now_ns)
        self._placed_if_ready()

    def _settle(self, steps: Sequence[Step], now_ns: int) -> None:
        """Every replica has made these steps. While the slices change their places nothing of them
        is sent or acknowledged."""
        if self._following.changing:
            self._meanwhile += steps
            return
        for worker, incarnation, sequence in steps:
            if self._rounds:
                folding = self._folding
                if folding is not None and folding.round == sequence and not self._starting:
                    self._finish_fold(self._weight, now_ns)
            elif self._receipts.members.get(worker) == incarnation:
                self._secure(worker, incarnation, sequence)

    # -- contributions -------------------------------------------------------------------------

    def _on_contributed(self, event: ev.Contributed, now_ns: int) -> None:
        if self._receipts.members.get(event.worker) != event.incarnation:
            return
        if self._rounds:
            self._leases.contributed(event.worker)
            if event.round <= self._leases.versions.version:
                self._acknowledge(event.worker, event.sequence)
            else:
                self._receipts.arrive(event.worker, event.sequence, event.round)
            self._report(event.worker, event.incarnation, event.sequence, event.round)
            return
        if event.pull:
            self._leases.ask(
                m.Pull(
                    worker=event.worker,
                    incarnation=event.incarnation,
                    round=event.pull,
                    sequence=event.sequence,
                )
            )
        if self.replication.issue((event.worker, event.incarnation, event.sequence)):
            self._secure(event.worker, event.incarnation, event.sequence)
        if event.pulled >= 0:
            self._release(event.worker, event.pulled)

    def _report(self, worker: int, incarnation: int, sequence: int, round_: int) -> None:
        """Of the slices that it is the primary of in the epoch that they are in."""
        arrived = m.Arrived(
            term=self._term,
            view=self._view,
            routing=self._following.held,
            server=self.server,
            worker=worker,
            incarnation=incarnation,
            sequence=sequence,
            round=round_,
        )
        self._out.append(Send(LEAD, arrived))

    def _secure(self, worker: int, incarnation: int, sequence: int) -> None:
        """Without rounds: it is in the parameters here and on every replica. The answer to a pull
        that waits for it acknowledges."""
        self._receipts.acknowledge(worker, sequence)
        pull = self._leases.pulls.get(worker)
        if pull is not None and pull.sequence <= sequence:
            self._publish_latest(pull)
        else:
            self._acknowledge(worker, sequence)
        self._report(worker, incarnation, sequence, 1)

    def _on_repeated(self, event: ev.Repeated, now_ns: int) -> None:
        """It came again because its acknowledgement was not seen: acknowledge again if due."""
        if self._receipts.members.get(event.worker) != event.incarnation:
            return
        if self._receipts.acknowledged(event.worker) >= event.sequence:
            self._acknowledge(event.worker, event.sequence)

    def _acknowledge(self, worker: int, sequence: int) -> None:
        message = m.Acknowledged(
            term=self._term,
            view=self._view,
            routing=self._following.since,
            server=self.server,
            worker=worker,
            incarnation=self._receipts.members[worker],
            sequence=self._receipts.acknowledge(worker, sequence),
        )
        self._out.append(Send(worker_name(worker), message))

    # -- folds ---------------------------------------------------------------------------------

    def _on_fold(self, message: m.Fold, now_ns: int) -> None:
        if message.term < self._term or self._folding is not None:
            return
        self._term, self._view = message.term, message.view
        self._since_ns = now_ns
        if self._rounds and 0 < message.round <= self.versions.version:
            self._tell_lead(m.Folded(**self._identity(), round=message.round))
            return  # it was the primary before this one that folded it
        self._enlist(message.members)
        self._following.introduced = None
        self._folding = message
        if message.last and not self._rounds:
            self._frozen = True
            self._out.append(Freeze())
        if message.round == 0 or not self._rounds:
            self._finish_fold(0.0, now_ns)
            return
        slot, fill = self._target = self.versions.target()
        self._starting = True
        self._out.append(StartFold(message.round, slot, fill, message.share))

    def _enlist(self, members: tuple[m.MemberSpec, ...]) -> None:
        gone = self._receipts.enlist(members)
        if gone is None:
            return
        for worker, incarnation in gone:
            # what it leases stays leased until its link ends: it may be in the middle of it
            self._leases.pulls.pop(worker, None)
            self.replication.forget_worker(worker, incarnation)
        self._out.append(Enlist(members))

    def _on_fold_done(self, event: ev.FoldDone, now_ns: int) -> None:
        if self._folding is None or event.round != self._folding.round:
            return
        self._starting = False
        self._weight = event.weight
        self.versions.folded(event.round, *self._target)
        if self.replication.issue(fold_step(event.round)):
            self._finish_fold(event.weight, now_ns)
        if self._following.changing:
            self._follow()
        for fetch in list(self._fetches.values()):
            self._on_fetch(fetch, now_ns)

    def _finish_fold(self, weight: float, now_ns: int) -> None:
        fold, self._folding = self._folding, None
        assert fold is not None
        self._since_ns = now_ns
        readers = self._receipts.last_first(fold.readers)
        for worker, sequence in self._receipts.fold(fold.round, frozenset(readers)):
            self._acknowledge(worker, sequence)
        for worker in readers:
            self._publish(worker, first=len(readers) > 1 and worker == readers[0])
        self._leases.published()
        for pull in list(self._leases.pulls.values()):
            self._answer(pull)
        self._tell_lead(m.Folded(**self._identity(), round=fold.round, weight=weight))
        self._free()
        self._placed_if_ready()

    # -- readers -------------------------------------------------------------------------------

    def _publish(self, worker: int, *, asked: bool = False, first: bool = False) -> None:
        if not self._leases.lease(worker, asked=asked):
            return
        versions = self._leases.versions
        self._out.append(
            Publish(
                worker,
                self._receipts.members[worker],
                versions.version,
                versions.slot,
                self._receipts.acknowledged(worker),
                self._view,
                self._following.since,
                first,
            )
        )

    def _on_pull(self, message: m.Pull, now_ns: int) -> None:
        if self._receipts.members.get(message.worker) != message.incarnation:
            return
        if message.pulled >= 0:
            self._release(message.worker, message.pulled)
        self._answer(message)

    def _answer(self, pull: m.Pull) -> None:
        """Now if what was asked for is there, otherwise when it is."""
        if self._can_answer(pull):
            if self._rounds:
                self._publish(pull.worker, asked=True)
            else:
                self._publish_latest(pull)
        else:
            self._leases.ask(pull)

    def _can_answer(self, pull: m.Pull) -> bool:
        """With rounds: the version is there and no fold is writing. Without: the reader's own last
        contribution is in, or nothing more will be."""
        if self._following.place is not None:
            return False  # what it holds is about to change
        if self._rounds:
            return self._folding is None and self.versions.version >= pull.round
        return self._frozen or self._receipts.acknowledged(pull.worker) >= pull.sequence

    def _publish_latest(self, pull: m.Pull) -> None:
        self._leases.pulls.pop(pull.worker, None)
        sequence = self._receipts.acknowledged(pull.worker)
        reader = (pull.worker, pull.incarnation)
        since = self._following.since
        answer = PublishLatest(*reader, pull.round, sequence, self._view, since)
        self._out.append(answer)

    def _on_pulled(self, message: m.Pulled, now_ns: int) -> None:
        if self._leases.names_this_server(message.worker):
            self._release(message.worker, message.round)

    def _on_sent(self, event: ev.Sent, now_ns: int) -> None:
        for worker in event.workers:
            self._release(worker, event.round)

    def _release(self, worker: int, round_: int) -> None:
        if not self._rounds:
            self._out.append(Unlease(worker, round_))
        elif self._leases.release(worker, round_):
            self._free()

    def _free(self) -> None:
        writing = self._folding is not None or self._following.changing
        if not writing and (slots := self.versions.surplus()):
            self._out.append(FreeSlots(slots))

    def _on_link_closed(self, event: ev.LinkClosed, now_ns: int) -> None:
        if event.peer == LEAD:
            self._end(Reason("lead-gone", {"detail": event.reason}), failed=True)
        self._callers.hung_up(event.peer)
        server = server_number(event.peer)
        if server is not None and self._partners.ended(server, event.incarnation):
            self._early.forget(server)
            self._fetches.pop(server, None)
            self._tell_unreachable(server, event)
        worker = worker_number(event.peer)
        if worker is None or 0 < event.incarnation < self._receipts.members.get(worker, 0):
            return  # it is no worker, or has come back over another link
        self._forget_reader(worker)

    def _on_dismissed(self, message: m.Dismissed, now_ns: int) -> None:
        if self._callers.admitted(message.worker) == message.incarnation:
            self._out.append(Drop(worker_name(message.worker), "it was evicted, and has not woken"))
            self._forget_reader(message.worker)

    def _forget_reader(self, worker: int) -> None:
        self._leases.pulls.pop(worker, None)
        if self._rounds:
            self._leases.forget(worker)
            self._free()
        else:
            self._out.append(Unlease(worker, None))

    def _tell_unreachable(self, server: int, event: ev.LinkClosed) -> None:
        if self._partners.wants(server, event.incarnation):
            gone = m.Unreachable(
                **self._identity(),
                incarnation=self._partners.incarnation(server),
                peer=server,
                reason=event.reason,
            )
            self._tell_lead(gone)

    def _on_stop(self, message: m.Stop, now_ns: int) -> None:
        self._end(Reason("refused", {"detail": message.reason}), failed=message.failed)

    def _end(self, reason: Reason, *, failed: bool) -> None:
        self._ended = True
        self._out.append(End(reason, failed))

    # -- small words ---------------------------------------------------------------------------

    def _identity(self) -> dict[str, Any]:
        return {
            "term": self._term,
            "view": self._view,
            "routing": self._following.routing,
            "server": self.server,
        }

    def _tell_lead(self, message: m.Message) -> None:
        self._out.append(Send(LEAD, message))

    _HANDLERS: ClassVar[dict[type, Callable[["ServerMachine", Any, int], None]]] = {
        ev.Tick: _on_tick,
        ev.LeadLinked: _on_lead_linked,
        ev.LeadHeard: _on_lead_heard,
        m.Alive: _on_alive,
        m.Place: _on_place,
        ev.ServerCalled: _on_server_called,
        ev.WorkerCalled: _on_worker_called,
        m.Introduced: _on_introduced,
        m.Dismissed: _on_dismissed,
        ev.Linked: _on_linked,
        ev.Rerouted: _on_rerouted,
        ev.StateAdopted: _on_state_adopted,
        ev.StepCopied: _on_step_copied,
        m.Fetch: _on_fetch,
        m.Copied: _on_copied,
        m.Adopted: _on_adopted,
        ev.SliceSeeded: _on_slice_seeded,
        ev.Contributed: _on_contributed,
        ev.Repeated: _on_repeated,
        m.Fold: _on_fold,
        ev.FoldDone: _on_fold_done,
        m.Pull: _on_pull,
        m.Pulled: _on_pulled,
        ev.Sent: _on_sent,
        ev.LinkClosed: _on_link_closed,
        m.Stop: _on_stop,
    }
