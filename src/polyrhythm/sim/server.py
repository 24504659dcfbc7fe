"""A server's process in virtual time; the lead's machine runs in the first one.

It is `runtime/server.py` again, with a model in place of the bytes. A fold takes as long as its bytes
need, and what arrives meanwhile waits for it: with rounds as it would for the locks of the slices,
without them because one thread folds slice after slice.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, TypeAlias

from polyrhythm.core import effects as fx
from polyrhythm.core import events as ev
from polyrhythm.core.lead import LeadMachine
from polyrhythm.core.machine import Machine
from polyrhythm.core.placement.slices import ITEM_NBYTES, lay_out
from polyrhythm.core.server import ServerMachine
from polyrhythm.core.sync.choose import has_rounds
from polyrhythm.errors import InvariantBroken, LinkError
from polyrhythm.observe.journal import Journal
from polyrhythm.sim.clock import Clock
from polyrhythm.sim.link import Way
from polyrhythm.sim.memory import CarriedCopy, CarriedState, Memory
from polyrhythm.sim.objective import Objective
from polyrhythm.sim.process import Process
from polyrhythm.sim.witness import Witness
from polyrhythm.wire import messages as m

_Slots: TypeAlias = tuple[int, ...]
_Sending: TypeAlias = tuple[Way, ev.Sent, _Slots, list[int] | None]
_LEADS = fx.server_name(0)
_FIRST = 1
"""The incarnation of a server that was there from the beginning."""
_FOR_THE_LEAD = frozenset(
    {
        m.Attach,
        m.Enrol,
        m.Trailer,
        m.Abstained,
        m.Asking,
        m.Report,
        m.Leave,
        m.Placed,
        m.Seeded,
        m.Arrived,
        m.Folded,
        m.Alive,
        m.CaughtUp,
        m.Unreachable,
    }
)


class ServerProcess(Process):
    def __init__(
        self,
        server: int,
        job: m.JobSpec,
        clock: Clock,
        *,
        journal: Journal | None,
        fold_ns_per_byte: float,
        objective: Objective | None,
        witness: Witness | None,
        dial: Callable[["ServerProcess", m.ServerSpec], Way | None] | None = None,
        life: int = 0,
    ) -> None:
        """`life`: how many had its number before, none of which listens where this one does.
        `journal`: only the server that runs the lead has one. `objective`: it falls with what
        is folded into the first slice. `witness`: check everything. `dial` gives the way to
        another server, if that is there."""
        self.name = fx.server_name(server)
        machines: dict[str, Machine] = {self.name: ServerMachine(server, job)}
        if journal is not None:
            machines[fx.LEAD] = LeadMachine(job)
        super().__init__(clock, machines, check=witness is not None)
        self.address = m.Address("simulated", life, "", "")
        self.outcome: fx.End | None = None
        self.memory: Memory | None = None
        self._server = server
        self._job = job
        self._journal = journal
        self._leads = journal is not None
        self._dial = dial
        self._objective = objective
        self._witness = witness
        self._fold_ns_per_byte = fold_ns_per_byte
        self._peers: dict[str, Way] = {}
        self._strangers = 0
        self._rounds = has_rounds(job.sync)
        self._folding = False
        self._folder_free_ns = 0
        self._after_fold: deque[m.Contribution] = deque()
        self._missed: deque[Callable[[], None]] = deque()
        """What came and what was due while the process was stopped."""
        self._leaving: dict[int, list[_Sending]] = {}
        """By the moment at which they will have left."""

    def knock(self, lead: Way | None) -> None:
        """Come into the job: over a link to the lead, or at once where the lead runs here."""
        bonjour = m.ServerBonjour(
            server=self._server,
            name=self.name,
            job=self._job.job,
            address=self.address,
            identity="",
        )
        if lead is None:
            self.post(fx.LEAD, ev.ServerKnocked(self.name, bonjour))
        else:
            self._peers[fx.LEAD] = lead
            lead.send(bonjour)
            self.put(self.name, ev.Linked(0, _FIRST))

    # -- what befalls it -----------------------------------------------------------------------

    def crash(self) -> None:
        if self.alive:
            self.alive = False
            for way in self._peers.values():
                way.break_off(f"the link to {self.name} broke")

    def freeze(self) -> None:
        self.frozen = True

    def thaw(self) -> None:
        if self.alive and self.frozen:
            self.frozen = False
            while self._missed and self.alive:
                self._missed.popleft()()
            self.run()
            self.rearm()

    def cut(self, peers: set[str]) -> None:
        """The link to whoever is called so breaks."""
        for name in peers & self._peers.keys():
            way = self._peers[name]
            way.cut("the link was cut")

    def _slept_through(self, what: Callable[[], None]) -> bool:
        """The process is stopped, and does this when it goes on; or it is no more."""
        if self.frozen:
            self._missed.append(what)
        return self.frozen or not self.alive

    # -- what comes in -------------------------------------------------------------------------

    def receive(self, way: Way, message: m.Message) -> None:
        if self.frozen:
            self._missed.append(lambda: self.receive(way, message))
            return
        kind = type(message)
        if kind is m.Contribution:
            self._take_contribution(way, message)  # type: ignore[arg-type]
        elif kind in _FOR_THE_LEAD:
            self._queue.append((fx.LEAD, message))
            if self._witness is not None:
                self._witness.told_lead(message)
        elif kind is m.WorkerBonjour or kind is m.ServerBonjour:
            self._hear_bonjour(way, message)
        elif kind is m.Seed:
            self._take_seed(way, message)  # type: ignore[arg-type]
        elif kind is CarriedCopy or kind is CarriedState:
            self._take_copy(message)
        elif kind is m.Greeting:
            self.put(self.name, ev.Linked(message.server, way.incarnation))
        else:
            self.put(self.name, message)
        self.run()

    def closed(self, way: Way, reason: str) -> None:
        if self.frozen:
            self._missed.append(lambda: self.closed(way, reason))
            return
        self._forget(way, reason)
        self.run()

    def _hear_bonjour(self, way: Way, bonjour: Any) -> None:
        if self._leads:
            self._strangers += 1
            way.peer = f"link-{self._strangers}"
            self._peers[way.peer] = way.back
            if isinstance(bonjour, m.WorkerBonjour):
                self.put(fx.LEAD, ev.WorkerKnocked(way.peer, bonjour))
            else:
                self.put(fx.LEAD, ev.ServerKnocked(way.peer, bonjour))
            return
        is_worker = isinstance(bonjour, m.WorkerBonjour)
        number = bonjour.worker if is_worker else bonjour.server
        way.peer = (fx.worker_name if is_worker else fx.server_name)(number)
        way.incarnation = bonjour.incarnation
        before = self._peers.get(way.peer)
        if before is not None and way.incarnation <= before.back.incarnation:
            self._part(way, f"{way.peer} is linked to {self.name} already")
            return
        self._replace(before)
        self._peers[way.peer] = way.back
        greeting = m.Greeting(server=self._server, name=self.name, digest=0, address=self.address)
        way.back.send(greeting)
        if not is_worker:
            self.put(self.name, ev.Linked(number, bonjour.incarnation))

    def _part(self, way: Way, fault: str) -> None:
        """The peer did what cannot be: it is told why, and the link is over."""
        way.back.send(m.Refusal(reason=f"{self.name}: {fault}"))
        way.back.hang_up(fault)
        self._forget(way, fault)

    def _replace(self, before: Way | None) -> None:
        """Its peer came back over another link: this one has ended without our noticing."""
        if before is not None:
            way = before.back
            self.put(self.name, ev.LinkClosed(way.peer, "it came back", way.incarnation))
            before.hang_up("its peer came back")

    def _forget(self, way: Way, reason: str) -> None:
        if self._journal is not None:
            self._journal.note("link-closed", peer=way.peer, reason=reason)
        if self._peers.get(way.peer) is not way.back:
            return
        del self._peers[way.peer]
        for name in reversed(self.machines):  # the lead hears it first
            self.put(name, ev.LinkClosed(way.peer, reason, way.incarnation))

    def _take_seed(self, way: Way, message: m.Seed) -> None:
        try:
            event = self._placed().seed(message)
        except LinkError as error:
            self._part(way, str(error))
            return
        if event is not None:
            self.put(self.name, event)

    def _take_contribution(self, way: Way, message: m.Contribution) -> None:
        try:
            nbytes = self._placed().nbytes_of(message.slice, message.routing)
        except LinkError as error:
            self._part(way, str(error))
            return
        if self._folding:
            self._after_fold.append(message)
        elif self._rounds:
            self._add(message)
        else:
            begin_ns = max(self._folder_free_ns, self.clock.now_ns)
            self._folder_free_ns = begin_ns + int(nbytes * self._fold_ns_per_byte)
            self.clock.at(self._folder_free_ns, self._fold_slice, message)

    def _add(self, message: m.Contribution) -> None:
        event = self._placed().add(message)
        self._send_copies()
        if event is not None:
            self.put(self.name, event)

    def _take_copy(self, message: Any) -> None:
        memory = self._placed()
        event = memory.copy(message) if isinstance(message, CarriedCopy) else memory.adopt(message)
        if event is not None:
            self.put(self.name, event)

    def _send_copies(self) -> None:
        memory = self._placed()
        for peer, copy in memory.take_copies():
            self._tell_server(peer, copy, memory.nbytes_at(copy.slice))

    def _tell_server(self, server: int, message: m.Message, nbytes: int = 0) -> None:
        way = self._peers.get(fx.server_name(server) if server or self._leads else fx.LEAD)
        if way is not None:
            way.send(message, nbytes)

    def _fold_slice(self, message: m.Contribution) -> None:
        if self._slept_through(lambda: self._fold_slice(message)):
            return
        self._add(message)
        self._learn()
        self.run()

    def _learn(self) -> None:
        if self._objective is not None and (weight := self._placed().weights.get(0)) is not None:
            self._objective.folded(weight)

    def _placed(self) -> Memory:
        if self.memory is None:
            raise LinkError("slices came before this server was told to hold any")
        return self.memory

    # -- what machines want done ---------------------------------------------------------------

    def _send(self, effect: fx.Send) -> None:
        to, message = effect.to, effect.message
        if self._witness is not None:
            if isinstance(message, m.Fold):
                self._witness.decided(message)
            if to == fx.LEAD and to in self.machines:
                self._witness.told_lead(message)
        if to in self.machines:
            self._queue.append((to, message))
            return
        way = self._peers.get(to)
        if way is None and to == _LEADS:
            way = self._peers.get(fx.LEAD)
        if way is not None:
            way.send(message)

    def _bind(self, effect: fx.Bind) -> None:
        way = self._peers.pop(effect.link, None)
        if way is not None and self._journal is not None:
            self._replace(self._peers.get(effect.peer))
            way.back.peer, way.back.incarnation = effect.peer, effect.incarnation
            self._peers[effect.peer] = way
            self._journal.note("linked", peer=effect.peer, link="simulated")
            server = fx.server_number(effect.peer)
            if server is not None:
                self.put(self.name, ev.Linked(server, effect.incarnation))

    def _drop(self, effect: fx.Drop) -> None:
        way = self._peers.pop(effect.peer, None)
        if way is not None:
            way.hang_up(effect.reason)

    def _note(self, effect: fx.Note) -> None:
        if self._journal is not None:
            self._journal.note(effect.what, **effect.fields)

    def _end(self, effect: fx.End) -> None:
        self.outcome = self.outcome or effect
        if self._leads:
            self.clock.stop()
        else:
            self.alive = False
            for way in self._peers.values():
                way.hang_up(f"{self.name} ended: {effect.reason}")

    def _build(self, effect: fx.Build) -> None:
        layout = lay_out(effect.spec, self._job.servers, self._job.slice_nbytes)
        sizes = {
            slice_.id: slice_.length * ITEM_NBYTES[layout.spaces[slice_.space].dtype]
            for slice_ in layout.slices
        }
        self.memory = Memory(
            self._server,
            sizes,
            effect.routes,
            effect.routing,
            rounds=self._rounds,
            keep=self._witness is not None,
            fresh=effect.fresh,
        )
        if self._witness is not None:
            self._witness.memories[self._server] = self.memory

    def _enlist(self, effect: fx.Enlist) -> None:
        if self.memory is not None:
            self.memory.enlist(effect.members)

    def _start_fold(self, effect: fx.StartFold) -> None:
        self._folding = True
        took_ns = int(self._placed().nbytes * self._fold_ns_per_byte)
        self.clock.at(self.clock.now_ns + took_ns, self._fold, effect)

    def _fold(self, effect: fx.StartFold) -> None:
        if self._slept_through(lambda: self._fold(effect)):
            return
        self._folding = False
        weight = self._placed().fold(effect.round, effect.slot)
        self._send_copies()
        self._learn()
        if self._witness is not None:
            self._witness.folded(self._server, effect.round)
        self.put(self.name, ev.FoldDone(effect.round, weight))
        while self._after_fold:
            self._add(self._after_fold.popleft())
        self.run()

    def _reader(self, effect: fx.Publish | fx.PublishLatest) -> Way | None:
        way = self._peers.get(fx.worker_name(effect.worker))
        return way if way is not None and way.back.incarnation == effect.incarnation else None

    def _publish(self, effect: fx.Publish) -> None:
        way = self._reader(effect)
        if way is not None:
            slots = (effect.slot,) * len(self._placed().slices)
            self._send_slices(way, slots, effect.round, effect)
        else:  # nothing leaves, so nothing is read
            self.put(self.name, ev.Sent(effect.worker, effect.round))

    def _publish_latest(self, effect: fx.PublishLatest) -> None:
        way = self._reader(effect)
        if way is not None:
            slots = self._placed().lease(effect.worker, effect.ticket)
            self._send_slices(way, slots, effect.ticket, effect)

    def _send_slices(
        self, way: Way, slots: _Slots, round_: int, effect: fx.Publish | fx.PublishLatest
    ) -> None:
        memory = self._placed()
        left_ns = self.clock.now_ns
        for (slice_, nbytes), slot in zip(memory.slices.items(), slots, strict=True):
            message = m.Parameters(
                view=effect.view,
                routing=effect.routing,
                worker=effect.worker,
                incarnation=effect.incarnation,
                sequence=effect.sequence,
                round=round_,
                slice=slice_,
                server=self._server,
                slot=slot,
            )
            left_ns = way.send(message, nbytes)
        stamps = [memory.moves, *memory.stamps(slots)] if self.check else None
        if left_ns not in self._leaving:
            self._leaving[left_ns] = []
            self.clock.at(left_ns, self._have_left, left_ns)
        self._leaving[left_ns].append((way, ev.Sent(effect.worker, round_), slots, stamps))

    def _have_left(self, left_ns: int) -> None:
        """Of a version that goes to many, many copies leave at the same moment."""
        if self._slept_through(lambda: self._have_left(left_ns)):
            return
        for way, event, slots, stamps in self._leaving.pop(left_ns):
            peer = fx.worker_name(event.worker)
            if self._peers.get(peer) is not way:
                continue  # its link is over, and with it the lease
            memory = self._placed()
            moved = stamps is not None and stamps[0] != memory.moves
            # what was read before lies where nobody writes
            if stamps is not None and not moved and memory.stamps(slots) != stamps[1:]:
                raise InvariantBroken(f"{self.name} wrote what {peer} was reading")
            self._queue.append((self.name, event))
        self.run()

    def _reach(self, effect: fx.Reach) -> None:
        for spec in effect.servers:
            if spec.server >= self._server:
                continue  # it will come
            assert self._dial is not None
            way = self._dial(self, spec)
            if way is None:
                closed = ev.LinkClosed(fx.server_name(spec.server), "nobody answers")
                self.put(self.name, closed)
                continue
            way.back.incarnation = spec.incarnation
            self._peers[way.back.peer] = way
            way.send(
                m.ServerBonjour(
                    server=self._server,
                    incarnation=effect.incarnation,
                    name=self.name,
                    job=self._job.job,
                    address=self.address,
                    identity="",
                )
            )

    def _reroute(self, effect: fx.Reroute) -> None:
        self.put(self.name, self._placed().reroute(effect.routes, effect.routing))

    def _send_state(self, effect: fx.SendState) -> None:
        memory = self._placed()
        for state in memory.states(effect.to, effect.held, effect.routing):
            nbytes = memory.nbytes_at(state.slice) if state.parts else 0
            self._tell_server(effect.to, state, nbytes)

    def _fetch_state(self, effect: fx.FetchState) -> None:
        fetch = self._placed().fetch(effect.primary, effect.slices, effect.routing)
        self._tell_server(effect.primary, fetch)

    def _unlease(self, effect: fx.Unlease) -> None:
        if self.memory is not None:
            self.memory.unlease(effect.worker, effect.ticket)

    def _free_slots(self, effect: fx.FreeSlots) -> None:
        self._placed().free(effect.slots)

    def _freeze(self, effect: fx.Freeze) -> None:
        self._placed().freeze()

    def _beat(self, effect: fx.Beat) -> None:
        self._send(fx.Send(fx.LEAD, effect.message))

    EFFECTS = {  # noqa: RUF012
        fx.Send: _send,
        fx.Bind: _bind,
        fx.Drop: _drop,
        fx.Note: _note,
        fx.End: _end,
        fx.Build: _build,
        fx.Enlist: _enlist,
        fx.StartFold: _start_fold,
        fx.Publish: _publish,
        fx.PublishLatest: _publish_latest,
        fx.Unlease: _unlease,
        fx.FreeSlots: _free_slots,
        fx.Freeze: _freeze,
        fx.Beat: _beat,
        fx.Reach: _reach,
        fx.Reroute: _reroute,
        fx.SendState: _send_state,
        fx.FetchState: _fetch_state,
    }
