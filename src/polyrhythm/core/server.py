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
    End,
    Enlist,
    FetchState,
    FreeSlots,
    Freeze,
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
from polyrhythm.core.machine import Effect, Reason, Waiting
from polyrhythm.core.replication import Replication, Step, fold_step
from polyrhythm.core.sync.choose import has_rounds
from polyrhythm.core.versions import Versions
from polyrhythm.errors import InvariantBroken
from polyrhythm.wire import messages as m


class ServerMachine:
    def __init__(self, server: int, job: m.JobSpec) -> None:
        self.server = server
        self.job = job
        self._rounds = has_rounds(job.sync)
        self.versions = self._first_version(0)
        self.replication = Replication()
        self._term = 0
        self._view = 0
        self._routing = 0
        self._mine: frozenset[int] = frozenset()
        self._copies: dict[int, int] = {}
        """Per slice that is copied here, the primary that it was fetched from."""
        self._fetching: dict[int, tuple[int, frozenset[int]]] = {}
        """Per primary, the routing epoch in which it was asked last, and for what."""
        self._fetches: dict[int, m.Fetch] = {}
        """Per server, what it asked for and cannot have yet."""
        self._moved_leases: set[tuple[int, int]] = set()
        """Of the memory before slices moved: which reader still reads which version."""
        self._moved = False
        """It is the primary of other slices than at the last fold."""
        self._apart: set[int] = set()
        """Who was sent a version because it asked, or after slices moved. That it contributes or
        has read that version may be said of what another primary sent."""
        self._introduced: tuple[m.MemberSpec, ...] | None = None
        """The members that came with the routes, unless a fold has named others since."""
        self._early: list[m.Copied | m.Adopted] = []
        """What others say of copies in an epoch that the slices here are not in yet."""
        self._linked: dict[int, int] = {}
        self._reached: dict[int, int] = {}
        """Servers that a link was asked for to, with their incarnations."""
        self._partners: dict[int, int] = {}
        """Servers that slices are copied to or from, with their incarnations."""
        self._place: m.Place | None = None
        """The routing epoch that this server is on its way to."""
        self._overtaken: list[m.Place] = []
        """Epochs that were followed by the next before this server was in them. Others were, and may
        have asked and said something in them."""
        self._rerouted: ev.Rerouted | None = None
        self._held = 0
        """The routing epoch that the slices are in; `_routing` follows when others can rely on it."""
        self._since = 0
        """The routing epoch since when it is the primary of what it is the primary of."""
        self._built = False
        self._unseeded: set[int] = set()
        self._members: dict[int, int] = {}
        self._arrived: dict[int, tuple[int, int]] = {}
        self._acknowledged: dict[int, int] = {}
        self._pulls: dict[int, m.Pull] = {}
        self._frozen = False
        self._ended = False
        self._beat_ns = round(job.heartbeat_s * 1e9)
        self._next_beat_ns: int | None = None
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
        return None if self._ended else self._next_beat_ns

    def _on_tick(self, event: ev.Tick, now_ns: int) -> None:
        if self._next_beat_ns is not None and now_ns >= self._next_beat_ns:
            self._next_beat_ns = now_ns + self._beat_ns
            self._out.append(Beat(m.Alive(**self._identity())))

    def why(self) -> Waiting:
        if not self._mine or self._unseeded:
            return Waiting(Reason("placing"), self._since_ns)
        round_ = self.versions.version + 1
        if self._place is not None:
            absent = sorted(self._partners.items() - self._linked.items())
            links = ", ".join(server_name(peer) for peer, _ in absent) or server_name(self.server)
            return Waiting(Reason("rerouting", {"servers": links}), self._since_ns)
        if self.replication.pending:
            late = ", ".join(map(server_name, self.replication.awaited))
            return Waiting(Reason("copying", {"servers": late}), self._since_ns)
        if self._folding is not None:
            return Waiting(Reason("folding", {"round": round_}), self._since_ns)
        missing = ", ".join(f"w{w}" for w in sorted(set(self._members) - set(self._arrived)))
        return Waiting(
            Reason("round", {"round": round_, "missing": missing or "the lead"}), self._since_ns
        )

    def check(self) -> None:
        self.versions.check()
        self.replication.check()
        if self._folding is not None and self._folding.round < self.versions.version:
            raise InvariantBroken("a fold went backwards")

    # -- beginning -----------------------------------------------------------------------------

    def _first_version(self, version: int) -> Versions:
        """The slices lie in new memory, which nobody reads yet."""
        rotating = self._rounds and self.job.updater == "addition"
        return Versions(rotating=rotating, version=version)

    def _on_place(self, message: m.Place, now_ns: int) -> None:
        if message.routing <= self._routing:
            return
        self._term = message.term
        self._since_ns = now_ns
        self._next_beat_ns = self._next_beat_ns or now_ns + self._beat_ns
        if self._place is not None and self._rerouted is None:
            self._overtaken.append(self._place)
        self._place, self._rerouted = message, None
        self._introduced = message.members
        if not self._starting:  # otherwise when the fold is done, which writes the slices
            self._follow(message)

    def _follow(self, place: m.Place) -> None:
        """Hold what the routes say."""
        keepers = [set(r.keepers) for r in place.routes if self.server in r.keepers]
        partners = set().union(*keepers) - {self.server}
        self._partners = {s.server: s.incarnation for s in place.servers if s.server in partners}
        if place.fresh or not self._built:
            self._built = True
            self._out.append(Build(place.spec, place.routes, place.routing, place.fresh))
            self._begin_with(place)
        else:
            self._out.append(Reroute(place.routes, place.routing))
        if self._partners:
            me = next(s.incarnation for s in place.servers if s.server == self.server)
            strangers = tuple(
                spec
                for spec in place.servers
                if spec.server in partners and self._reached.get(spec.server) != spec.incarnation
            )
            self._reached.update((spec.server, spec.incarnation) for spec in strangers)
            self._out.append(Reach(strangers, me))
        self._placed_if_ready()

    def _begin_with(self, place: m.Place) -> None:
        mine = self._primary_of(place)
        self._mine = frozenset(mine)
        self._unseeded = set()
        self._copies = {}
        if place.fresh:
            kept = {
                i: route for i, route in enumerate(place.routes) if self.server in route.keepers
            }
            self._unseeded = set(kept)
            self._copies = {i: r.primary for i, r in kept.items() if i not in self._mine}
        self.replication = Replication()
        self.replication.reroute(mine.items(), place.routing)
        self._overtaken.clear()
        self._rerouted = ev.Rerouted(place.routing, 0, ())
        self._held = self._since = place.routing

    def _primary_of(self, place: m.Place) -> dict[int, m.Route]:
        return {i: route for i, route in enumerate(place.routes) if route.primary == self.server}

    def _on_slice_seeded(self, event: ev.SliceSeeded, now_ns: int) -> None:
        if event.routing != self._routing or event.slice not in self._unseeded:
            return  # a dead seeder's, overtaken by the order to make room anew, or a repetition
        self._unseeded.remove(event.slice)
        if not self._unseeded:
            self._tell_lead(m.Seeded(**self._identity()))

    # -- routes change -------------------------------------------------------------------------

    def _on_linked(self, event: ev.Linked, now_ns: int) -> None:
        self._linked[event.server] = self._reached[event.server] = event.incarnation
        self._placed_if_ready()

    def _on_rerouted(self, event: ev.Rerouted, now_ns: int) -> None:
        """The slices are what the routes say: so are their readers, and what is acknowledged."""
        place = self._place
        if place is None or event.routing != place.routing:
            return
        self._rerouted, self._held = event, event.routing
        self._forget_copies(place)
        mine = self._primary_of(place)
        before, self._mine = self._mine, frozenset(mine)
        if self._mine != before:
            self.replication.reconsider(event.rows, event.version)
        settled = []
        for earlier in self._overtaken:
            routes = self._primary_of(earlier).items()
            settled += self.replication.reroute(routes, earlier.routing)
        self._overtaken.clear()
        settled += self.replication.reroute(mine.items(), place.routing)
        if self._introduced is not None:
            self._enlist(self._introduced)
        self._view = max(self._view, place.view)
        if self._mine != before:
            settled = []  # of the slices that it had: what all have now is for `_take_over` to say
            self._since = place.routing
            self._folding = None  # the lead says it again, for what has not folded
            self._moved = True
            self._moved_leases |= self.versions.leases()
            self.versions = self._first_version(event.version)
            if self._rounds and event.version > 0:
                self.replication.issue(fold_step(event.version))
            self._take_over(event, anew=not before)
        for primary, made in event.copied:  # what was said before may have been of other slices
            self._on_step_copied(ev.StepCopied(primary, made), now_ns)
        self._settle(settled, now_ns)
        early, self._early = self._early, []
        for message in early:
            self._confirm(message, now_ns, adopted=isinstance(message, m.Adopted))
        for fetch in list(self._fetches.values()):
            self._on_fetch(fetch, now_ns)
        self._placed_if_ready()

    def _take_over(self, event: ev.Rerouted, *, anew: bool) -> None:
        """Acknowledged is what every slice has, those too that another was the primary of; and what
        only lacked slices that another is the primary of now is complete."""
        last = {(row.worker, row.incarnation): row.sequence for row in event.rows}
        for worker, incarnation in self._members.items():
            least = last.get((worker, incarnation), 0)
            before = self._acknowledged.get(worker, 0)
            acknowledged = least if anew and self._rounds else min(before, least)
            self._acknowledged[worker] = acknowledged
            self._arrived.pop(worker, None)
            if least <= acknowledged:
                continue
            if self._rounds:
                self._arrived[worker] = (least, event.round)
            elif self.replication.issue((worker, incarnation, least)):
                self._secure(worker, incarnation, least)

    def _placed_if_ready(self) -> None:
        """Every slice is in its place, everybody it is copied to or from is linked, and, with
        rounds, what was folded is on every replica."""
        place, rerouted = self._place, self._rerouted
        if place is None or rerouted is None:
            return
        if not self._partners.items() <= self._linked.items():
            return
        self._fetch(place)
        if self._folding is not None or (self._rounds and self.replication.pending):
            return
        self._place = None
        self._routing = place.routing
        self._acknowledge_folded()
        rows = rerouted.rows if self._rounds else tuple(map(self._secured, rerouted.rows))
        self._tell_lead(m.Placed(**self._identity(), round=rerouted.version, rows=rows))
        for pull in list(self._pulls.values()):
            self._answer(pull)
        for fetch in list(self._fetches.values()):
            self._on_fetch(fetch, self._since_ns)

    def _secured(self, row: m.Row) -> m.Row:
        """Without rounds: what every replica has too of what is in the slices here."""
        acknowledged = self._acknowledged.get(row.worker, 0)
        return m.Row(row.worker, row.incarnation, min(row.sequence, acknowledged))

    def _acknowledge_folded(self) -> None:
        for worker, (sequence, round_) in list(self._arrived.items()):
            if round_ <= self.versions.version:
                del self._arrived[worker]
                self._acknowledge(worker, sequence)

    def _fetch(self, place: m.Place) -> None:
        """Ask every primary whose slices are to be copied here and are not."""
        for primary, slices in self._wanted(place).items():
            new = any(slice_ not in self._copies for slice_ in slices)
            if new and not slices <= self._fetching.get(primary, (0, frozenset()))[1]:
                self._fetching[primary] = (place.routing, frozenset(slices))
                self._out.append(FetchState(primary, tuple(sorted(slices)), place.routing))

    def _wanted(self, place: m.Place) -> dict[int, set[int]]:
        """Per primary, what is to be copied from it here."""
        wanted: dict[int, set[int]] = {}
        for slice_, route in enumerate(place.routes):
            if self.server in (*route.replicas, *route.learners):
                wanted.setdefault(route.primary, set()).add(slice_)
        return wanted

    def _forget_copies(self, place: m.Place) -> None:
        """What is not to be copied from whom it was is dropped: if that changes again, it is asked
        for anew."""
        wanted = self._wanted(place)
        self._copies = {s: of for s, of in self._copies.items() if s in wanted.get(of, ())}
        self._fetching = {
            of: (routing, asked & wanted[of])
            for of, (routing, asked) in self._fetching.items()
            if of in wanted
        }

    def _on_state_adopted(self, event: ev.StateAdopted, now_ns: int) -> None:
        asked, slices = self._fetching.get(event.primary, (0, frozenset[int]()))
        if asked != event.routing:
            return  # more was asked for since, and will come
        del self._fetching[event.primary]
        self._copies.update(dict.fromkeys(slices, event.primary))
        adopted = m.Adopted(
            term=self._term, routing=self._held, server=self.server, rows=event.rows
        )
        self._out.append(Send(server_name(event.primary), adopted))

    def _on_step_copied(self, event: ev.StepCopied, now_ns: int) -> None:
        copied = m.Copied(term=self._term, routing=self._held, server=self.server, rows=event.rows)
        self._out.append(Send(server_name(event.primary), copied))

    def _on_fetch(self, message: m.Fetch, now_ns: int) -> None:
        """Once this server goes by the routes that the other one goes by, and is not folding."""
        changing = self._place is not None and self._rerouted is None
        if changing or self._starting or message.routing > self._held:
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
        if message.routing > self._held:
            self._early.append(message)
            return  # of which slices that is said, the lead will say
        if not self.replication.knows(peer, message.routing):
            return  # it was said of what it copied before
        caught_up = self.replication.caught_up(peer)
        settled = self.replication.confirm(peer, message.rows, adopted=adopted)
        if self.replication.caught_up(peer) and not caught_up:
            identity = self._identity() | {"routing": self._held}  # which the lead may await still
            self._tell_lead(m.CaughtUp(**identity, peer=peer))
        self._settle(settled, now_ns)
        self._placed_if_ready()

    def _settle(self, steps: Sequence[Step], now_ns: int) -> None:
        """Every replica has made these steps."""
        for worker, incarnation, sequence in steps:
            if self._rounds:
                folding = self._folding
                if folding is not None and folding.round == sequence and not self._starting:
                    self._finish_fold(self._weight, now_ns)
            elif self._members.get(worker) == incarnation:
                self._secure(worker, incarnation, sequence)

    # -- contributions -------------------------------------------------------------------------

    def _on_contributed(self, event: ev.Contributed, now_ns: int) -> None:
        if self._members.get(event.worker) != event.incarnation:
            return
        if self._rounds:
            self._added(event)
            self._report(event.worker, event.incarnation, event.sequence, event.round)
        elif self.replication.issue((event.worker, event.incarnation, event.sequence)):
            self._secure(event.worker, event.incarnation, event.sequence)

    def _report(self, worker: int, incarnation: int, sequence: int, round_: int) -> None:
        """Of the slices that it is the primary of in the epoch that they are in."""
        self._tell_lead(
            m.Arrived(
                term=self._term,
                view=self._view,
                routing=self._held,
                server=self.server,
                worker=worker,
                incarnation=incarnation,
                sequence=sequence,
                round=round_,
            )
        )

    def _added(self, event: ev.Contributed) -> None:
        if event.worker not in self._apart:
            self.versions.release(event.worker, self.versions.version)
        if event.round <= self.versions.version:
            self._acknowledge(event.worker, event.sequence)
        else:
            self._arrived[event.worker] = (event.sequence, event.round)

    def _secure(self, worker: int, incarnation: int, sequence: int) -> None:
        """Without rounds: it is in the parameters here and on every replica. The answer to a pull
        that waits for it acknowledges."""
        self._acknowledged[worker] = max(sequence, self._acknowledged.get(worker, 0))
        pull = self._pulls.get(worker)
        if pull is not None and pull.sequence <= sequence:
            self._publish_latest(pull)
        else:
            self._acknowledge(worker, sequence)
        self._report(worker, incarnation, sequence, 1)

    def _on_repeated(self, event: ev.Repeated, now_ns: int) -> None:
        """It came again because its acknowledgement was not seen: acknowledge again if due."""
        if self._members.get(event.worker) != event.incarnation:
            return
        if self._acknowledged.get(event.worker, 0) >= event.sequence:
            self._acknowledge(event.worker, event.sequence)

    def _acknowledge(self, worker: int, sequence: int) -> None:
        self._acknowledged[worker] = max(self._acknowledged.get(worker, 0), sequence)
        message = m.Acknowledged(
            **{**self._identity(), "routing": self._since},
            worker=worker,
            incarnation=self._members[worker],
            sequence=self._acknowledged[worker],
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
        self._introduced = None
        self._folding = message
        if message.last and not self._rounds:
            self._frozen = True
            self._out.append(Freeze())
        if message.round == 0 or not self._rounds:
            self._finish_fold(0.0, now_ns)
            return
        slot, fill = self._target = self.versions.target()
        self._starting = True
        self._out.append(StartFold(message.round, slot, fill))

    def _enlist(self, members: tuple[m.MemberSpec, ...]) -> None:
        now = {member.worker: member.incarnation for member in members}
        if now == self._members:
            return
        for worker, incarnation in self._members.items():
            if now.get(worker) != incarnation:
                # what it leases stays leased until its link ends: it may be in the middle of it
                self._acknowledged.pop(worker, None)
                self._arrived.pop(worker, None)
                self._pulls.pop(worker, None)
                self.replication.forget_worker(worker, incarnation)
        self._members = now
        self._out.append(Enlist(members))

    def _on_fold_done(self, event: ev.FoldDone, now_ns: int) -> None:
        if self._folding is None or event.round != self._folding.round:
            return
        self._starting = False
        self._weight = event.weight
        self.versions.folded(event.round, *self._target)
        if self.replication.issue(fold_step(event.round)):
            self._finish_fold(event.weight, now_ns)
        if self._place is not None and self._rerouted is None:
            self._follow(self._place)
        for fetch in list(self._fetches.values()):
            self._on_fetch(fetch, now_ns)

    def _finish_fold(self, weight: float, now_ns: int) -> None:
        fold, self._folding = self._folding, None
        assert fold is not None
        self._since_ns = now_ns
        readers = self._last_first(fold.readers)
        pushed = frozenset(readers)
        for worker, (sequence, round_) in list(self._arrived.items()):
            if round_ <= fold.round:
                del self._arrived[worker]
                if worker in pushed:
                    self._acknowledged[worker] = sequence
                else:
                    self._acknowledge(worker, sequence)
        for worker in readers:
            self._publish(worker)
        self._moved = False
        for pull in list(self._pulls.values()):
            self._answer(pull)
        self._tell_lead(m.Folded(**self._identity(), round=fold.round, weight=weight))
        self._free()
        self._placed_if_ready()

    def _last_first(self, readers: tuple[int, ...]) -> list[int]:
        """Who was waited for gets the version first: the others have time."""
        arrived = [worker for worker in reversed(self._arrived) if worker in readers]
        order = dict.fromkeys((*arrived, *readers))
        return [worker for worker in order if worker in self._members]

    # -- readers -------------------------------------------------------------------------------

    def _publish(self, worker: int, *, asked: bool = False) -> None:
        self._pulls.pop(worker, None)
        if self.versions.holds(worker):
            return  # it is on its way: a second answer would outlive the first one's lease
        apart = (asked or self._moved) and self.job.replicas
        (self._apart.add if apart else self._apart.discard)(worker)
        self.versions.lease(worker)
        self._out.append(
            Publish(
                worker,
                self._members[worker],
                self.versions.version,
                self.versions.slot,
                self._acknowledged.get(worker, 0),
                self._view,
                self._since,
            )
        )

    def _on_pull(self, message: m.Pull, now_ns: int) -> None:
        if self._members.get(message.worker) != message.incarnation:
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
            self._pulls[pull.worker] = pull

    def _can_answer(self, pull: m.Pull) -> bool:
        """With rounds: the version is there and no fold is writing. Without: the reader's own last
        contribution is in, or nothing more will be."""
        if self._place is not None:
            return False  # what it holds is about to change
        if self._rounds:
            return self._folding is None and self.versions.version >= pull.round
        return self._frozen or self._acknowledged.get(pull.worker, 0) >= pull.sequence

    def _publish_latest(self, pull: m.Pull) -> None:
        self._pulls.pop(pull.worker, None)
        sequence = self._acknowledged.get(pull.worker, 0)
        reader = (pull.worker, pull.incarnation)
        answer = PublishLatest(*reader, pull.round, sequence, self._view, self._since)
        self._out.append(answer)

    def _on_pulled(self, message: m.Pulled, now_ns: int) -> None:
        if message.worker not in self._apart:
            self._release(message.worker, message.round)

    def _on_sent(self, event: ev.Sent, now_ns: int) -> None:
        self._release(event.worker, event.round)

    def _release(self, worker: int, round_: int) -> None:
        if not self._rounds:
            self._out.append(Unlease(worker, round_))
        elif (worker, round_) in self._moved_leases:  # the same version may be leased to it again
            self._moved_leases.remove((worker, round_))
        elif self.versions.release(worker, round_):
            self._free()

    def _free(self) -> None:
        if self._folding is None and (slots := self.versions.surplus()):
            self._out.append(FreeSlots(slots))

    def _on_link_closed(self, event: ev.LinkClosed, now_ns: int) -> None:
        if event.peer == LEAD:
            self._end(Reason("lead-gone", {"detail": event.reason}), failed=True)
        server = server_number(event.peer)
        if server is not None and not 0 < event.incarnation < self._linked.get(server, 0):
            self._linked.pop(server, None)
            self._reached.pop(server, None)
            if server in self._partners and event.incarnation in (0, self._partners[server]):
                incarnation = self._partners[server]
                gone = m.Unreachable(
                    **self._identity(), incarnation=incarnation, peer=server, reason=event.reason
                )
                self._tell_lead(gone)
        worker = worker_number(event.peer)
        if worker is None or 0 < event.incarnation < self._members.get(worker, 0):
            return  # it is no worker, or has come back over another link
        self._pulls.pop(worker, None)
        if self._rounds:
            self._moved_leases = {held for held in self._moved_leases if held[0] != worker}
            self.versions.forget(worker)
            self._free()
        else:
            self._out.append(Unlease(worker, None))

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
            "routing": self._routing,
            "server": self.server,
        }

    def _tell_lead(self, message: m.Message) -> None:
        self._out.append(Send(LEAD, message))

    _HANDLERS: ClassVar[dict[type, Callable[["ServerMachine", Any, int], None]]] = {
        ev.Tick: _on_tick,
        m.Place: _on_place,
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
